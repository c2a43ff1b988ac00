"""Limits of questions about client certificates."""

from __future__ import annotations

from typing import Final

RESPONSE_BYTES_MAX: Final = 64 * 1024
"""Size of a response: with the certificate of a responder it has some 3 KiB."""

RESPONSE_S_MAX: Final = 5.0
"""Seconds that a response may take, and that clients wait for it, from the handshake of the first one. Then it counts
as unanswered, while the request goes on."""

OCSP_THREADS: Final = 4
"""Requests at once; with responses in 50 ms they suffice for 80 a second."""

OCSP_WAITING_MAX: Final = 256
"""Certificates that are asked about; further ones count as unanswered. With a responder that is silent the last request
begins after five minutes, so more requests would be in vain."""

OCSP_REFRESHES_MAX: Final = OCSP_WAITING_MAX // 2
"""Certificates of open connections that are asked about; the other places are for devices that connect."""

HELD_CONNECTIONS_MAX: Final = 512
"""Connections that wait for an answer, two for each certificate that is asked about; further ones count as unanswered.
With `HELD_BYTES_MAX` they take 32 MiB at most, and some 100 bytes each when the clients send a CONNECT only."""

OCSP_RETRY_S: Final = 30.0
"""Seconds between two requests about one certificate while its responder does not answer."""

OCSP_ANSWERS_MAX: Final = 20_000
"""Answers that are kept, about 200 bytes each; the oldest positive ones are forgotten first. Equals the maximum of
sessions."""

OCSP_INTERVAL_S_MIN: Final = 1.0
"""Shortest time for which an answer counts."""

OCSP_INTERVAL_S_MAX: Final = 7 * 86_400.0
"""Longest time for which an answer counts: responders name a few days."""

OCSP_GRACE_S_MAX: Final = 366 * 86_400.0
"""Longest time without a responder in which a positive answer counts: a year on an island."""

OCSP_CLOCK_S: Final = 300.0
"""Seconds by which the clock of a responder, or our own at an earlier time, may be ahead of ours."""

OCSP_WRITE_S: Final = 30.0
"""Seconds between two writes of the file of positive answers. A revocation is written at once, after an error again
after this time."""

HELD_BYTES_MAX: Final = 64 * 1024
"""Bytes that a client may send before the answer about its certificate: its first packet and what is in one slice."""
