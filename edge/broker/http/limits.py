"""Bounds of HTTP that no configuration changes; those it may change are `edge.broker.limits.Limits`."""

from __future__ import annotations

from typing import Final

from edge.broker.limits import KIB, MIB

HTTP_BODY_BYTES_MAX: Final = 4 * MIB
"""One request's body; `packet_bytes_max` counts too where it is less. A batch of 10 000 readings is some 2 MiB."""

HTTP_BATCH_MAX: Final = 10_000
"""Messages of one batch: some 20 ms of the loop's time."""

HTTP_GZIP_MEMBERS_MAX: Final = 16
"""Members of one gzip body. Programs write one, tools that append write some; what follows a member is copied, so
thousands of empty ones would take seconds."""

HTTP_REQUESTS_MAX: Final = 256
"""Requests that publish, under way at once; each waits for one commit, some milliseconds."""

HTTP_POLLS_MAX: Final = 1_000
"""Requests waiting for a message; each holds a socket and about 20 KiB."""

HTTP_POLLS_OF_ONE_MAX: Final = 250
"""Those of one user, or of one remote address where nobody has to say who he is: a fleet may share either."""

HTTP_LOCK_S: Final = 30
"""Default lock of a fetched message: some round trips of a poor
cellular link."""

HTTP_LOCK_S_MAX: Final = 300
"""Longest lock of a fetched message. A device that went away, or lost its user, holds a message no longer than this."""

HTTP_LOCKS_MAX: Final = 4_000
"""Messages locked at once. Each takes about 2.5 KiB, without its body, and is a consumer that its queue passes over at
each delivery: 0.6 ms for a thousand."""

HTTP_LOCKS_OF_ONE_MAX: Final = 1_000
"""The same for one user, or for one remote address without logins: a fleet may share either."""

HTTP_SETTLED_REMEMBERED_MAX: Final = 4_096
"""Locks that were settled last and are remembered: a client that lost the answer may repeat its DELETE."""

HTTP_BODY_S_MAX: Final = 30.0
"""From a request's head to the end of its body: 4 MiB in 30 s is a poor cellular link."""

HTTP_ANSWER_S_MAX: Final = 30.0
"""How long a request waits for its answer: of the disk, or of the consumer of an anycast address."""

HTTP_STRANGERS_MAX: Final = 512
"""Connections over HTTP over which nobody has shown who he is, those of `HTTP_POLLS_MAX` apart; about 40 KiB each with
a head of 8 KiB, and 0.25 ms of a turn of the loop where each asks for something. The stillest go for those that come: a
request that comes at once needs its place for a round trip."""

HTTP_STRANGERS_OF_ONE_MAX: Final = 256
"""Those of one remote address; many devices may be behind one."""

HTTPS_STRANGERS_MAX: Final = 256
"""The same with TLS, which holds some 10 KiB more, and takes 2 ms of a processor to begin."""

HTTPS_STRANGERS_OF_ONE_MAX: Final = 128
"""Those of one remote address."""

HTTP_USERS_MAX: Final = 2_000
"""Connections over HTTP and HTTPS of users, those of `HTTP_POLLS_MAX` apart."""

HTTP_USERS_OF_ONE_MAX: Final = 500
"""Those of one user: a fleet may share one."""

HTTP_HEAD_BYTES_MAX: Final = 16 * KIB
"""Request line and header fields: a bearer token of 7 KiB and twice as much again."""

HTTP_HEAD_S_MAX: Final = 10.0
"""From a connection's or a request's first byte to the end of its header fields: a poor link's few round trips."""

HTTP_WRITE_S_MAX: Final = 30.0
"""How long a client may leave an answer unread that does not fit the socket's buffers."""

HTTP_WAIT_S_MAX: Final = 300.0
"""Longest wait a device may ask for: below what proxies and cellular NATs cut."""

HTTP_WAIT_S_MIN: Final = 0.25
"""Shortest wait: a message has to be read from the disk before it can be given."""
