"""Limits of authentication: users, passwords, tokens and their issuers."""

from __future__ import annotations

from typing import Final

from edge.broker.limits import KIB

USERS_MAX: Final = 20_000
"""Users of one gateway, about 1 KiB each; equals the maximum of sessions."""

HUB_DEVICES_MAX: Final = 50_000
"""Devices of a hub at one gateway, some 0.8 KiB of memory each."""

HUB_DEVICES_BYTES_MAX: Final = 48 << 20
"""Bytes of the devices of a hub as they are stored: 50 000 with two passwords each."""

SECRETS_PER_USER_MAX: Final = 4
"""Secrets of one user that are valid now or later: the old one, the new one, and two for a rotation gone wrong. A wrong
password is verified against each."""

RULES_PER_USER_MAX: Final = 100
"""Rules of one user, and addresses of one rule: a device needs a handful."""

PASSWORD_BYTES_MAX: Final = 1024
"""Length of a password. Bearer tokens are longer (`TOKEN_BYTES_MAX`) and are not hashed."""

USERNAME_CHARACTERS_MAX: Final = 255
"""Length of a user name."""

VERIFICATIONS_MAX: Final = 64
"""Passwords waiting to be verified, at some 30 ms each: with one thread the last waits 2 s, well within
`VERIFICATION_WAIT_S_MAX`. Further clients get the answer "busy"."""

VERIFICATION_WAIT_S_MAX: Final = 20.0
"""Seconds that a password waits to be verified; then the answer is "busy". Clients wait 30 s as a rule."""

VERIFICATION_PATIENCE_S: Final = 1.0
"""Seconds that a password waits for threads of low priority; then one of normal priority verifies it. An idle machine
takes 30 ms."""

VERIFICATIONS_PER_USER_MAX: Final = 4
"""Waiting passwords of one user, and of all unknown names together: an attacker delays other clients by 4."""

FAILURES_PERIOD_S: Final = 60.0
"""Seconds in which the counts of failed logins decay from their maximum to zero."""

FAILURES_PER_USER_MAX: Final = 10
"""Failed logins of one user from one address in `FAILURES_PERIOD_S`; further ones are refused without verification. A
person mistypes less often, and guessing takes years."""

FAILURES_PER_ADDRESS_MAX: Final = 100
"""Failed logins from one address with any user; many devices may share an address behind a router."""

SUCCESSES_KEPT_MAX: Final = 10_000
"""Remembered pairs of address and user that have logged in, about 200 bytes each; the oldest are forgotten first."""

SUCCESS_KEPT_S: Final = 86_400.0
"""Seconds that such a pair is remembered: devices reconnect within a day."""

FAILURES_KEPT_MAX: Final = 10_000
"""Counts of failed logins, about 200 bytes each; the least recently changed are forgotten first."""

TOKEN_BYTES_MAX: Final = 7 * KIB
"""Length of a bearer token: it has to fit into one SASL frame. A Keycloak token with a dozen roles has 2 KiB."""

TOKEN_EXPIRY_CHECK_S: Final = 1.0
"""Seconds between two checks for expired tokens of open connections; a check of 10 000 takes some 0.5 ms."""

TOKEN_WAIT_S: Final = 20.0
"""Seconds in which an unauthenticated AMQP client has to put a token to `$cbs`."""

TOKEN_LEEWAY_S: Final = 60.0
"""Seconds that the issue time of a token may be in the future, as clocks differ."""

TOKENS_WAITING_MAX: Final = 256
"""Tokens waiting for a new key of the issuer; further clients get the answer "busy"."""

ISSUER_REFRESH_S: Final = 900.0
"""Seconds between two requests for the issuer's keys; a withdrawn key is accepted for this long."""

ISSUER_RETRY_S: Final = 30.0
"""Seconds between two requests while the issuer cannot be reached."""

ISSUER_ASKED_S_MIN: Final = 10.0
"""Shortest time between two requests for an unknown key, as any client can make up a token that names one."""

ISSUER_TIMEOUT_S: Final = 10.0
"""Seconds that one answer of the issuer may take."""

ISSUER_DOCUMENT_BYTES_MAX: Final = 256 * KIB
"""Size of the issuer's discovery document, and of its key set; those of Keycloak have some 6 and 3 KiB."""

ISSUER_KEYS_MAX: Final = 64
"""Keys of the issuer; usually two to four, more during a rotation."""

VERDICT_KEPT_S: Final = 60.0
"""Seconds that a correct password needs no verification again, for devices that reconnect."""
