"""Limits of commands at the hub, with unit and reason. Limits of a command itself are in `bridge.limits`."""

from __future__ import annotations

from typing import Final

from cloud.hub.limits import REGISTRY_IDLE_S_MAX

TTL_S_DEFAULT: Final = 3_600.0
"""Default time to live of a command: how long its sender waits for the device."""

ONLINE_TTL_S_DEFAULT: Final = 10.0
"""Default time of an online command: a device on a slow link answers within seconds, and its sender waits."""

ONLINE_TTL_S_MAX: Final = 300.0
"""Longest time of an online command: as long as a request may wait for its outcome (`WAIT_S_MAX`)."""

KEEP_AGAIN_S: Final = 0.5
"""Pause before a gateway's answer to an online command is stored again after a failure. Each further one is twice as
long: applications may get the answer with each attempt."""

ONLINE_SENDING_MAX: Final = 256
"""Online commands over AMQP of one tenant that wait for their outcome, 2 KiB each plus the payload."""

GATEWAY_COMMANDS_MAX: Final = 1_000
"""Open commands to one gateway: more means that it is away, or that an application sends in a loop."""

HELD_LOOKS_MAX: Final = 50
"""Gateways with held commands that are looked at in one `POLL_INTERVAL_S`, some 2 ms of the processor each; the longest
waiting first, so none is left out."""

UNDER_WAY_MAX: Final = 64
"""Commands in flight to a gateway: 4 MiB of the largest."""

POLL_INTERVAL_S: Final = 1.0
"""Interval of polling for expired commands, and for commands and receipts of other hubs and processes: five queries.
Notices of a PostgreSQL server make a look at single commands earlier."""

AT_ONCE_MAX: Final = 500
"""Commands in one transaction of polling."""

KEPT_S: Final = 30 * 86_400.0
"""Time that a completed command and its response are kept: 0.5 KiB each plus its payload."""

COUNT_INTERVAL_S: Final = 10.0
"""Interval of counting by state and deleting old commands: it walks an index of all."""

PAGE_MAX: Final = 1_000
"""Commands in one page of the API."""

SELECTED_COMMANDS_MAX: Final = 500
"""Gateways of one command that is sent by labels: 2 ms of the registry each."""

LATE_COMMIT_S: Final = 2.0 * REGISTRY_IDLE_S_MAX
"""Time for which commands are looked for again after a new one: a command with a smaller number may be committed later.
The registry ends a transaction that does nothing for half of it."""

WAIT_S_MAX: Final = 300.0
"""Maximum wait of one request for the outcome of a command."""

REQUESTS_MAX: Final = 256
"""Requests that wait for the registry's thread, about a millisecond each; more are refused with a retry."""

WAITING_MAX: Final = 1_000
"""Requests that wait for the outcome of a command."""

SENDING_MAX: Final = 64
"""Commands over AMQP of one tenant that wait to be on disk."""

REPLY_TTL_S: Final = 86_400.0
"""Time that an outcome is stored for an application that is away; the registry has it longer."""

OUTCOME_S_MAX: Final = 10.0
"""Maximum wait for a tenant's store; then the gateway repeats its news later."""

DOCUMENT_BYTES_MAX: Final = 256 * 1024
"""Bytes of a command over HTTP: its payload is base64, or JSON text in JSON."""

RESPONSE_BYTES_MAX: Final = 64 * 1024
"""Bytes of a device's response that the registry keeps; the lake has all of it."""

KEY_CHARACTERS_MAX: Final = 255
"""Characters of an idempotency key; a UUID has 36."""

CORRELATION_CHARACTERS_MAX: Final = 255
"""Characters of an application's correlation id and reply address."""
