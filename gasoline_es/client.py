"""All verbs of a log that is opened: what one calls outside a workflow (api.md, "Outside")."""

from __future__ import annotations

from gasoline_es.messaging import Messaging
from gasoline_es.scheduling import Scheduling
from gasoline_es.signalling import Signalling
from gasoline_es.steering import Steering


class Client(Signalling, Steering, Messaging, Scheduling):
    """The verbs of a log opened for one namespace. Calls are decided in the order they are made, also under gather."""


__all__ = ["Client"]
