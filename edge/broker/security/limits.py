"""Bounds of finding out who somebody is: users, passwords, tokens and their issuers."""

from __future__ import annotations

from typing import Final

from edge.broker.limits import KIB

USERS_MAX: Final = 20_000
"""Users of one gateway, about 1 KiB each: as many as there may be sessions."""

SECRETS_PER_USER_MAX: Final = 4
"""Secrets of one user that are valid or will be: the old one, the new one, and two for a rotation gone wrong. A wrong
password costs as many verifications."""

RULES_PER_USER_MAX: Final = 100
"""Rules of one user, and addresses of one rule: a device needs a handful."""

PASSWORD_BYTES_MAX: Final = 1024
"""A password; bearer tokens are longer (`TOKEN_BYTES_MAX`), and are not hashed."""

USERNAME_CHARACTERS_MAX: Final = 255
"""A user's name."""

VERIFICATIONS_MAX: Final = 64
"""Passwords waiting to be verified, at some 30 ms each: with one thread the last waits 2 s, well within
`VERIFICATION_WAIT_S_MAX`. Beyond it clients get the answer "busy"."""

VERIFICATION_WAIT_S_MAX: Final = 20.0
"""Seconds that a password waits to be verified; then the answer is "busy". Clients wait 30 s as a rule."""

VERIFICATION_PATIENCE_S: Final = 1.0
"""Seconds that a password waits for threads of low priority; then one of normal priority verifies it. An idle machine
takes 30 ms."""

VERIFICATIONS_PER_USER_MAX: Final = 4
"""The same for one user, and for all names that are no user's together: who guesses passwords delays others by 4."""

FAILURES_PERIOD_S: Final = 60.0
"""Time in which the counts of failed logins fall from their maximum to nothing."""

FAILURES_PER_USER_MAX: Final = 10
"""Failed logins of one user from one address in `FAILURES_PERIOD_S`; then it is not even verified for a while. A person
mistypes less often, and guessing takes years."""

FAILURES_PER_ADDRESS_MAX: Final = 100
"""The same for one address, whatever the user: many devices may share one behind a router."""

SUCCESSES_KEPT_MAX: Final = 10_000
"""Pairs of address and user that have logged in and are remembered, about 200 bytes each; those that did so longest ago
are forgotten first."""

SUCCESS_KEPT_S: Final = 86_400.0
"""Seconds that they are remembered: devices connect again within a day."""

FAILURES_KEPT_MAX: Final = 10_000
"""Counts kept, about 200 bytes each; those changed longest ago are forgotten first."""

TOKEN_BYTES_MAX: Final = 7 * KIB
"""A bearer token: what fits into one SASL frame. With a dozen roles one of Keycloak's has 2 KiB."""

TOKEN_EXPIRY_CHECK_S: Final = 1.0
"""How often it is looked whether tokens of open connections have expired: some 0.5 ms for 10 000."""

TOKEN_WAIT_S: Final = 20.0
"""How long an AMQP client that has not said who it is may take to put a token to `$cbs`."""

TOKEN_LEEWAY_S: Final = 60.0
"""How far in the future a token may have been issued: the issuer's clock and ours differ."""

TOKENS_WAITING_MAX: Final = 256
"""Tokens waiting for the issuer to be asked about a new key; beyond it clients are told that we are busy."""

ISSUER_REFRESH_S: Final = 900.0
"""How often a token issuer is asked for its keys: one that was withdrawn counts for no longer."""

ISSUER_RETRY_S: Final = 30.0
"""The same while it cannot be reached."""

ISSUER_ASKED_S_MIN: Final = 10.0
"""Between two questions because of a key that is not known: tokens that name one are easily made up."""

ISSUER_TIMEOUT_S: Final = 10.0
"""How long one answer of the issuer may take."""

ISSUER_DOCUMENT_BYTES_MAX: Final = 256 * KIB
"""Its discovery document, and its key set; Keycloak's are some 6 and 3 KiB."""

ISSUER_KEYS_MAX: Final = 64
"""Keys of its key set; issuers have two to four, more while they rotate."""

VERDICT_KEPT_S: Final = 60.0
"""How long a password that was right needs no verification again: a device that reconnects, not one that was stolen."""
