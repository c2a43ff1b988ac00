"""Limits of enrolment, with unit and reason."""

from __future__ import annotations

from typing import Final

from bridge.limits import DEVICE_CURSOR_BYTES_MAX

GATEWAY_DAYS: Final = 90.0
"""Default validity of a gateway's certificate. It is renewed at two thirds, so a gateway may be away for 30 days at any
time and still return by itself."""

GATEWAY_DAYS_MIN: Final = 0.0001
"""Nine seconds, for tests."""

GATEWAY_DAYS_MAX: Final = 825.0
"""A key does not stay in the same hands forever; libraries refuse longer server certificates."""

SERVER_DAYS: Final = 90.0
"""Validity of the hub's own certificate, which the hub renews at two thirds."""

RECEIPT_SIGNER_DAYS: Final = 90.0
"""Validity of the certificate with which receipts are signed; a new key follows at two thirds. A receipt is verified
for the time of its statement, so it stays valid for ever."""

OCSP_SIGNER_DAYS: Final = 7.0
"""Validity of the certificate with which a hub without the authority's key answers OCSP requests; it cannot be revoked
(RFC 6960 section 4.2.2.2.1). Two days without the authority leave it valid."""

DELEGATED_KEY_RETRY_S: Final = 600.0
"""Seconds until a hub asks again for the certificate of a key that is due but still valid: a third of its validity is
left, which is two days or more."""

DELEGATED_KEY_PAUSE_S: Final = 10.0
"""Seconds after a failure in which a hub does not ask again for the certificate of a key that it lacks: each attempt
takes `SIGNATURE_TIMEOUT_S`, and requests for OCSP need no authentication."""

SIGNATURE_TIMEOUT_S: Final = 5.0
"""Wait of a hub for the authority's process, which answers within a second: a gateway that waits gives up after 15."""

SIGNATURE_FIRST_CHECK_S: Final = 0.05
"""Time from a request, and from an answer to one, until the next look for answers or requests that no notice has
announced, as in SQLite: 200 pages of devices are some ten such looks one after the other."""

SIGNATURE_CHECK_S: Final = 0.5
"""Longest interval of looking for answers, while some are awaited: it doubles while none comes."""

SIGNATURES_WAITED_MAX: Final = 64
"""Requests of a hub to the authority's process at one time; more are refused with a retry. It signs some hundred a
second."""

SIGNATURES_A_TURN_MAX: Final = 100
"""Requests, and configurations, that the authority's process signs between two commits: 0.1 s."""

SIGNATURE_REQUEST_CHARACTERS_MAX: Final = 32_768
"""Characters of a request to the authority's process: a signing request for an RSA key has 2 000, names have some
hundred."""

SIGNATURE_REQUESTS_KEPT_S: Final = 3_600.0
"""Time after which the authority's process deletes a request: its hub no longer waits, and clocks differ."""

SIGNATURE_ANSWERS_KEPT_S: Final = 60.0
"""Time after which the authority's process deletes an answer, twice the longest wait of a hub: the hub was killed. A
page of devices has 512 KiB and hashes of passwords."""

PAGE_REQUEST_CHARACTERS_MAX: Final = 2 * DEVICE_CURSOR_BYTES_MAX + 4_096
"""Characters of a request for a page of devices: the cursor, each of its quotes as two characters, and two names of 255
characters."""

PAGE_TIMEOUT_S: Final = 30.0
"""Wait of a hub for a page of devices: no client waits for it, and pages come after certificates."""

PAGES_A_TURN_MAX: Final = 16
"""Pages of devices that the authority's process makes between two commits: 8 MiB in memory at most."""

PAGES_TURN_S: Final = 0.5
"""Time after which it commits the pages made so far: certificates, which come first in each turn, are awaited for
`SIGNATURE_TIMEOUT_S`."""

REQUESTED_NAMES_MAX: Final = 64
"""Names of a hub in its certificate: an operator has a few, of the machine there are four."""

AUTHORITY_PUBLISHED_S: Final = 10.0
"""Interval at which the authority's process records that it runs, and hubs look."""

AUTHORITY_ABSENT_S: Final = 60.0
"""Time without that record after which hubs report the authority as away; it restarts within some seconds."""

AUTHORITY_AWAITED_S: Final = 90.0
"""Time that a hub waits at its start for the certificate of its listeners, less than an orchestrator's probe of the
start takes."""

AUTHORITY_DAYS: Final = 20 * 365.25
"""Validity of the authority: every gateway holds its certificate, and gets another one only by a new enrolment."""

BACKDATED_S: Final = 3_600.0
"""Backdating of certificates, at most a tenth of their validity: clocks differ."""

AUTHORITY_BACKDATED_S: Final = 86_400.0
"""Backdating of the authority, the hub's own certificate and the revocation list, which gateways check with clocks that
may be wrong."""

REVOCATIONS_VALID_S: Final = 7 * 86_400.0
"""Validity of a revocation list without a connection to the hub; it is signed again often."""

OCSP_VALID_S: Final = 3_600.0
"""Validity of an OCSP response: clients can reach a hub and ask again."""

OCSP_BACKDATED_S: Final = 300.0
"""Backdating of an OCSP response: clocks with a time service differ by seconds, some by minutes."""

OCSP_REQUEST_BYTES_MAX: Final = 2_048
"""Bytes of an OCSP request: it has 120, with a nonce and a requestor some hundreds."""

OCSP_NONCE_BYTES_MAX: Final = 128
"""Bytes of a nonce (RFC 9654 section 2.1)."""

TOKEN_EXPIRES_S: Final = 86_400.0
"""Default validity of a token: time to carry it to a gateway, and little time to lose it."""

TOKEN_EXPIRES_S_MAX: Final = 366 * 86_400.0
"""Maximum validity of a token: a forgotten token is a key to the fleet."""

TOKENS_AT_ONCE_MAX: Final = 10_000
"""Tokens made by one command: a whole fleet's."""

TOKENS_A_REQUEST_MAX: Final = 500
"""Tokens made by one request over HTTP: a sheet of a few dozen pages, 1 MiB with QR codes."""

TOKEN_DOCUMENT_BYTES_MAX: Final = 256 * 1024
"""Bytes of a request for tokens: 500 names of gateways."""

CERTIFICATES_A_GATEWAY_MAX: Final = 16
"""Valid certificates of one gateway. It has one, and two around a renewal; repeated requests must not fill the
registry."""

CERTIFICATES_SHOWN_MAX: Final = 20
"""Certificates of a gateway in one answer, the latest: with a renewal every few weeks a year of them."""

REVOCATIONS_CHECK_INTERVAL_S: Final = 1.0
"""Interval of polling for certificates revoked by a command or another hub: one query. Their connections end within
that time."""

LIST_RESIGNED_S: Final = 3_600.0
"""Interval after which the revocation list is signed again without a change: it is valid for a week."""

REQUESTS_MAX: Final = 256
"""Requests that wait for the registry's thread, a few milliseconds each; more are refused with a retry."""

EST_TIMEOUT_S: Final = 15.0
"""Timeout for connecting to another authority and for its response: a waiting gateway gives up after as long."""

EST_ANSWER_BYTES_MAX: Final = 256 << 10
"""Bytes of such a response: certificates have 1 to 2 KiB each, with some intermediates."""

EST_AT_ONCE_MAX: Final = 4
"""Concurrent requests to another authority."""

AUTHORITIES_FETCHED_S: Final = 3_600.0
"""Interval of fetching the certificates of another authority, which announces a new one weeks before."""

KEY_CURVES: Final = ("secp256r1", "secp384r1")
"""Allowed elliptic curves of a gateway's key."""

RSA_BITS: Final = (2_048, 4_096)
"""Minimum and maximum size of an RSA key: smaller ones are broken, larger ones are slow."""

UNKNOWN_SEARCHED_MAX = 100
"""Unknown certificates of another authority looked up in the registry at a time; another hub may have issued them.
Bounds the load from a client that shows foreign certificates."""

KNOWN_DROPPED_S: Final = 3_600.0
"""Interval of removing expired certificates of another authority from memory, some 300 bytes and 0.1 us each."""

ADMITTED_UNCHECKED_MAX: Final = 20_000
"""Certificates of admitted gateways kept for the next lookup in the registry, some 500 bytes each: as many as a hub has
connections. Others are looked up when they connect again."""
