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

PROVISIONED_HOURLY_MAX: Final = 1_000
"""Devices of one authority that a gateway lets in by their certificates within an hour, without a registration. A hall
is put into service within an hour; an authority that was stolen fills a registry in weeks rather than minutes."""

PROVISIONED_MAX: Final = 5_000
"""Devices that a gateway has let in by their certificates and that the hub has not registered yet, some 2 KiB of memory
each: a site that is put into service while the hub is away."""

PROVISIONINGS_WAITING_MAX: Final = 64
"""Connections that wait until their device is on disk as let in, some 10 ms each. Further ones are no devices."""

REFUSED_AGAIN_S: Final = 600.0
"""Seconds after which a gateway asks the hub again about a refused device that connects: one report of 1 KiB."""

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

INTROSPECTION_INTERVAL_S_MIN: Final = 1.0
"""Shortest time for which an answer of the issuer about a token counts: 20 connections then ask as often as may be."""

INTROSPECTION_INTERVAL_S_MAX: Final = 3_600.0
"""Longest time for which such an answer counts: later an operator has forgotten that a token was ended."""

INTROSPECTION_GRACE_S_MAX: Final = 366 * 86_400.0
"""Longest time without the issuer in which known tokens are accepted: a year on an island."""

INTROSPECTION_TIMEOUT_S: Final = 5.0
"""Seconds that an answer about a token may take: a client waits for its login, many for 10 s only."""

INTROSPECTION_PATIENCE_S: Final = 2.0
"""Seconds after which a login with a known token is answered by what is known, while the question goes on: an uplink
that was cut a moment ago must not hold up devices."""

INTROSPECTION_RETRY_S: Final = 10.0
"""Seconds between two questions whether the issuer is back."""

INTROSPECTION_THREADS: Final = 4
"""Questions to the issuer at once; with answers in 50 ms they suffice for 80 a second."""

INTROSPECTIONS_PER_S_MAX: Final = 20.0
"""Questions to the issuer in a second, so that clients with made-up tokens cannot flood it. 1 200 tokens are asked
about every minute; with more the interval becomes longer."""

INTROSPECTION_BURST_S: Final = 2.0
"""Seconds of questions that may be asked at once after a quiet time: 40."""

INTROSPECTIONS_WAITING_MAX: Final = 256
"""Tokens of logins that wait for an answer: the last waits 13 s. Further clients get the answer "busy"."""

INTROSPECTIONS_PER_ADDRESS_MAX: Final = 16
"""Such tokens of one remote address, so that one client cannot take the room of all."""

INTROSPECTION_REFRESH_SHARE: Final = 4
"""Every fourth question is about a token of an open connection, while any is due: a flood of logins must not keep
revoked clients connected."""

INACTIVE_KEPT_S: Final = 15.0
"""Seconds for which the answer that a token is not active counts, at most the interval: a client that tries again every
second asks four times a minute."""

INACTIVE_TOKENS_MAX: Final = 4_096
"""Tokens that are known to be inactive, about 200 bytes each; the oldest are forgotten first."""

KNOWN_TOKENS_MAX: Final = 20_000
"""Tokens that are known to be active, about 0.6 KiB each; equals the maximum of sessions. The least recently confirmed
ones without a connection make room; without such ones a new client gets the answer "busy"."""

KNOWN_TOKENS_BYTES_MAX: Final = 16 << 20
"""Bytes of the tokens of open connections, which are needed to ask again: 8 000 of 2 KiB."""

KNOWN_TOKENS_WRITTEN_PER_S_MAX: Final = 4 * KIB
"""Bytes of known tokens that are written in a second, on average: 350 MB a day at most. 20 tokens are on the card 2 s
after a login, 1 000 after 75 s; a power cut before forgets the newest."""

KNOWN_TOKEN_LIFE_S_MIN: Final = 600.0
"""Remaining life with which a token is stored. One with less has nearly ended once a machine has restarted, and clients
with short tokens would have the file written all the time."""

LOGOUT_TOKEN_AGE_S: Final = 300.0
"""Seconds after which a logout token of the issuer is too old: it is sent at once, and again after a failure."""

SIGN_OUTS_KEPT_S: Final = 7 * 86_400.0
"""Seconds for which a logout at the issuer is kept. A token that lives longer opens connections again after it."""

SIGN_OUTS_RETRY_S: Final = 10.0
"""Seconds until a logout that could not be written is written again."""

SIGN_OUTS_MAX: Final = 10_000
"""Logouts of sessions, and as many of people, about 150 bytes each; the oldest are forgotten first."""

VERDICT_KEPT_S: Final = 60.0
"""Seconds that a correct password needs no verification again, for devices that reconnect."""
