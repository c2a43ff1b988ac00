"""Conditions on stored messages, for people who look for some of many.

Fields and properties are compared by a selector of JMS (`edge.broker.message.selector`), and a JSON body by a
condition of JSONPath (`edge.broker.message.json_condition`): the languages of AMQP receivers and of forwarders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.amqp_values import DecodeError
from bridge.message import AMQP, QOS_MASK, RETAIN, Run, Stored
from bridge.publisher import client_of, device_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.message.json_condition import JsonCondition, JsonConditionError
from edge.broker.message.mqtt_errors import MqttError
from edge.broker.message.mqtt_properties import decode_run
from edge.broker.message.selectable import selectable_values
from edge.broker.message.selector import MessageSelector, SelectorError
from edge.broker.message.translation import payload_of


class MessageCondition:
    """Conditions that all have to hold; an empty one always does."""

    def __init__(self, text: str = "", where: str = "", body: str = "") -> None:
        """`text`: part of the body. `where`: selector. `body`: condition on a JSON body. Raises RequestRefused."""
        self._text = text.encode("utf-8", "replace")
        try:
            self._selector = MessageSelector(where) if where.strip() else None
        except SelectorError as error:
            raise RequestRefused(400, f"where: {error}") from None
        try:
            self._json = JsonCondition(body) if body.strip() else None
        except JsonConditionError as error:
            raise RequestRefused(400, f"json: {error}") from None

    def holds(self, stored: Stored, place: int) -> bool:
        """Return True for a message of a run that fulfils the conditions. One that cannot be read fulfils none."""
        run, body = stored.run, stored.run.bodies[place]
        if self._text not in body:
            return False
        try:
            return (self._selector is None or self._selector.matches(_values(run, body))) and (
                self._json is None or self._json.holds(_payload(run, body))
            )
        except (DecodeError, MqttError):
            return False


def _payload(run: Run, body: bytes) -> bytes:
    return payload_of(body)[2] if run.flags & AMQP else body


def _values(run: Run, body: bytes) -> Mapping[str, Any]:
    """Return what a selector compares: properties by their names, fields of the message as ``message.size``."""
    found = selectable_values(body) if run.flags & AMQP else _mqtt_values(run)
    return found | {
        "message.address": run.address,
        "message.client": client_of(run.device),
        "message.device": device_of(run.device),
        "message.qos": run.flags & QOS_MASK,
        "message.retain": bool(run.flags & RETAIN),
        "message.size": len(body),
    }


def _mqtt_values(run: Run) -> dict[str, Any]:
    """Return user properties, and fields by the names that AMQP has for them."""
    properties = decode_run(run.properties)
    values: dict[str, Any] = dict(properties.user_property)
    fields = {
        "properties.content_type": properties.content_type,
        "properties.reply_to": properties.response_topic,
        "header.ttl": properties.message_expiry_interval_s,
    }
    return values | {name: value for name, value in fields.items() if value is not None}
