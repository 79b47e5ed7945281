"""Tests; a package, so that they can share code as `from tests.x import y`."""
