"""Why a device's message is not taken, with the HTTP status Hono reports it by over every protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from edge.broker.model.interfaces import Refusal

STATUS: Final[Mapping[Refusal, int]] = {
    Refusal.NOT_AUTHORIZED: 403,
    Refusal.NO_CONSUMER: 503,
    Refusal.NO_CONSUMER_CONNECTED: 503,
    Refusal.FULL: 503,
    Refusal.NAMES: 429,
    Refusal.STORE_FAILED: 503,
    Refusal.ADDRESS_INVALID: 400,
    Refusal.TOO_LARGE: 413,
    Refusal.REJECTED: 503,
    Refusal.RELEASED: 503,
    Refusal.DELIVERY_FAILED: 503,
    Refusal.UNDELIVERABLE: 503,
    Refusal.NO_ANSWER: 503,
    Refusal.FORMAT_INVALID: 400,
}
"""What Hono says where the router refuses: it knows 503 for all that may work later."""


class DeviceError(Exception):
    """A message, request or subscription of a device that cannot be served as it is."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def bad_request(text: str) -> DeviceError:
    """400: it would be no better a second time."""
    return DeviceError(400, text)


def refused(why: Refusal) -> DeviceError:
    """What the router's refusal is in Hono's terms."""
    return DeviceError(STATUS[why], why.value)
