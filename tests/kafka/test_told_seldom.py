"""What kafka-python says again and again while a topic is away is told now and then."""

from __future__ import annotations

import logging

import pytest

from gasoline_es.log.kafka.drivers.kafka_python.client import REMEMBERED_MAX, REPEATS_S, Seldom


def said(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("kafka.cluster", logging.ERROR, __file__, 1, message, args, None)


def test_a_message_comes_once_in_ten_seconds_and_others_are_not_held_back() -> None:
    now_s = 0.0
    seldom = Seldom(lambda: now_s)
    assert seldom.filter(said("Topic %s not found", "a"))
    assert not any(seldom.filter(said("Topic %s not found", "a")) for _ in range(100))
    assert seldom.filter(said("Topic %s not found", "b"))
    now_s = REPEATS_S
    assert seldom.filter(said("Topic %s not found", "a"))
    assert not seldom.filter(said("Topic %s not found", "a"))


def test_messages_that_never_repeat_are_not_remembered_for_ever() -> None:
    seldom = Seldom(lambda: 0.0)
    assert all(seldom.filter(said("%s", number)) for number in range(3 * REMEMBERED_MAX))
    assert len(seldom._until) <= REMEMBERED_MAX


def test_the_library_itself_is_told_seldom(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("kafka.cluster")
    for _ in range(10):
        logger.error("Topic %s not found in cluster metadata", "nowhere")
    assert caplog.text.count("nowhere") == 1
