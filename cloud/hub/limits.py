"""Every bound of the hub but the landing's (`cloud.lake.limits`), with unit and reason."""

from __future__ import annotations

GATEWAYS_MAX = 100_000
"""Gateways kept in memory for the API (about 2 KB each); beyond it a new one is refused: a hub is one process."""

CONNECTIONS_MAX = 20_000
"""Open AMQP connections: one a gateway, and room for old ones that have not timed out yet (about 8 KB each)."""

MEMORY_BYTES_MAX = 1024 * 1024 * 1024
"""Bytes the process may take. When it takes more nobody new is let in, and connections that hold most are closed until
it does not. Idle it takes 140 MiB; what waits for the landing, a landing, and `HELD_HALF_SENT_BYTES_MAX` fit below."""

HELD_HALF_SENT_BYTES_MAX = 192 * 1024 * 1024
"""Bytes all gateways' connections may hold together in half-sent messages, links and unread answers: twelve of the
largest messages at once, of any gateway half of that. Where most is held only one connection is read on when three
quarters are taken; then the one that holds most is closed. Connections whose peers have not said who they are have
three quarters of this for themselves."""

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of one AMQP message of a gateway: the largest message it takes itself, which is a batch of its own."""

FRAME_BYTES_MAX = 32 * 1024
"""Bytes of one AMQP frame of a peer: for as long as a connection is there Proton keeps the memory of the largest piece
it had to hold, for the connection and for each delivery that was under way at the same time."""

TENANT_CONNECTIONS_MAX = 15_000
"""Connections of one tenant unless configured otherwise: the last quarter of all is for others."""

TENANT_APPLICATIONS_MAX = 5_000
"""The same of its applications: a third of that, so that they leave places for gateways."""

TENANT_GATEWAYS_MAX = 75_000
"""Gateways of one tenant unless configured otherwise: the last quarter of `GATEWAYS_MAX` is for others."""

TENANT_STORED_BYTES_MAX = 1024 * 1024 * 1024
"""Bytes one tenant's applications keep unless configured otherwise: they share the medium with registry and lake."""

COMMAND_KEYS_KEPT_S = 86_400.0
"""How long an idempotency key of a command is kept at least: 0.3 KiB each, and as many as commands were sent."""

COMMAND_KEYS_FORGOTTEN_MAX = 500
"""Idempotency keys deleted in one transaction."""

TENANT_COMMANDS_MAX = 100_000
"""Commands of one tenant that are not over, unless configured otherwise: with payloads of 1 KiB 100 MiB of the
registry."""

RATE_AHEAD_S = 10.0
"""A tenant with `bytesPerSecond` may send so many seconds' worth of it at once: gateways send in batches, and one that
comes back has a backlog."""

RATE_LOOK_S_MIN = 0.01
"""Least time between two looks at what such a tenant owes: a loop's timer comes a little early."""

TENANT_WAITING_BYTES_MAX = 96 * 1024 * 1024
"""Bytes of one tenant that wait to be landed unless configured otherwise: three quarters of what may wait in all before
gateways are read by their shares (`cloud.lake.limits.PENDING_BYTES_MAX`)."""

IDLE_TIMEOUT_S = 60.0
"""Silence after which a gateway counts as gone (AMQP 1.0 section 2.4.5)."""

GATEWAY_NAME_CHARACTERS_MAX = 255
"""Characters in a gateway's name: the registry's column."""

WRITE_BYTES_MAX = 1024 * 1024
"""Bytes a gateway may leave unread in our buffer before it counts as congested."""

STATUS_EVERY_S = 5.0
"""States are gathered this long before they become a file of `gateway_status`; a crash may lose that much of them."""

STATUS_ROWS_MAX = 50_000
"""States gathered at most; the oldest go first (they are observations, not messages)."""

LEDGER_RANGES_MAX = 10_000
"""Ranges taken from one ledger document."""

STATEMENTS_MAX = 10_000
"""Statements taken from one manifest document; a gateway puts 50 into one."""

SEEN_EVERY_S = 10.0
"""How often the times gateways were last heard of are written to the registry: one transaction for all."""

PRESENCE_EVERY_S = 1.0
"""How often connections that came and went are written to the registry: one transaction for all."""

CONNECTION_LINES_EVERY_S = 10.0
"""A gateway that connects more often than this has one line in the log for all of them."""

HELD_SHOWN_MAX = 20
"""Connections of which something is held, in one answer of the API."""

HISTORY_SECONDS = 60
"""Seconds of rate kept for each gateway and for the hub: the console's sparkline."""

LATENCIES_KEPT = 512
"""Commit latencies kept for the percentiles shown."""

PAGE_GATEWAYS_MAX = 1_000
"""Gateways in one answer of the API; the rest comes page by page."""

MARKS_SHOWN_MAX = 1_000
"""Marks in one answer of the API about a gateway."""

REGISTRY_ATTEMPTS_MAX = 15
"""Times a transaction is tried that another hub's excluded; then what it was for is held and tried later."""

REGISTRY_RETRY_S_MAX = 0.05
"""Longest pause before the second try, drawn by lot; before the third twice that, and so on. A transaction takes some
milliseconds, so all tries together (3 s) outlast what other hubs have to say of the same gateways."""

REGISTRY_CONNECT_S_MAX = 5
"""Seconds to connect to PostgreSQL. The landing waits so long, not the loop."""

REGISTRY_SILENCE_S_MAX = 30
"""Seconds after which a PostgreSQL that says nothing counts as gone (TCP keepalives and unacknowledged data)."""

REGISTRY_STATEMENT_S_MAX = 30
"""Seconds PostgreSQL may take for one statement, and may wait for the next of a transaction: a hub that froze within
one holds no rows."""

SHUTDOWN_S = 20.0
"""Longest wait for the landing in progress at the end; systemd and Kubernetes kill after 30 s or more."""

OPENINGS_MAX = 256
"""Openings of its store a gateway may name: it remembers 64."""

LOGS_KEPT = 10_000
"""Logs of a gateway's store of which the registry keeps how far they went, those that moved last: 6 bytes each, written
anew with each landing of the gateway that moves one."""

GIVEN_BACK_BYTES_MIN = 4 * 1024 * 1024
"""A group that waited or landed with more than this leaves memory behind that is worth giving back to the system."""

GIVEN_BACK_AFTER_S = 2.0
"""How long after such a group, when no other has followed: a busy hub uses the memory again."""

GIVEN_BACK_WITHIN_S = 6.0
"""How long after the first such group, whatever follows: of what was much, most may be over."""

LANDED_BYTES_A_SECOND = 64 * 1024 * 1024
"""What a gateway's bytes count in its share of the landing's time, beside the making of its rows, which is measured:
data file and log together take so many a second."""

SPACES_MAX = 128
"""Tenants whose applications are served: each has a store of its own, two threads and about 1 MiB."""

LIVE_WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Bytes that wait for slow applications of all tenants together, shared alike among the spaces that are open. What is
more is dropped and counted; the lake has it."""

LIVE_WAITING_BYTES_MIN = 1024 * 1024
"""What every tenant may have waiting at least: with `SPACES_MAX` of them twice what all may have."""

COPIES_WAITING_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of messages that wait to be copied for applications, shared alike among the spaces that are open."""

COPIES_SLICE_S = 0.002
"""How long copies are made before others have their turn: a chunk more than that at most."""

COPIES_REST = 4.0
"""For how many times as long the loop is for others then: copies have a fifth of it."""

COPIED_AT_ONCE = 32
"""Messages of a run between two looks at the clock: about 1 ms."""

VERSIONS_KEPT = 20
"""Versions of a gateway's configuration the registry keeps: with 5 KiB each 100 KiB a gateway."""

LABELS_MAX = 32
"""Labels of a gateway: some rows each."""

LABELS_BYTES_MAX = 16 * 1024
"""Of a request that changes labels: several times as many as a gateway may have."""

SELECTOR_CHARACTERS_MAX = 255
"""Characters of a selector: it is part of a key of the registry, and four requirements of usual length."""

SELECTORS_MAX = 500
"""Selectors of a tenant that have a configuration: each gateway is held against all of them."""

FALLING_AT_ONCE_MAX = 200
"""Gateways that are sent what their selector has in one transaction of a running hub: about 0.2 s."""

FALLING_REST = 20.0
"""For how many times as long as a look took it is not looked again who falls under which selector."""

GATEWAYS_AT_ONCE_MAX = 10_000
"""Gateways of one roll-out, or sent a version by one command: each is a signature (0.1 ms) and a row."""

CONFIGURATIONS_LOOKED_AT_S = 1.0
"""How often it is looked for what somebody has sent to gateways, and for what is next in a roll-out."""

CONFIRM_S_RANGE = (2.0, 86_400.0)
"""Least and most time a gateway tries a version for: a connection is up again in a second at best, and whoever waits
longer than a day for a confirmation has forgotten the change."""

ROLLOUTS_KEPT = 100
"""Roll-outs that are over which the registry keeps, each with its gateways."""

REPORTS_AT_ONCE_MAX = 200
"""Reports of gateways' configurations in one transaction; a gateway has 4 on the way at most."""

FAILED_SHOWN_MAX = 20
"""Gateways a problem names that have not taken what is wanted of them."""

WHY_CHARACTERS_MAX = 2_000
"""Of a gateway's reason that the registry keeps: some ten errors of a file."""

TAKEOVERS_SHARED = 3
"""Takeovers of one gateway after which two machines use its identity: a broken connection makes one, and a restart in
the same minute another."""

TAKEOVERS_WITHIN_S = 180.0
"""Seconds within which these takeovers come: two machines with one identity displace each other every 15 s at most, the
limit of a gateway's backoff."""
