"""Tests of the project itself: its layers, wheel, import time, documents and habits."""
