"""Commands over MQTT with their name in the topic, as clients before MQTT 5 have no property for it.

A hub's commands to a device are in one queue, ``command/<device>``. A subscription to ``command/<device>/#``, or to
``command/<device>/+`` or one name, gets them as ``command/<device>/<name>``. A subscription to ``command/<device>``
gets them under that topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from bridge.amqp_values import DecodeError
from bridge.message import AMQP, Run, Stored
from edge.broker.message.translation import properties_of
from edge.broker.model.interfaces import MessageSelection, Subscription
from edge.broker.model.topics import matches
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.mqtt.session import MqttSession, Subscriber
from edge.broker.router.commands.addresses import COMMANDS

_SUBJECT: Final = 3
_UNESCAPED: Final = " !$&'()*,-.:;=?@_~"
"""Characters of a name that are not escaped in a topic. Others, and the slash, are escaped as in URLs."""


def subscriber_of(session: MqttSession, request: SubscriptionRequest, identifier: int, *, kept: bool) -> Subscriber:
    """Return the consumer for a subscription; one to commands by name gets a consumer of its own kind."""
    levels = request.filter.split("/")
    by_name = len(levels) == 3 and levels[0] == COMMANDS and levels[1] not in ("", "+", "#") and bool(levels[2])
    return (CommandTopicSubscriber if by_name else Subscriber)(session, request, identifier, kept=kept)


def topic_of(run: Run, i: int) -> str:
    """Return the topic of a message in a device's queue, with the name of the command if it has one."""
    if not run.flags & AMQP or run.address.count("/") != 1:
        return run.address
    try:
        fields = properties_of(run.bodies[i])
    except DecodeError:
        return run.address
    name = fields[_SUBJECT] if len(fields) > _SUBJECT else None
    return f"{run.address}/{quote(name, safe=_UNESCAPED)}" if isinstance(name, str) and name else run.address


class CommandSelection(MessageSelection):
    """Selects the commands with a topic that one filter matches."""

    def __init__(self, pattern: str) -> None:
        self.text = f"mqtt topic {pattern}"
        self._pattern = pattern

    def wanted(self, run: Run) -> Sequence[bool]:
        return [matches(self._pattern, topic_of(run, i)) for i in range(len(run.bodies))]


class CommandTopicSubscriber(Subscriber):
    """Subscription to commands of one device by name."""

    __slots__ = ()

    @property
    def joined_filter(self) -> str:
        return self.request.filter.rpartition("/")[0] + "/#" if self.kind.is_queue else self.request.filter

    @property
    def selection(self) -> MessageSelection | None:  # type: ignore[override]  # follows the type of the address
        if not self.kind.is_queue or self.request.filter.endswith("/#"):
            return None
        return CommandSelection(self.request.filter)

    def deliver_run(self, subscription: Subscription, stored: Stored) -> None:
        run = stored.run
        if not self.kind.is_queue or not run.flags & AMQP:
            super().deliver_run(subscription, stored)
            return
        for i in range(len(run.bodies)):
            one = msgspec.structs.replace(run.part(i, i + 1), address=topic_of(run, i))
            position = stored.position + i if stored.position >= 0 else stored.position
            super().deliver_run(subscription, Stored(position, stored.sequence + i, one))
