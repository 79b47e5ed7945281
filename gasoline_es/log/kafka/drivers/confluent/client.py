"""What confluent-kafka is called by here, and what its errors mean."""

from __future__ import annotations

import logging
from typing import Any

import confluent_kafka as _confluent
import confluent_kafka.admin as _admin

from gasoline_es.log.kafka.drivers.port import BrokerError, NotAllowed

# Half of its types are unknown to type checkers.
confluent: Any = _confluent
admin: Any = _admin
codes: Any = _confluent.KafkaError

KafkaException: type[Exception] = _confluent.KafkaException

# Silent unless the application wants it, as kafka-python's is; the library would write to stderr by itself.
_log = logging.getLogger("confluent_kafka")
_log.addHandler(logging.NullHandler())

_FENCED = frozenset({codes._FENCED, codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH})
_TOO_LARGE = frozenset({codes.MSG_SIZE_TOO_LARGE, codes.RECORD_LIST_TOO_LARGE})
# What a topic refuses a record with for what it is.
_REFUSED = frozenset(
    {
        codes.INVALID_TIMESTAMP,
        codes.INVALID_RECORD,
        codes.POLICY_VIOLATION,
        codes.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        codes.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
_NOT_ALLOWED = frozenset({codes.TOPIC_AUTHORIZATION_FAILED, codes.CLUSTER_AUTHORIZATION_FAILED})
_AWAY = frozenset({codes._TIMED_OUT, codes._TRANSPORT, codes._ALL_BROKERS_DOWN, codes._RESOLVE})
# The client asks by what it knows of leaders, and does not look anew by itself.
_STALE = frozenset(
    {
        codes.FENCED_LEADER_EPOCH,
        codes.UNKNOWN_LEADER_EPOCH,
        codes.NOT_LEADER_FOR_PARTITION,
        codes.LEADER_NOT_AVAILABLE,
        codes.NOT_CONTROLLER,
        codes._NOENT,  # no leaders found
    }
)
# A reader waits for what passes by itself; these do not.
_FOR_GOOD = frozenset(
    {
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.CLUSTER_AUTHORIZATION_FAILED,
        codes.GROUP_AUTHORIZATION_FAILED,
        codes.UNKNOWN_TOPIC_OR_PART,
        codes.TOPIC_EXCEPTION,
        codes._FATAL,
        codes._UNKNOWN_TOPIC,
        codes._UNKNOWN_PARTITION,
    }
)


def with_logger(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a client that says what it says in Python's logging.

    Without an ``error_cb``, it raises fatal errors from whatever callback is running, as a SystemError.
    """
    return {**config, "logger": _log, "error_cb": _note}


def _note(_: Any) -> None:
    """Do nothing: the logger is told of it anyway."""


def reason(error: BaseException) -> Any:
    """Return the library's own error of an exception; None: it has none."""
    first = error.args[0] if error.args else None
    return first if isinstance(first, codes) else None


def code(error: Any) -> int | None:
    """Return the number of an error, be it an exception or not."""
    found = reason(error) if isinstance(error, BaseException) else error
    return None if found is None else int(found.code())


def is_fenced(error: Any) -> bool:
    """Whether this says that a producer was fenced."""
    return code(error) in _FENCED


def is_too_large(error: Any) -> bool:
    """Whether a record was refused for its size."""
    return code(error) in _TOO_LARGE


def is_refused(error: Any) -> bool:
    """Whether a topic has refused a record for what it is."""
    return code(error) in _REFUSED


def is_for_good(error: Any) -> bool:
    """Whether waiting does not help a reader."""
    return code(error) in _FOR_GOOD


def is_away(error: Any) -> bool:
    """Whether whom it was asked of did not answer."""
    return code(error) in _AWAY


def is_stale(error: Any) -> bool:
    """Whether the client has asked a broker that leads no more, or as of before it began to."""
    return code(error) in _STALE


def passes(error: Any) -> bool:
    """Whether the same may be asked again."""
    found = reason(error) if isinstance(error, BaseException) else error
    return found is not None and bool(found.retriable())


def describe(error: Any) -> str:
    """Tell an error with its kind."""
    found = reason(error) if isinstance(error, BaseException) else error
    return f"{type(error).__name__}: {error}" if found is None else f"{found.name()}: {found.str()}"


def broker_error(what: str, config: dict[str, Any], error: Any) -> BrokerError:
    """Make the error for what did not work, with where that was."""
    where = config["bootstrap.servers"]
    away = is_away(error) or isinstance(error, TimeoutError)
    hint = " (is a broker there, and do its advertised listeners name it so that it is reached from here?)"
    kind = NotAllowed if code(error) in _NOT_ALLOWED else BrokerError
    return kind(f"Kafka at {where}: {what}: {describe(error)}{hint if away else ''}", bootstrap=where)
