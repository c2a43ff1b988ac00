"""Limits of the hub, with unit and reason. Those of the landing are in `cloud.lake.limits`."""

from __future__ import annotations

CONNECTIONS_MAX = 20_000
"""Open AMQP connections (about 8 KB each): one for each gateway, and room for old ones that have not timed out yet."""

LEFT_KEPT_S = 120.0
"""Time that a gateway stays in memory after its connection has ended: longer than the registry takes to have what this
hub knew of it, and several evaluations of the alert rules."""

LEFT_GATEWAYS_MAX = 20_000
"""Such gateways at most, about 2 KB each: as many as can be connected."""

COUNTED_EVERY_S = 5.0
"""Interval of counting the gateways of the registry."""

COUNTED_REST = 20.0
"""Pause after a count, in multiples of the time that it took: counting takes a twentieth of a thread at most."""

MEMORY_BYTES_MAX = 1024 * 1024 * 1024
"""Resident bytes of the process. Above this, new connections are refused and those with the most memory are closed.

An idle hub takes 140 MiB. Pending data, a landing and `HELD_HALF_SENT_BYTES_MAX` fit below the limit.
"""

HELD_HALF_SENT_BYTES_MAX = 192 * 1024 * 1024
"""Bytes that all gateways' connections may hold together in half-sent messages, links and unread answers.

Room for twelve of the largest messages; one gateway may use half of it. When three quarters are used, only the
connection with the most is read on; then that one is closed. Unidentified connections have three quarters of this for
themselves.
"""

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of one AMQP message of a gateway: the largest message that a gateway accepts, as a batch of its own."""

FRAME_BYTES_MAX = 32 * 1024
"""Bytes of one AMQP frame of a peer. For the life of a connection Proton keeps the memory of the largest piece it held,
for the connection and for each concurrent delivery."""

TENANT_CONNECTIONS_MAX = 15_000
"""Default connections of one tenant; a quarter of `CONNECTIONS_MAX` is left for the others."""

TENANT_APPLICATIONS_MAX = 5_000
"""Default connections of one tenant's applications: a third, so that gateways find room."""

TENANT_GATEWAYS_MAX = 75_000
"""Default gateways of one tenant: what four hubs serve. Each takes 1 to 2 KB of the registry."""

TENANT_STORED_BYTES_MAX = 1024 * 1024 * 1024
"""Default bytes that one tenant's applications store: they share the disk with registry and lake."""

ONLINE_ANSWER_S = 2.0
"""Time beyond the end of an online command in which its gateway's report counts before it is called unknown: a report
takes a commit at the gateway, a batch and a landing."""

DOUBTED_ANSWER_S = 60.0
"""Time beyond the end of a command of a restored registry in which its gateway's report counts before its outcome is
called unknown: a gateway counts the time to live from the arrival, by a clock of its own."""

COMMAND_KEYS_KEPT_S = 86_400.0
"""Minimum life of a command's idempotency key; each takes 0.3 KiB, one for each command."""

COMMAND_KEYS_FORGOTTEN_MAX = 500
"""Idempotency keys deleted in one transaction."""

TENANT_DEVICES_MAX = 1_000_000
"""Default devices of one tenant in the device registry: 1.2 KB each with a password on SQLite, 0.8 KB on
PostgreSQL."""

TENANT_COMMANDS_MAX = 100_000
"""Default open commands of one tenant: 100 MiB of the registry with payloads of 1 KiB."""

TENANT_QUOTAS_MAX = 10_000
"""Tenants with a quota that an operator has set or removed: every hub reads all of them after a change, in 50 ms."""

QUOTAS_CHECK_S = 2.0
"""Pause between two looks for changed quotas, if no notice comes before."""

RATE_AHEAD_S = 10.0
"""Seconds of `bytesPerSecond` that a tenant may send at once: gateways send in batches, and a returning one has a
backlog."""

RATE_CHECK_S_MIN = 0.01
"""Minimum time between two checks of a rate: a loop's timer fires a little early."""

RATE_CHECK_S_MAX = 5.0
"""Maximum time between them: the share of a hub grows when another one has ended."""

TENANT_WAITING_BYTES_MAX = 96 * 1024 * 1024
"""Default pending bytes of one tenant: three quarters of `cloud.lake.limits.PENDING_BYTES_MAX`, from which gateways are
read by their shares."""

IDLE_TIMEOUT_S = 60.0
"""Silence after which a gateway is considered gone (AMQP 1.0 section 2.4.5)."""

GATEWAY_NAME_CHARACTERS_MAX = 255
"""Characters in a gateway's name: width of the registry's column."""

WRITE_BYTES_MAX = 1024 * 1024
"""Bytes that a gateway may leave unread in the write buffer before it counts as congested."""

STATUS_EVERY_S = 5.0
"""Time to gather states for one file of `gateway_status`; a crash may lose that much of them."""

STATUS_ROWS_MAX = 50_000
"""States gathered at most; the oldest are dropped first (they are observations, not messages)."""

LEDGER_RANGES_MAX = 10_000
"""Ranges in one ledger document."""

STATEMENTS_MAX = 10_000
"""Statements in one manifest document; a gateway sends 50."""

SEEN_EVERY_S = 10.0
"""Interval of writing last-seen times to the registry, in one transaction."""

FOLD_EVERY_S = 60.0
"""Interval of folding the log of commits into the rows of gateways, marks and lineages; a landing writes one row for
all its gateways. The list of gateways at other hubs shows landed messages that much later."""

FOLD_RANGES_MAX = 50_000
"""Ranges in the log of a hub that are folded at once (0.5 s): a takeover of its gateways folds them too, and must not
take longer."""

PRESENCE_EVERY_S = 1.0
"""Interval of writing connects and disconnects to the registry, in one transaction."""

CONNECTION_LINES_EVERY_S = 10.0
"""Interval of log lines about connects of one gateway."""

HELD_SHOWN_MAX = 20
"""Connections with held data in one response of the API."""

HISTORY_SECONDS = 60
"""Seconds of message rates kept for each gateway and for the hub: the console's sparkline."""

LATENCIES_KEPT = 512
"""Landing latencies kept for the percentiles shown."""

PAGE_GATEWAYS = 50
"""Gateways in one page of the API, unless the client wants another number."""
PAGE_GATEWAYS_MAX = 1_000
"""Gateways in one page of the API."""

SAVED_VIEWS_MAX = 50
"""Views that a user may save: more than a menu can show."""

VIEW_BYTES_MAX = 4 * 1024
"""Bytes of a saved view."""

MARKS_SHOWN_MAX = 1_000
"""Marks in one response of the API about a gateway."""

SPANS_SENT_MAX = 100_000
"""Landed ranges of one gateway that are compared with its statements: 2 MB. A usual gateway has some hundred."""

REGISTRY_ATTEMPTS_MAX = 15
"""Attempts of a transaction that conflicts with another hub's; then its data is held and retried later."""

REGISTRY_RETRY_S_MAX = 0.05
"""Maximum random pause before the second attempt; doubled before each further one. A transaction takes some
milliseconds, so all attempts together (3 s) outlast other hubs' transactions about the same gateways."""

REGISTRY_CONNECT_S_MAX = 5
"""Seconds to connect to PostgreSQL. Blocks the landing, not the loop."""

REGISTRY_SILENCE_S_MAX = 30
"""Seconds of silence after which PostgreSQL is considered gone (TCP keepalives and unacknowledged data)."""

REPAIRED_AT_ONCE = 5_000
"""Rows in one statement while a registry that is older than its lake is repaired: far below
`REGISTRY_STATEMENT_S_MAX` each, however large the fleet is."""

REGISTRY_STATEMENT_S_MAX = 30
"""Seconds for one statement of PostgreSQL."""

REGISTRY_IDLE_S_MAX = 5
"""Seconds between two statements of a transaction on PostgreSQL: other hubs wait for the rows that a stopped hub has
locked."""

USERS_CHECK_INTERVAL_S = 1.0
"""Interval of looking for users that another hub or process has changed: one row. Notices make a look earlier."""

SIGN_OUTS_CHECK_INTERVAL_S = 5.0
"""Interval of looking for logouts of the issuer at other hubs: one row. Notices make a look earlier."""

HUBS_INTERVAL_S = 5.0
"""Interval of writing that this hub is there, and of reading gateways at other hubs: some ten milliseconds for 10 000
of them. Notices of connects and disconnects make a look earlier."""

HUBS_PAUSE_S_MIN = 1.0
"""Minimum pause between two looks at the other hubs: a hub writes connects as often."""

HUBS_REST = 20.0
"""Pause between two such looks, as a multiple of the last one's duration."""

HUBS_CLEANUP_S = 3_600.0
"""Interval of deleting the rows of hubs that stopped long ago."""

HUBS_DELETED_MAX = 500
"""Rows of hubs deleted at a time, the oldest first: one short transaction."""

HUB_SILENT_S = 60.0
"""Silence after which a hub counts as gone, and its gateways as disconnected: it writes every `HUBS_INTERVAL_S`, and a
registry that is restarted must not make all hubs seem gone. It is for display and roll-outs, never for landings."""

HUBS_SHOWN_S = 86_400.0
"""Time for which a hub that has stopped or is gone is still shown: replaced machines and pods have new ids."""

NOTICES_RETRY_S = 1.0
"""Seconds before the next attempt to listen for notices: polling goes on, at about this interval."""

NOTICES_GATHER_S = 0.01
"""Seconds from a notice to the look that it causes: a burst of changes is one look of some milliseconds."""

NOTICE_BYTES_MAX = 7_900
"""Bytes of a notice that names the rows which have changed; PostgreSQL sends up to 7 999. A larger one names none."""

NOTICES_ROWS_MAX = 1_000
"""Changed rows that a task remembers until its next look; after more it reads all that may have changed."""

DRAIN_S = 60.0
"""Default maximum time to close the connections of a hub that stops while others serve: 2 000 gateways move at 40 a
second, which costs the others little."""

DRAIN_S_MAX = 3_600.0
"""Longest drain that can be configured: orchestrators end a process after their own time."""

DRAIN_SLICE_S = 1.0
"""Time between two slices of closed connections."""

DRAIN_SLICE_MIN = 32
"""Connections closed in one slice at least: a small fleet does not need the whole time."""

DRAIN_SETTLE_S = 5.0
"""Maximum wait for answers to what a connection has sent before it is closed: some landings."""

DRAIN_RECONNECTS_PER_S = 100.0
"""Connections that are to come back in one second, half of `HANDSHAKES_PER_S`: other gateways connect too."""

HANDSHAKES_PER_S = 200.0
"""TLS handshakes that begin in one second, after a burst: each costs some 2 ms of processor, so a fleet that returns
at once leaves half of a core for landings, and 2 000 gateways are connected within 15 s."""

SHUTDOWN_S = 20.0
"""Maximum wait for the landing in progress at shutdown; systemd and Kubernetes kill after 30 s or more."""

OPENINGS_MAX = 256
"""Openings of its store that a gateway may list: it remembers 64."""

LOGS_KEPT = 10_000
"""Logs of a gateway's store for which the registry keeps the end, the most recent ones: 6 bytes each, written again
with each landing that moves one."""

GIVEN_BACK_BYTES_MIN = 4 * 1024 * 1024
"""Bytes of a group after which freed memory is worth returning to the system."""

GIVEN_BACK_AFTER_S = 2.0
"""Delay after such a group when no other follows: a busy hub uses the memory again."""

GIVEN_BACK_WITHIN_S = 6.0
"""Maximum delay after the first such group."""

LANDED_BYTES_A_SECOND = 64 * 1024 * 1024
"""Landed bytes that count as one second of landing time (data file and log). The making of rows is measured in
addition."""

SPACES_MAX = 128
"""Tenants with an address space: each has a store, two threads and about 1 MiB."""

LIVE_WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Bytes that wait for slow applications of all tenants, shared equally among open spaces. Excess is dropped and
counted; the lake has it."""

LIVE_WAITING_BYTES_MIN = 1024 * 1024
"""Minimum share of a tenant; with `SPACES_MAX` tenants twice the total."""

COPIES_WAITING_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of messages that wait to be copied, shared equally among open spaces."""

COPIES_SLICE_S = 0.002
"""Duration of one slice of copying, exceeded by one chunk at most."""

COPIES_REST = 4.0
"""Pause after a slice, as a multiple of its duration: copies get a fifth of the loop."""

COPIED_AT_ONCE = 32
"""Messages copied between two checks of the clock: about 1 ms."""

VERSIONS_KEPT = 20
"""Versions of a gateway's configuration that the registry keeps: 100 KiB for each gateway at 5 KiB each."""

LABELS_MAX = 32
"""Labels of a gateway: one row each."""

LABELS_BYTES_MAX = 16 * 1024
"""Bytes of a request that changes labels: several times the labels of a gateway."""

SELECTOR_CHARACTERS_MAX = 255
"""Characters of a selector, which is part of a key of the registry: four usual requirements."""

SELECTORS_MAX = 500
"""Selectors of a tenant with a configuration: each gateway is matched against all of them."""

SELECTED_AT_ONCE_MAX = 200
"""Gateways that get the version of their selector in one transaction of a running hub: about 0.2 s."""

MATCHING_REST = 20.0
"""Pause between two matchings of selectors, as a multiple of the last one's duration."""

GATEWAYS_AT_ONCE_MAX = 10_000
"""Gateways of one roll-out or command: each needs a signature (0.1 ms) and a row."""

CONFIGURATIONS_CHECK_INTERVAL_S = 1.0
"""Interval of looking for new versions and for the next step of roll-outs."""

CONFIRM_S_RANGE = (2.0, 86_400.0)
"""Minimum and maximum trial time of a version. A connection is up again in a second at best; after a day no operator
waits for a confirmation."""

ROLLOUTS_KEPT = 100
"""Completed roll-outs that the registry keeps, each with its gateways."""

REPORTS_AT_ONCE_MAX = 200
"""Configuration reports in one transaction; a gateway has 4 in flight at most."""

FAILED_SHOWN_MAX = 20
"""Gateways named in problems about failed configurations."""

HUB_CLOCKS_S = 3_600.0
"""Seconds by which the clocks of two hubs may differ before one deletes sessions that the other has just used: an hour,
as a wrong time zone. Each hub still refuses by its own clock what is over."""

HUB_SESSIONS_MAX = 1_024
"""Sessions of browsers at once, about 2 KiB each; tenants share them equally when they are used up."""

USAGE_DAYS_KEPT = 400
"""Days of the usage of a tenant that the registry keeps: a year, and a month for its bill. 20 KiB of each tenant."""

USAGE_WRITE_S = 30.0
"""Interval of writing the usage of tenants: a crash loses as much of it, never a message."""

TENANT_USERS_MAX = 5_000
"""Users of one tenant that are added over HTTP: a quarter of the users of a hub, so that others find room."""

PASSWORD_OVERLAP_S_MAX = 7 * 86_400.0
"""Longest time for which an old password stays valid: a week to set the new one in every application."""

FILES_BESIDE_CONNECTIONS = 1_024
"""Open files of a hub in addition to its connections: stores of 128 tenants, registry, data files of landings."""

REQUEST_KEYS_KEPT_S = 86_400.0
"""Time that idempotency keys of requests are kept: a client that repeats one does so within hours."""

REQUEST_KEYS_KEPT_S_MIN = 3_600.0
"""Time that a key with an answer is kept where a user or tenant has as many as it may: a client repeats a request that
got no answer within minutes."""

REQUEST_KEYS_OF_ONE_MAX = 1_000
"""Idempotency keys of one user that are kept: one for each minute and a half of a day, some 2 MiB of answers."""

REQUEST_KEYS_OF_TENANT_MAX = 5_000
"""Idempotency keys of one tenant that are kept, so that others find room in the registry."""

REQUEST_KEYS_FORGOTTEN_MAX = 20
"""Old keys deleted with each new one: more than come, some milliseconds."""

IDEMPOTENCY_KEY_CHARACTERS_MAX = 255
"""Characters of an idempotency key; a UUID has 36."""

IDEMPOTENT_BODY_BYTES_MAX = 4 << 20
"""Bytes of a request with an idempotency key, which is held until it is done: the largest configuration."""

REQUEST_ANSWER_BYTES_MAX = 16 * 1024
"""Bytes of an answer that is stored under its key: 50 versions of configurations."""

REQUEST_IN_PROGRESS_S = 60.0
"""Age up to which a request without an answer is being done; then its hub was stopped. A hub renews it three times as
often."""

AUDIT_KEPT_S = 400 * 86_400
"""Time that lines of the audit are kept: a year, and a month for its review."""

AUDIT_TENANT_ROWS_MAX = 50_000
"""Lines of the audit that are kept of each tenant, and of the hub itself, the latest: some 15 MiB of the registry. No
tenant pushes out the lines of others."""

AUDIT_ROWS_MAX = 1_000_000
"""Lines of the audit that are kept of all tenants together: some 300 MiB of the registry. Above it those with the most
lines lose their oldest ones, so that the others keep theirs."""

AUDIT_SEARCHED_MAX = 20_000
"""Lines of the audit that one search reads at once: some 50 ms. It goes on with older ones while none matches."""

AUDIT_READS_MAX = 5
"""Times that one search does so, 0.25 s: it delays other searches. Then the answer says how far it has come."""

AUDIT_CLOCK_LINES = 1_000
"""Latest lines before a time among which the last one is looked for: a clock may be set back."""

AUDIT_VALUE_BYTES_MAX = 2_000
"""Bytes of the state before or after a change in the audit; a larger one is left out."""

AUDIT_TEXT_CHARACTERS_MAX = 500
"""Characters of a subject or an error in the audit."""

AUDIT_WAITING_MAX = 1_000
"""Lines of the audit that wait while the registry cannot be written; above it the oldest are lost, and counted."""

AUDIT_REFUSED_INTERVAL_S = 10.0
"""Interval of lines about equal refusals of one user: refusals must not push changes out of the audit."""

AUDIT_SESSION_INTERVAL_S = 60.0
"""Interval of lines about sign-ins of one user from one network, and about its sign-outs: a script may sign in for each
request."""

AUDIT_CHECK_S = 10.0
"""Interval of writing lines again that wait, and of looking whether old ones are due."""

AUDIT_CLEANUP_S = 3_600.0
"""Interval of deleting old lines of the audit."""

EVENTS_SEARCHED_MAX = 20_000
"""Events that one page reads: some 50 ms. Its answer says how far it has come."""

EVENTS_JUMP = 1_000_000_000
"""Numbers left out when a registry is copied: more than the original gives before its copy is used, at 1 000 events a
second some eleven days."""

EVENT_CHARACTERS_MAX = 500
"""Characters of a text in an event; a longer one is shortened."""

PROBLEM_CHARACTERS_MAX = 500
"""Characters kept of the text of a problem."""

WHY_CHARACTERS_MAX = 2_000
"""Characters kept of a gateway's reason: some ten errors of a file."""

TAKEOVERS_SHARED = 3
"""Takeovers of one gateway that show two machines with one identity: a broken connection makes one, a restart in the
same minute another."""

TAKEOVERS_WITHIN_S = 180.0
"""Seconds for these takeovers: two machines displace each other every 15 s at most, the limit of a gateway's
backoff."""

TENANT_IMAGE_BYTES_MAX = 16 << 30
"""Bytes of all images of a tenant: some hundred versions of a system, and 16 000 of a microcontroller."""

TENANT_ARTEFACTS_MAX = 1_000
"""Artefacts of a tenant: a row of 16 KiB each at most."""

TENANT_ARTEFACT_NAMES_MAX = 10_000
"""Names of artefacts of a tenant, also of removed ones: 2 MB. None is forgotten, as a downgrade of it would be accepted
then; an artefact of a further name is refused."""

TENANT_DEVICE_UPDATES_MAX = 4_000_000
"""Reports of devices about artefacts that a tenant has in the registry, at 0.4 KB each: four versions for each
device of `TENANT_DEVICES_MAX`. A report about a further one is in the lake only."""

CAMPAIGN_DEVICES_MAX = 100_000
"""Devices of one campaign: a look at all of them takes 0.2 s of the registry, every two seconds."""

SUCCESS_EARLY_S_MAX = 3_600
"""Seconds by which the clock of a gateway may be behind that of the registry: what it received earlier than that before
the offer of a campaign is of before, and no success. Too small, and a device of such a gateway stays unanswered."""

FAILURE_EARLY_S_MAX = 86_400
"""The same for failures. Too small, and a failure is overlooked; too large, and an old one halts a campaign. A day
is more than any time zone that was set for UTC."""

CAMPAIGNS_MAX = 64
"""Campaigns of a tenant that offer something: as many artefacts as a gateway holds."""

CAMPAIGNS_KEPT = 100
"""Campaigns of a tenant without offers that the registry keeps, each with its devices."""

TENANT_ARTEFACT_KEYS_MAX = 32
"""Trusted keys of a tenant: two for each of a dozen makers, so that each can replace its own."""
