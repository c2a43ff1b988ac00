"""Every bound of commands at the hub, with unit and reason; what a command may be is in `bridge.limits`."""

from __future__ import annotations

from typing import Final

TTL_S_DEFAULT: Final = 3_600.0
"""Time to live of a command that says nothing: who sends it waits no longer than that for a device to come."""

GATEWAY_COMMANDS_MAX: Final = 1_000
"""Commands to one gateway that are not over: more means that it is away, or that somebody sends in a loop."""

UNDER_WAY_MAX: Final = 64
"""Commands a gateway has been sent and has not settled: 4 MiB of the largest."""

LOOKED_FOR_S: Final = 1.0
"""How often the hub looks for commands that others have put into the registry, and for those whose time is over."""

AT_ONCE_MAX: Final = 500
"""Commands in one transaction of that kind."""

KEPT_S: Final = 30 * 86_400.0
"""How long a command that is over is shown, and its response: 0.5 KiB each and its payload."""

COUNTED_LOOKS: Final = 10
"""One of so many looks counts commands by state, and deletes those that are older: it walks an index of all."""

PAGE_MAX: Final = 1_000
"""Commands in one answer of the API."""

WAIT_S_MAX: Final = 300.0
"""Longest wait of one request for what becomes of a command."""

REQUESTS_MAX: Final = 256
"""Requests that wait for the one thread that answers them, about a millisecond each; more are told to come again."""

WAITING_MAX: Final = 1_000
"""Requests that wait for what becomes of a command."""

SENDING_MAX: Final = 64
"""Commands of one tenant's applications over AMQP that wait to be on disk."""

REPLY_TTL_S: Final = 86_400.0
"""How long what became of a command is kept for an application that does not come; the registry has it longer."""

TOLD_S_MAX: Final = 10.0
"""Longest wait for a tenant's store; then a gateway says it again later."""

DOCUMENT_BYTES_MAX: Final = 256 * 1024
"""A command over HTTP: its payload is base64, or JSON text in JSON."""

RESPONSE_BYTES_MAX: Final = 64 * 1024
"""Of a device's response what the registry keeps; the lake has all of it."""

KEY_CHARACTERS_MAX: Final = 255
"""An idempotency key: a UUID has 36."""

CORRELATION_CHARACTERS_MAX: Final = 255
"""A correlation id, and a reply address, of an application."""
