"""Errors of devices, with the HTTP status that Hono uses for them in every protocol."""

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
    Refusal.PATH_LOST: 503,
    Refusal.FORMAT_INVALID: 400,
}
"""Status of Hono for each refusal of the router: 503 for temporary ones."""


class DeviceError(Exception):
    """A message, request or subscription of a device is refused."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def bad_request(text: str) -> DeviceError:
    """Return an error with status 400: a retry would fail too."""
    return DeviceError(400, text)


def refusal_error(why: Refusal) -> DeviceError:
    """Return the error for a refusal of the router."""
    return DeviceError(STATUS[why], why.value)
