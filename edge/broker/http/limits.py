"""Fixed limits of HTTP. Those that can be configured are in `edge.broker.limits.Limits`."""

from __future__ import annotations

from typing import Final

from edge.broker.limits import KIB, MIB

HTTP_BODY_BYTES_MAX: Final = 4 * MIB
"""Size of a request body, or `packet_bytes_max` if that is less. A batch of 10 000 readings has some 2 MiB."""

HTTP_BATCH_MAX: Final = 10_000
"""Messages of one batch: some 20 ms of work in the loop."""

HTTP_GZIP_MEMBERS_MAX: Final = 16
"""Members of a gzip body. Programs write one, tools that append write some. The rest is copied after each member, so
thousands of empty ones would take seconds."""

HTTP_REQUESTS_MAX: Final = 256
"""Publishing requests in progress at once; each waits for one commit, some milliseconds."""

HTTP_POLLS_MAX: Final = 1_000
"""Requests waiting for a message; each holds a socket and about 20 KiB."""

HTTP_POLLS_OF_ONE_MAX: Final = 250
"""Waiting requests of one user, or of one remote address without authentication. A fleet may share either."""

HTTP_LOCK_S: Final = 30
"""Default seconds of a lock: some round trips of a poor cellular link."""

HTTP_LOCK_S_MAX: Final = 300
"""Longest lock in seconds. A device that disappeared or lost its user blocks a message for no longer."""

HTTP_LOCKS_MAX: Final = 4_000
"""Locked messages at once. Each takes about 2.5 KiB without its body, and is a consumer that its queue skips at each
delivery: 0.6 ms for a thousand."""

HTTP_LOCKS_OF_ONE_MAX: Final = 1_000
"""Locked messages of one user, or of one remote address without authentication. A fleet may share either."""

HTTP_SETTLED_REMEMBERED_MAX: Final = 4_096
"""Remembered settled locks: a client that lost the answer may repeat its DELETE."""

HTTP_BODY_S_MAX: Final = 30.0
"""Seconds from the head of a request to the end of its body: 4 MiB in 30 s is a poor cellular link."""

HTTP_ANSWER_S_MAX: Final = 30.0
"""Seconds that a request waits for the commit, or for the consumer of an anycast address."""

HTTP_STRANGERS_MAX: Final = 512
"""Unauthenticated HTTP connections, not counting waiting polls (`HTTP_POLLS_MAX`). Each takes about 40 KiB with a head
of 8 KiB, and 0.25 ms of the loop for a request. At the limit the longest idle one is closed."""

HTTP_STRANGERS_OF_ONE_MAX: Final = 256
"""Unauthenticated HTTP connections of one remote address; many devices may share one."""

HTTPS_STRANGERS_MAX: Final = 256
"""Unauthenticated HTTPS connections. TLS takes some 10 KiB more, and 2 ms of CPU for the handshake."""

HTTPS_STRANGERS_OF_ONE_MAX: Final = 128
"""Unauthenticated HTTPS connections of one remote address."""

HTTP_USERS_MAX: Final = 2_000
"""Authenticated HTTP and HTTPS connections, not counting waiting polls (`HTTP_POLLS_MAX`)."""

HTTP_USERS_OF_ONE_MAX: Final = 500
"""Authenticated connections of one user; a fleet may share one."""

HTTP_HEAD_BYTES_MAX: Final = 16 * KIB
"""Size of request line and header fields: enough for a bearer token of 7 KiB and as much again."""

HTTP_HEAD_S_MAX: Final = 10.0
"""Seconds from the first byte of a connection or request to the end of its header fields."""

HTTP_WRITE_S_MAX: Final = 30.0
"""Seconds that a client may not read an answer that exceeds the socket's buffers."""

HTTP_WAIT_S_MAX: Final = 300.0
"""Longest wait for a message in seconds, below the timeouts of proxies and cellular NATs."""

HTTP_WAIT_S_MIN: Final = 0.25
"""Shortest wait in seconds, as a message may have to be read from disk."""

SESSIONS_MAX: Final = 64
"""Sessions of browsers at once at a gateway. Each is a user with a console open; for a new one a session of the user
with the most ends."""

SESSIONS_OF_ONE_MAX: Final = 4
"""Sessions of one user: a desk, a phone, and two that were not signed out."""

SESSION_IDLE_S: Final = 1_800.0
"""Seconds without a request after which a session ends. An open page sends requests."""

SESSION_STAY_S: Final = 43_200.0
"""The same for a session that stays: a shift and the way home."""

SESSION_LIFE_S: Final = 30 * 86_400.0
"""Seconds after which every session ends: a page that is open for ever is not signed in for ever."""

SESSION_TOUCHES: Final = 4
"""Times in an idle period that the use of a session is written. After a power cut it may end this share earlier; on a
card a page that is open all day writes 3 MB."""

SESSION_KEEP_S: Final = 60.0
"""Seconds between two looks at which uses are to be written."""

SESSION_CHECK_S: Final = 5.0
"""Seconds after which a node looks whether another one has ended a session: one row by its key."""

SESSION_CHECK_S_MAX: Final = 1.0
"""Seconds for which a page waits for that look. It goes on without it: the registry may be silent."""

SESSION_LOOKUP_S_MAX: Final = 3.0
"""Seconds for which a page waits until an unknown token is looked up, which it cannot do without."""

SESSION_ASKS_MAX: Final = 256
"""Questions that wait for the archive of sessions, some milliseconds each: sign-ins of a change of shift."""

SESSION_UNKNOWN_S: Final = 5.0
"""Seconds for which a token that was not found is not looked up again; a browser has none before it is kept."""

SESSION_LOOKUPS_PER_S: Final = 50
"""Unknown tokens from one address that are looked up in a second: 2 % of the time of a thread."""

SESSION_LOOKUPS_BURST: Final = 1_000
"""The same after a pause: the people of a hub that has stopped come at once, behind one proxy."""

SESSION_LOOKUPS_MAX: Final = 64
"""Unknown tokens that are looked up at once, some milliseconds each. Anybody can make one up."""

SESSIONS_ENDED_KEPT_MAX: Final = 4_096
"""Keys of ended sessions that a node knows, 100 bytes each: a request that is on its way must not bring one back."""

SESSION_RENEWAL_S: Final = 20.0
"""Seconds for which one of several nodes renews a token at the issuer; then another one tries."""

SESSION_LINK_S: Final = 60.0
"""Seconds in which the link of `waypost open` has to be used."""

SESSION_LINKS_MAX: Final = 16
"""Unused links; the oldest is dropped for a new one."""

OIDC_SIGN_IN_S: Final = 600.0
"""Seconds after which a browser forgets a sign-in at the issuer: a second factor has to be found first."""

OIDC_RENEW_BEFORE_S: Final = 30.0
"""Seconds before the end of a token at which the next one is requested."""

OIDC_RENEW_RETRY_S: Final = 10.0
"""Seconds until the next attempt while the issuer does not answer; the session ends with its token."""

SESSION_BODY_BYTES_MAX: Final = 16 * KIB
"""Size of the JSON body of a sign-in: a bearer token of 7 KiB, and as much again."""

PAGE: Final = 50
"""Entries of a page of a table unless the request says otherwise: two screens."""

PAGE_MAX: Final = 500
"""Most entries of a page of a table: some 100 kB."""

LOG_LINES: Final = 200
"""Lines of a page of the log unless the request says otherwise: some screens."""

LOG_LINES_MAX: Final = 2_000
"""Most lines of a page of the log: all that are kept."""

LIVE_LOG_LINES_MAX: Final = 100
"""Lines that a stream gets at once, each second: a person reads fewer."""

LIVE_LOG_CHARACTERS_MAX: Final = 24_000
"""Characters of these lines: less than half of what a stream may be behind, as JSON is longer than its text."""

API_BODY_BYTES_MAX: Final = 64 * 1024
"""Bytes of a document that people and scripts send: rights, a selection of 1 000 messages."""

API_USER_PER_S: Final = 50.0
"""Requests to the API a second of one user. A page sends a few every two seconds, a command that follows one a second;
a script that changes one thing after the other sends some 30."""

API_USER_BURST: Final = 500
"""Requests to the API that a user may send at once after a pause: ten pages that open at the same time."""

API_ADDRESS_PER_S: Final = 500.0
"""Requests to the API a second from one remote address without valid credentials. A proxy has those of all people."""

API_ADDRESS_BURST: Final = 5_000
"""Requests to the API without valid credentials from one remote address at once after a pause."""

API_RATES_MAX: Final = 4_096
"""Users, and addresses, of which the rate is known, 200 bytes each; the one that has paused for longest is dropped."""
