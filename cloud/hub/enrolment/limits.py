"""Every bound of enrolment, with unit and reason."""

from __future__ import annotations

from typing import Final

GATEWAY_DAYS: Final = 90.0
"""Life of a gateway's certificate unless the configuration says otherwise. It is renewed at two thirds, so a gateway
may be away for 30 days at any time and comes back by itself."""

GATEWAY_DAYS_MIN: Final = 0.0001
"""Nine seconds: for tests."""

GATEWAY_DAYS_MAX: Final = 825.0
"""What is known of who holds a key is not true for ever; libraries refuse longer ones of servers."""

SERVER_DAYS: Final = 90.0
"""Life of the hub's own certificate; the hub renews it itself, at two thirds."""

AUTHORITY_DAYS: Final = 20 * 365.25
"""Life of the authority: every gateway holds its certificate, and gets another one by enrolling anew only."""

BACKDATED_S: Final = 3_600.0
"""A certificate begins so much before it is made, at most a tenth of its life: clocks differ."""

AUTHORITY_BACKDATED_S: Final = 86_400.0
"""The same for the authority, the hub's own certificate and the list of what was revoked, which gateways look at with
clocks that may be off."""

REVOCATIONS_VALID_S: Final = 7 * 86_400.0
"""The list of revoked certificates is made anew often; who has it may go by it for so long without the hub."""

OCSP_VALID_S: Final = 3_600.0
"""An answer about one certificate counts so long: who looks is beside a hub, and asks again."""

OCSP_BACKDATED_S: Final = 300.0
"""An answer begins to count so long before it is given: clocks of machines with a time service differ by seconds, of
some by minutes."""

OCSP_REQUEST_BYTES_MAX: Final = 2_048
"""Of a question about one certificate: it has 120 bytes, with a nonce and who asks some hundreds."""

OCSP_NONCE_BYTES_MAX: Final = 128
"""What a client may have an answer repeat (RFC 9654 section 2.1)."""

TOKEN_EXPIRES_S: Final = 86_400.0
"""Life of a token unless somebody says otherwise: time to carry it to a gateway, and little to lose it."""

TOKEN_EXPIRES_S_MAX: Final = 366 * 86_400.0
"""A token in a drawer is a key to the fleet."""

TOKENS_AT_ONCE_MAX: Final = 10_000
"""Tokens of one command: a fleet's."""

CERTIFICATES_A_GATEWAY_MAX: Final = 16
"""Certificates of one gateway that are good at the same time. It has one, and a second from its renewal on; a gateway
that asks again and again must not fill the registry."""

REVOCATIONS_LOOKED_AT_S: Final = 1.0
"""How often the hub looks for certificates revoked by a command or another hub: one query. A connection of theirs is
cut within that."""

REQUESTS_MAX: Final = 256
"""Requests for a certificate that wait for the one thread that answers them, a few milliseconds each; more are told to
come again."""

EST_TIMEOUT_S: Final = 15.0
"""For a connection to another authority's server, and for its answer: a gateway that waits gives up after as long."""

EST_ANSWER_BYTES_MAX: Final = 256 << 10
"""Of such an answer: certificates have 1 to 2 KiB each, and an authority some of them between."""

EST_AT_ONCE_MAX: Final = 4
"""Requests another authority gets from us at a time; the others wait their turn."""

AUTHORITIES_FETCHED_S: Final = 3_600.0
"""How often the hub asks which certificates another authority has: it says weeks before that it takes a new one."""

KEY_CURVES: Final = ("secp256r1", "secp384r1")
"""Elliptic curves a gateway's key may be of."""

RSA_BITS: Final = (2_048, 4_096)
"""Sizes an RSA key may have, from and to: what is smaller is broken, what is larger costs us."""

UNKNOWN_LOOKED_FOR_MAX = 100
"""Certificates of another authority that are looked for in the registry at a time, as a hub beside this one may have
had them made: who shows others again and again keeps the registry from nobody."""

KNOWN_SORTED_OUT_S: Final = 3_600.0
"""How often a hub forgets those of another authority's certificates that have ended: it goes through all it knows, some
300 bytes and 0.1 us each."""

ADMITTED_UNCHECKED_MAX: Final = 20_000
"""Certificates of gateways that were let in and are looked for in the registry with the next look, some 500 bytes each:
as many as a hub has connections. Those beyond it are looked for when they connect again."""
