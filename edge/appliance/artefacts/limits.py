"""Limits of artefacts at a gateway."""

from __future__ import annotations

from typing import Final

from edge.broker.limits import MIB

CHECK_INTERVAL_S: Final = 5.0
"""Interval between two checks of configuration, room and missing artefacts: two stat(2) and one statvfs(2)."""

RANGE_BYTES: Final = 256 << 10
"""Bytes of one request to the hub: the most that a broken connection loses, with 0.2 % of header fields. With a rate
limit a request has the bytes of a second, so that it never delays a reading for longer."""

HEADER_BYTES: Final = 512
"""Bytes of header fields of one request and its answer, as they count in a data budget."""

SYNC_BYTES: Final = 4 << 20
"""Bytes between two syncs of a download: the most that a power cut loses."""

RETRY_S: Final = (5.0, 15.0, 60.0, 300.0)
"""Pauses before the next attempts after a failure of the hub or of the link; the last one repeats."""

FAILURES_SHOWN: Final = 3
"""Failures in a row of one artefact after which it is a problem: a hub that restarts fails once or twice."""

REQUEST_S: Final = 300.0
"""Time limit of one request: 256 KiB arrive in it at 7 kbit/s. What has arrived is kept."""

STOP_S: Final = 1.0
"""Time that a stop of the gateway waits for the connection to the hub; its socket is shut down before."""

READ_BYTES: Final = 16 << 10
"""Bytes of an answer that are read at a time."""

WRONG_RETRY_S: Final = 86_400.0
"""Pause before an image that had a wrong checksum twice is fetched again: a day, as each attempt costs all of it."""

REFUSED_RETRY_S: Final = 3_600.0
"""Pause before the manifest of a refused artefact is fetched again: it costs some 500 bytes, and may be another one."""

MANIFEST_CHECK_S: Final = 6 * 3_600.0
"""Interval at which the manifest of a held artefact is fetched again, as its version may have been signed again: 120 KB
a month, and also once a day at a gateway that is off at night."""

WRONG_IMAGES_MAX: Final = 2
"""Images with a wrong checksum after which an artefact is refused: one may be damaged by a power cut."""

EVICTION_MARGIN_BYTES: Final = 64 * MIB
"""Free space above `limits.freeFloorBytes` below which images are evicted. A card that takes 10 MiB/s of messages needs
6 s for it, and the room is checked every 5 s: artefacts leave before a message is refused."""

FETCH_MARGIN_BYTES: Final = 128 * MIB
"""Free space above `limits.freeFloorBytes` that is left after a fetch: twice the margin of eviction, so that an evicted
image does not come back at once."""

REMEMBERED_MAX: Final = 1_000
"""Artefacts that were held once and are remembered, against downgrades: 600 KB. The oldest are forgotten."""

WAIT_S_MIN: Final = 0.001
"""Shortest wait for a rate, as rounding may leave one of zero."""

NAMES_MAX: Final = 10_000
"""Names of artefacts of which the highest sequence is remembered: 1 MB. None is forgotten, as a downgrade of it would
be accepted then; an artefact of a further name is refused."""

REOPEN_S: Final = 60.0
"""Pause before the folder or the index is opened again after an error of the card."""

IMAGE_READ_BYTES: Final = 64 << 10
"""Bytes of an image that are read and sent at a time: messages get their turn in between, after 0.1 ms."""

PART_PAUSES: Final = 4.0
"""Pause behind each part for a device, as a multiple of the time that the event loop was busy with it: parts of images
take a fifth of the loop, and messages have the rest."""

PART_PAUSE_S_MIN: Final = 0.004
"""Shortest pause behind a part: 250 parts a second. These are 8 MB/s over MQTT and 16 MB/s over HTTP, so an image of
1 MB is at 100 devices after some ten seconds."""

PART_PAUSE_S_MAX: Final = 0.05
"""Longest pause behind a part, so that 128 chunks wait for less than the 10 seconds after which a device repeats its
request."""

READ_THREADS: Final = 2
"""Threads that read images for devices: a card that hangs holds both, and nothing else."""

DOWNLOADS_MAX: Final = 64
"""Downloads by devices at once: 4 MiB of buffers. Others are answered with 503, and ask again."""

DEVICE_DOWNLOADS_MAX: Final = 2
"""Downloads of one device at once: a second one while the connection of the first is not known to be dead."""

CHUNK_BYTES_MAX: Final = 32 << 10
"""Bytes of a chunk over MQTT or AMQP: a packet that a small device holds in memory, and 0.1 ms of the loop."""

OFFER_BYTES: Final = 8 << 10
"""Bytes that the answer to a request for an offer is counted with: 32 boards, 64 versions and a short manifest."""

MANIFEST_BYTES_IN_OFFER: Final = 1 << 10
"""Bytes of a signed manifest that an offer contains in Base64; a usual one has 400. A larger one is fetched in
chunks."""

ANSWERS_BYTES_MAX: Final = 4 * MIB
"""Bytes of answers over MQTT and AMQP that devices have not acknowledged: 128 chunks. Requests beyond it are
ignored (AMQP: released), and repeated by their devices."""

DEVICE_ANSWERS_BYTES_MAX: Final = 128 << 10
"""The same of one device: four chunks, so that a device with 100 ms to its gateway gets 1 MB/s."""

ANSWER_BYTES_MIN: Final = 2 << 10
"""Bytes that each answer is counted with at least, for its request in progress: so 2 048 are in progress at most."""

ANSWER_UNREAD_S: Final = 30.0
"""Time after which a connection with an unacknowledged answer is ended when the room of others needs it."""

CONNECTION_REQUESTS_MAX: Final = 4
"""Requests of one connection (AMQP: of one device on it) that are answered at once: as many chunks as a device may
have."""

REQUEST_BYTES_MAX: Final = 16 << 10
"""Bytes of a request or report over AMQP: a report with the longest reason has 4 KiB. Four of them wait on a link."""

NOTES_MAX: Final = 1_024
"""Reports over MQTT that wait for being noted, at some 5 ms each. Further ones are refused, and repeated by their
devices."""

REPORTS_COUNTED_EVERY: Final = 64
"""Changes of the database of reports between two counts of its rows: a count of 200 000 takes tens of milliseconds."""

ANSWERED_DEVICES_MAX: Final = 64
"""Devices that one connection may ask for: those behind a gateway of its own."""

REPORTS_WAITING_MAX: Final = 256
"""Requests that wait for the database of reports, at some 5 ms each; more are answered with 503."""

REPORTS_CACHED_DEVICES: Final = 64
"""Devices with reports in memory, as each chunk over MQTT needs them: as many as may download at once."""

REPORTS_CACHED_MAX: Final = 16
"""Reports of a device with which it is kept in memory: 64 devices with the longest reasons take 3 MB."""

REPORTS_MAX: Final = 200_000
"""Reports of devices that are kept, 20 MB: four artefacts for each of 50 000 devices."""

REPORTS_DROPPED: Final = 1_000
"""Oldest reports that are dropped at once at a limit, or half if there are fewer. Their devices may be offered the
artefact again."""

REPORTS_BYTES_MAX: Final = 64 * MIB
"""Bytes of the database of reports: 200 000 rows of usual length. Rows of the longest names and reasons have 3 KB, and
the oldest of them are dropped before."""

DEVICE_REPORTS_MAX: Final = 256
"""Reports of one device that are kept, four for each artefact of a gateway: one device never displaces all others."""

HISTORY_CHARACTERS_MAX: Final = 1_024
"""Characters of the earlier reports of a device about an artefact: some ten lines for `actionHistory`."""

REASON_CHARACTERS_MAX: Final = 512
"""Characters of the reason in a report: some lines of a log."""

POLL_S: Final = 300
"""Interval of polls in the answers to DDI clients, as usual at hawkBit. 5 000 devices make 17 requests a second."""

ACTION_DIGITS_MAX: Final = 18
"""Digits of the number of an action: SQLite has 64-bit numbers."""

ACTION_ARTEFACTS: Final = 1 << 20
"""Numbers of artefacts in the number of an action. Those of attempts are above: clients of DDI have 31 bits."""

ACTION_ATTEMPTS: Final = 1 << 11
"""Attempts with one artefact until the numbers of their actions repeat."""
