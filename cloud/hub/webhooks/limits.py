"""Limits of webhooks, with unit and reason."""

from __future__ import annotations

from typing import Final

WEBHOOKS_TENANT_MAX: Final = 20
"""Webhooks of one tenant, and of the whole fleet: each gets every event that it wants, one request each."""

WEBHOOKS_MAX: Final = 500
"""Webhooks of all tenants: a hub looks at each of them every second."""

WEBHOOK_DOCUMENT_BYTES_MAX: Final = 16 * 1024
"""Bytes of a document about a webhook."""

WEBHOOK_BODY_BYTES_MAX: Final = 20_000
"""Bytes of a request's body, as Standard Webhooks recommends; the `data` of a larger event is left out."""

POST_S_MAX: Final = 10.0
"""Seconds for a request, from the resolution of the name to the answer. A server that takes longer is to answer first,
and to work later."""

ADDRESS_S_MAX: Final = 3.0
"""Seconds for the connection to one address of a name: behind one that drops packets, the next ones have their turn."""

NAME_THREADS: Final = 16
"""Threads that resolve names of tenants' webhooks. A resolver takes up to 30 s for a name server that is silent."""

NAMES_TENANT_MAX: Final = 4
"""Names of one tenant that are being resolved at a time: it leaves threads to the others."""

OPERATOR_NAME_THREADS: Final = 4
"""Threads that resolve names of the webhooks of the whole fleet; no tenant takes them."""

TESTS_AT_ONCE_MAX: Final = 16
"""Tests of webhooks that a hub sends at a time."""

TESTS_TENANT_MAX: Final = 2
"""Tests of webhooks of one tenant that a hub sends at a time."""

ANSWER_BYTES_MAX: Final = 4_096
"""Bytes of an answer that are read; behind more the connection is not used again."""

ANSWER_CHARACTERS_SHOWN: Final = 200
"""Characters of an error answer that the failure shows."""

SENT_AT_ONCE_MAX: Final = 64
"""Webhooks that one hub sends to at a time: one connection each."""

SENT_AT_ONCE_TENANT_MAX: Final = 4
"""Webhooks of one tenant that one hub sends to at a time: a tenant with slow servers delays its own only."""

TURN_S: Final = 20.0
"""Seconds that a webhook is sent to at a stretch, when others wait for their turn."""

WEBHOOKS_INTERVAL_S: Final = 1.0
"""Longest time until a hub sees a new event, or that an attempt is due."""

LOOK_PAUSE_S: Final = 0.2
"""Shortest time between two looks: events that come in a row are looked at together."""

WEBHOOKS_IDLE_S: Final = 5.0
"""Interval of looking for webhooks while there is none."""

PROGRESS_S: Final = 1.0
"""Interval of writing how far a webhook has got. A hub that is killed repeats the events of this time."""

CLAIM_SILENT_S: Final = 45.0
"""Time without a write of the sending hub after which another one goes on. It is longer than a request and a write of
the registry together, so that two hubs do not send at a time."""

SCANNED_MAX: Final = 5_000
"""Events that are passed over before that is written to the registry: so many are read again after a restart."""

PLACE_S: Final = 60.0
"""Time after which a place that has moved is written, also where no event was wanted. Events of this time are looked at
again after a restart, and with a changed filter."""

LOCAL_PAUSE_S: Final = 30.0
"""Time that a hub leaves a webhook alone when it could not write its outcome."""

WEBHOOK_PAGE: Final = 50
"""Events that are read at a time for a webhook."""

RETRY_S_FIRST: Final = 5.0
"""Pause before the second attempt; doubled for each further one."""

RETRY_S_MAX: Final = 3_600.0
"""Longest pause between two attempts, also of those that a server asks for with Retry-After."""

RETRY_JITTER: Final = 0.2
"""Share of a pause by which it is shorter or longer, so that the webhooks of one server do not come at once."""

FAILED_S_MAX: Final = 5 * 86_400.0
"""Time without a delivery after which a webhook is paused: longer than a weekend with holidays."""

FAILED_ATTEMPTS_MIN: Final = 100
"""Failed attempts before a webhook is paused: those of some four days. A clock that is wrong for a minute pauses none,
and neither do hubs that were down for a week."""

SECRET_OVERLAP_S_MAX: Final = 7 * 86_400
"""Longest time that requests are signed with the secret before, too."""
