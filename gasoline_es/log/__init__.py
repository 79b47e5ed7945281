"""Logs: the port that every log fulfils, and opening one by its URL."""

from __future__ import annotations

from gasoline_es.log.opening import open_log

__all__ = ["open_log"]
