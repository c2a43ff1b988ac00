"""Authentication of every connection, for all protocols.

The authenticator compares the credentials of a client with the users of the space. Passwords are hashed off the loop's
thread. It issues grants (`model.authorization`) and revokes them when a user changes. It receives users and their
changes, and does not know where they are stored. No secret is logged, kept in clear text or put into an exception.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Set
from typing import NamedTuple, Protocol

from bridge.hidden import hides
from bridge.sasl import bearer
from bridge.sasl.scram import ITERATIONS, SALT_BYTES, ScramVerifier
from edge.broker.configuration import AuthenticationMode
from edge.broker.model.authorization import AccessRule, Ended, Grant
from edge.broker.model.isolation import report
from edge.broker.model.refusals import RefusalCause, RefusalJournal
from edge.broker.security.credentials import (
    CredentialSecret,
    CredentialSnapshot,
    CredentialUser,
    new_user,
    verify,
    with_secret,
)
from edge.broker.security.device_directory import DeviceDirectory, NoDevices
from edge.broker.security.limits import (
    PASSWORD_BYTES_MAX,
    TOKEN_BYTES_MAX,
    TOKEN_EXPIRY_CHECK_S,
    TOKEN_WAIT_S,
    USERS_MAX,
    VERDICT_KEPT_S,
    VERIFICATION_WAIT_S_MAX,
)
from edge.broker.security.login_throttle import Failures
from edge.broker.security.proof import CertifiedIdentity, Decided, LoginVerdict, TokenOrigin, VerifiedIdentity
from edge.broker.security.sign_in import BearerVerifier
from edge.broker.security.sign_outs import SignOuts
from edge.broker.security.token_grants import TokenGrants, revoke_grant
from edge.broker.security.waiting_logins import WaitingLogin, WaitingLogins

log = logging.getLogger(__name__)

DECOY_USER = "decoy"
"""User for the verification of unknown names, so that a wrong name takes as long as a wrong password."""


FAILURE_LOG_S = 1.0
"""Shortest time between two log lines about failed logins; each line has their number."""


Work = Callable[[], CredentialSecret | None]
Done = Callable[[CredentialSecret | None], None]


class Worker(Protocol):
    """Runs work on another thread and passes its result to `done` on the calling thread, in any order."""

    def __call__(self, work: Work, done: Done) -> None:
        """Start or queue the work and return at once."""
        ...


@hides("digest")
class _CachedPassword(NamedTuple):
    """A password that was verified: its keyed digest, the id of its secret, and when the entry expires."""

    digest: bytes
    secret: str
    until: float


class Authenticator:
    """Authenticates the clients of one broker. All methods run on the loop's thread."""

    def __init__(
        self,
        mode: AuthenticationMode,
        snapshot: CredentialSnapshot | None = None,
        *,
        worker: Worker,
        clock: Callable[[], float],
        utc_s: Callable[[], float] = time.time,
        bearer: BearerVerifier | None = None,
        refusals: RefusalJournal | None = None,
    ) -> None:
        """`clock` returns monotonic seconds; `utc_s` UTC seconds, for the validity of secrets. `bearer` verifies tokens
        where an issuer is configured. `refusals` records refused logins."""
        self.mode = mode
        self.refusals = RefusalJournal(utc_s) if refusals is None else refusals
        """Refused clients, for operators."""
        self.bearer = bearer
        self._reload_users: Callable[[], None] = lambda: None
        self.refused = 0
        """Connections with failed authentication."""
        self.busy = 0
        """Connections answered "busy": too many passwords were waiting, or theirs waited too long."""
        self.late = 0
        """Connections answered "busy" because their password waited for `VERIFICATION_WAIT_S_MAX`."""
        self.last_logins: dict[str, float] = {}
        """Last successful login since the start by user of this space, UTC seconds."""
        self.verifications = 0
        """Passwords hashed."""
        self._worker = worker
        self._clock = clock
        self._utc_s = utc_s
        self._users: Mapping[str, CredentialUser] = {}
        self._devices: DeviceDirectory = NoDevices()
        self._key = secrets.token_bytes(32)
        self._decoy_key = self._key
        self._known: dict[str, _CachedPassword] = {}
        self._waiting = WaitingLogins()
        self._log_failures_at = 0.0
        self._failures = Failures()
        self._grants: dict[str, set[Grant]] = {}
        self._expiring: set[Grant] = set()
        self._sessions: dict[Grant, str] = {}
        """Grants of sessions, with the id of the secret that opened them; empty for a token or certificate."""
        self.token_grants = TokenGrants()
        self.sign_outs = SignOuts(self.token_grants)
        self._expiry_checked_at = 0.0
        self.update(snapshot or CredentialSnapshot())

    @property
    def open(self) -> bool:
        """True without authentication: every client may do everything."""
        return self.mode is AuthenticationMode.NONE

    @property
    def passwords(self) -> bool:
        """True when clients of this space authenticate with user name and password."""
        return self.mode is AuthenticationMode.STANDARD

    @property
    def tokens(self) -> bool:
        """True when clients of this space authenticate with bearer tokens of an issuer."""
        return self.mode is AuthenticationMode.EXTERNAL and self.bearer is not None

    def change_mode(self, mode: AuthenticationMode) -> None:
        """Change how clients authenticate from now on, and end sessions. Open connections stay."""
        self.mode = mode
        for grant in list(self._sessions):
            revoke_grant(grant, Ended.CHANGED)

    def accept_tokens(self, bearer: BearerVerifier | None) -> None:
        """Verify tokens with this issuer only from now on; None: accept no token."""
        self.bearer = bearer

    def call_when_unknown(self, reload_users: Callable[[], None]) -> None:
        """Call `reload_users`, which may `update` the users, before an unknown user is refused."""
        self._reload_users = reload_users

    def look_up_devices(self, devices: DeviceDirectory) -> None:
        """Accept the devices of a directory too. A user of this space wins over a device with its name."""
        self._devices = devices

    def knows(self, user: str) -> bool:
        """Return False when a user of this name cannot log in; True also where the users are not known here."""
        return self.mode is not AuthenticationMode.STANDARD or self._account(user) is not None

    def update(self, snapshot: CredentialSnapshot) -> None:
        """Apply a change of users. Disconnect users who were removed or have other rights now; they may reconnect.

        A session also ends with the password that opened it; an open connection stays.
        Failed logins of changed users are forgotten: a device may try to log in long before its user is added.
        """
        before, self._users = self._users, snapshot.users
        self._decoy_key = snapshot.decoy_key or self._key
        changed = {name for name in before.keys() | self._users.keys() if before.get(name) != self._users.get(name)}
        self._failures.forgive(changed)
        for name in changed & before.keys():
            user, now = before[name], self._users.get(name)
            self._known.pop(name, None)
            if now is None:
                self.last_logins.pop(name, None)
            if now is None or now.rules != user.rules:
                for grant in list(self._grants.get(name, ())):
                    log.info("user %s changed: closing the connection of %s", name, grant.client or "-")
                    revoke_grant(grant, Ended.CHANGED)
            else:
                self._limit_sessions(now)
        for name in changed - before.keys():
            if name in self._grants and self._devices.user(name) is not None:
                log.info("user %s was added: closing the connections of the device with its name", name)
                for grant in list(self._grants[name]):
                    revoke_grant(grant, Ended.CHANGED)

    def update_devices(self, identities: Set[str], usernames: Set[str]) -> None:
        """Apply a change of devices of the directory. Disconnect those that are gone or disabled, or have other
        rights. A connected device with another password stays."""
        self._failures.forgive(usernames)
        for identity in identities & self._grants.keys() - self._users.keys():
            user = self._devices.user(identity)
            if user is None:
                self.last_logins.pop(identity, None)
            for grant in list(self._grants[identity]) if user is None else ():
                log.info(
                    "device %s was removed or disabled: closing the connection of %s", identity, grant.client or "-"
                )
                revoke_grant(grant, Ended.CHANGED)
            if user is not None:
                self._limit_sessions(user)

    def _limit_sessions(self, user: CredentialUser) -> None:
        """End the sessions of removed passwords of a user, and note when a password will end."""
        ends = {secret.id: secret.not_after for secret in user.secrets}
        for grant in [each for each in self._grants.get(user.name, ()) if self._sessions.get(each)]:
            secret = self._sessions[grant]
            if secret not in ends:
                log.info("user %s has another password: ending a session", user.name)
                revoke_grant(grant, Ended.CHANGED)
            elif ends[secret] is not None:
                grant.end_at(ends[secret])
                self._expiring.add(grant)

    # --- passwords ----------------------------------------------------------------------------------------------

    def check(
        self, username: str | None, password: bytes | None, decided: Decided, source: str = "", client: str = ""
    ) -> None:
        """Call `decided` once: at once if nothing has to be hashed, else later. With tokens the password is a token.

        `source` is the peer's address, for counting failures; empty: failures are not counted. `client`: its client
        identifier, for the journal of refusals.
        """
        if self.tokens:
            self.check_token(password or b"", decided, source, client)
            return
        if username is None or password is None or len(password) > PASSWORD_BYTES_MAX or not self.passwords:
            incomplete = username is None or password is None
            self.failed(source, username or "", client, RefusalCause.NO_CREDENTIALS if incomplete else None)
            decided(LoginVerdict.REFUSED, None)
            return
        user = self._user(username)
        digest = hmac.digest(self._key, username.encode("utf-8", "surrogatepass") + b"\0" + password, hashlib.sha256)
        if user is not None and self._is_cached(username, user, digest):
            self.succeeded(source, username)
            proven = VerifiedIdentity(user.name, secret=self._known[username].secret, login=username)
            decided(LoginVerdict.ACCEPTED, proven)
            return
        if self.throttles(source, username, client):
            self.busy += 1
            decided(LoginVerdict.BUSY, None)
            return
        login = self._waiting.add(username if user is not None else None, decided, self._clock())
        if login is None:
            self.busy += 1
            self.refusals.add(RefusalCause.BUSY, source, user=username, client=client)
            decided(LoginVerdict.BUSY, None)
            return
        waiting, candidate, at_s = login, user, self._utc_s()

        def work() -> CredentialSecret | None:
            if waiting.answered:
                return None
            valid = [secret for secret in candidate.secrets if secret.valid(at_s)] if candidate is not None else []
            if all(secret.imported for secret in valid):  # the time does not show who has another broker's hash
                _verify_decoy(password)
            return verify(candidate, password, at_s) if candidate is not None and valid else None

        def done(secret: CredentialSecret | None) -> None:
            if candidate is None and not waiting.answered and self._by_login(username) is not None:
                self._waiting.remove(waiting)  # the user was added while the users were read
                self.check(username, password, decided, source, client)
            else:
                self._verified(username, digest, secret, waiting, source, client)

        self._worker(work, done)

    def _user(self, username: str) -> CredentialUser | None:
        """Return the user. Reload the users first if the name is unknown, as it may have just been added."""
        if username not in self._users:
            self._reload_users()
        return self._by_login(username)

    def _by_login(self, username: str) -> CredentialUser | None:
        """Return the user of a login. A device with the name of a user of this space is not found."""
        found = self._users.get(username)
        if found is None:
            found = self._devices.login(username)
            return None if found is None or found.name in self._users else found
        return found

    def _account(self, identity: str) -> CredentialUser | None:
        """Return the user or device with an identity."""
        return self._users.get(identity) or self._devices.user(identity)

    def _verified(
        self,
        username: str,
        digest: bytes,
        secret: CredentialSecret | None,
        login: WaitingLogin,
        source: str,
        client: str,
    ) -> None:
        """Process the result. A result after the answer "busy" is cached for the client's next attempt."""
        self.verifications += 1
        self._waiting.remove(login)
        # the user may have changed while its password was verified
        user = self._by_login(username)
        current = next((s for s in user.secrets if secret is not None and s.id == secret.id), None) if user else None
        if user is None or current is None or not current.valid(self._utc_s()):
            if not login.answered:
                self.failed(source, username, client)
                login.answer(LoginVerdict.REFUSED, None)
            return
        if len(self._known) >= USERS_MAX:
            self._known.clear()
        self._known[username] = _CachedPassword(digest, current.id, self._clock() + VERDICT_KEPT_S)
        self.succeeded(source, username)
        login.answer(LoginVerdict.ACCEPTED, VerifiedIdentity(user.name, secret=current.id, login=username))

    @property
    def waits_s(self) -> float:
        """Seconds that the oldest login has waited for the verification of its password."""
        return self._waiting.waits_s(self._clock())

    def _refuse_overdue(self) -> None:
        """Answer "busy" to logins that waited too long."""
        late = self._waiting.overdue(self._clock())
        if not late:
            return
        self.busy += len(late)
        self.late += len(late)
        log.warning(
            "%d logins refused as busy: not verified within %.0f s (%d since start)",
            len(late), VERIFICATION_WAIT_S_MAX, self.late,
        )  # fmt: skip
        for login in late:
            self.refusals.add(RefusalCause.BUSY, user=login.bucket or "")
            try:
                login.answer(LoginVerdict.BUSY, None)
            except Exception as error:
                report("a waiting login", "its connection gets no answer", error)

    def _is_cached(self, username: str, user: CredentialUser, digest: bytes) -> bool:
        known = self._known.get(username)
        if known is None or not hmac.compare_digest(known.digest, digest):
            return False
        valid = any(secret.id == known.secret and secret.valid(self._utc_s()) for secret in user.secrets)
        if valid and self._clock() < known.until:
            return True
        del self._known[username]
        return False

    # --- failures -----------------------------------------------------------------------------------------------

    def too_many_failures(self, source: str, username: str) -> bool:
        """Return True while clients at this address may not log in as this user."""
        return self._failures.too_many(source, username, self._clock())

    def throttles(self, source: str, username: str, client: str = "") -> bool:
        """Return True and record the refusal while clients at this address may not log in as this user."""
        throttled = self.too_many_failures(source, username)
        if throttled:
            self.refusals.add(RefusalCause.THROTTLED, source, user=username, client=client)
        return throttled

    def succeeded(self, source: str, username: str) -> None:
        """Record a successful login: failures of other users at this address do not lock this user out."""
        self._failures.succeeded(source, username, self._clock())

    def failed(self, source: str, username: str, client: str = "", cause: RefusalCause | None = None) -> None:
        """Record a failed login as this user from this address. `cause` None: the user is unknown, or the password or
        token is wrong."""
        self.refused += 1
        known = self._by_login(username) is not None
        self.refusals.add(cause or _cause_of_failure(self, known=known), source, user=username, client=client)
        now = self._clock()
        self._failures.add(source, username, now)
        if now >= self._log_failures_at:  # not a line for each: guessing must not fill the log
            self._log_failures_at = now + FAILURE_LOG_S
            words = "token refused" if self.tokens else LoginVerdict.REFUSED.value
            log.warning("user %r: %s (%d since start)", (username or "-")[:100], words, self.refused)

    # --- tokens -------------------------------------------------------------------------------------------------

    def check_bearer(self, message: bytes, decided: Decided, source: str = "", client: str = "") -> None:
        """Check the message of OAUTHBEARER; see `check`."""
        try:
            shown = bearer.read(message)
        except bearer.BearerError:
            self.failed(source, "", client)
            decided(LoginVerdict.REFUSED, None)
            return

        def known(verdict: LoginVerdict, proven: VerifiedIdentity | None) -> None:
            if proven is not None and shown.authority not in ("", proven.user):
                self.failed(source, proven.user, client)
                decided(LoginVerdict.REFUSED, None)
            else:
                decided(verdict, proven)

        self.check_token(shown.token, known, source, client)

    def check_token(self, token: bytes, decided: Decided, source: str = "", client: str = "") -> None:
        """Call `decided` once: at once, or after the issuer has answered."""

        def known(verdict: LoginVerdict, proven: VerifiedIdentity | None) -> None:
            if verdict is LoginVerdict.REFUSED:
                self.failed(source, "", client, RefusalCause.TOKEN)
            elif verdict is LoginVerdict.ENDED:
                self.refused += 1
                self.refusals.add(RefusalCause.TOKEN, source, client=client)
            decided(LoginVerdict.REFUSED if verdict is LoginVerdict.ENDED else verdict, proven)

        if self.bearer is None or not self.tokens or not 0 < len(token) <= TOKEN_BYTES_MAX:
            known(LoginVerdict.REFUSED, None)
        elif self.throttles(source, "", client):
            self.busy += 1
            decided(LoginVerdict.BUSY, None)
        else:
            self.bearer.check(token, known, source)

    # --- SCRAM --------------------------------------------------------------------------------------------------

    def scram(self, username: str) -> ScramVerifier:
        """Return the SCRAM verifier of a user. That of an unknown user is always the same, and no proof fits it."""
        user = self._user(username)
        if user is None or not self.passwords or not user.salt:  # one without keys looks like an unknown one
            return _unfitting_verifier(self._decoy_key, username)
        return _scram_verifier(user, self._utc_s())

    def identify(self, username: str) -> VerifiedIdentity:
        """Return the identity of a client that has proven by SCRAM that it is this user."""
        user = self._by_login(username)
        return VerifiedIdentity(username if user is None else user.name, login=username)

    # --- grants -------------------------------------------------------------------------------------------------

    def grant(
        self, proven: VerifiedIdentity, client: str, revoke: Callable[[Ended], None], *, restored: bool = False
    ) -> Grant | None:
        """Return the grant of a verified client for one connection; None when the user does not exist, or has signed
        out at the issuer.

        The user of a token need not be known here. `revoke` is called when the rights change, until `release`.
        `restored`: it logged in earlier.
        """
        known = self._account(proven.user) is not None
        if isinstance(proven.user, CertifiedIdentity) and proven.user in self._users:
            return None  # the certificate proves the device, and not the user who has its name
        if (not known and proven.expires_at_s is None) or self.sign_outs.covers(proven.origin):
            return None
        if known and not restored:
            self.last_logins[proven.user] = self._utc_s()
        grant = Grant(proven.user, client, self._rules(proven), revoke)
        self._hold(grant, proven.expires_at_s, proven.origin)
        return grant

    def grant_session(
        self, proven: VerifiedIdentity, client: str, revoke: Callable[[Ended], None], *, restored: bool = False
    ) -> Grant | None:
        """Return a grant like `grant` that also ends with the password that was verified, and with a change of mode."""
        user = self._account(proven.user)
        if proven.secret and (user is None or all(secret.id != proven.secret for secret in user.secrets)):
            return None  # the password has changed since it was verified
        grant = self.grant(proven, client, revoke, restored=restored)
        if grant is not None:
            self._sessions[grant] = proven.secret
            if proven.secret and user is not None:
                self._limit_sessions(user)
        return grant

    @property
    def users(self) -> Mapping[str, CredentialUser]:
        """Users of this space by name, as they are now: a change replaces the mapping."""
        return self._users

    def connections_of(self, user: str) -> int:
        """Return the number of connections, sessions and requests of a user."""
        return len(self._grants.get(user, ()))

    def rules_of(self, user: str, client: str) -> tuple[AccessRule, ...]:
        """Return the rights of a connected client of this user, or those of the user."""
        found = next((grant.rules for grant in self._grants.get(user, ()) if grant.client == client), None)
        if found is not None:
            return found
        known = self._account(user)
        return () if known is None else tuple(known.rules)

    def grant_nothing(self, client: str, revoke: Callable[[Ended], None]) -> Grant:
        """Return a grant without rights, for a client that will send a token: `renew` within `TOKEN_WAIT_S`."""
        grant = Grant("", client, (), revoke)
        self._hold(grant, self._utc_s() + TOKEN_WAIT_S)
        return grant

    def renew(self, grant: Grant, proven: VerifiedIdentity) -> bool:
        """Renew the grant of a client that has re-authenticated. Return False when it is another user now.

        The publisher's name depends on the right to relay, so a client that gained or lost it counts as another user.
        """
        known = self._account(proven.user) is not None or proven.expires_at_s is not None
        held = grant in self._grants.get(grant.user, ())  # it may have ended while the token was verified
        if not (known and held) or grant.user not in ("", proven.user) or self.sign_outs.covers(proven.origin):
            return False
        rules = self._rules(proven)
        if grant.user and Grant(proven.user, grant.client, rules).may_relay != grant.may_relay:
            return False
        session = self._sessions.get(grant)
        self.release(grant)
        grant.replace(proven.user, rules)
        self._hold(grant, proven.expires_at_s, proven.origin)
        if session is not None:
            self._sessions[grant] = session
        return True

    def expire(self) -> None:
        """Revoke expired grants and refuse overdue logins. Cheap to call often."""
        self._refuse_overdue()
        now = self._clock()
        if not self._expiring or now - self._expiry_checked_at < TOKEN_EXPIRY_CHECK_S:
            return
        self._expiry_checked_at = now
        at_s = self._utc_s()
        for grant in [g for g in self._expiring if g.expires_at_s is not None and g.expires_at_s <= at_s]:
            self._expiring.discard(grant)
            if self._sessions.get(grant):
                log.info("user %s: the password of a session has ended", grant.user)
                revoke_grant(grant, Ended.CHANGED)
                continue
            log.info("user %s: the token of %s has expired", grant.user or "-", grant.client or "-")
            revoke_grant(grant, Ended.EXPIRED)

    def _rules(self, proven: VerifiedIdentity) -> tuple[AccessRule, ...]:
        user = self._account(proven.user)
        return proven.rules if user is None else (*user.rules, *proven.rules)

    def _hold(self, grant: Grant, expires_at_s: float | None, token: TokenOrigin | None = None) -> None:
        grant.end_at(expires_at_s)
        self.token_grants.hold(grant, token)
        self._grants.setdefault(grant.user, set()).add(grant)
        if expires_at_s is not None:
            self._expiring.add(grant)

    def release(self, grant: Grant) -> None:
        """Drop the grant of a closed connection. Idempotent."""
        self._expiring.discard(grant)
        self._sessions.pop(grant, None)
        self.token_grants.release(grant)
        grants = self._grants.get(grant.user)
        if grants is not None:
            grants.discard(grant)
            if not grants:
                del self._grants[grant.user]

    def revoke_all(self) -> None:
        """Close every connection that has a grant, after a change of mode."""
        for grant in [each for grants in self._grants.values() for each in grants]:
            revoke_grant(grant, Ended.CHANGED)


def _cause_of_failure(gate: Authenticator, *, known: bool) -> RefusalCause:
    """Return why a login with a complete name and secret failed. `known`: a user has this name."""
    if gate.tokens:
        return RefusalCause.TOKEN
    if not gate.passwords:
        return RefusalCause.CERTIFICATE
    return RefusalCause.WRONG_PASSWORD if known else RefusalCause.UNKNOWN_USER


def _scram_verifier(user: CredentialUser, at_s: float) -> ScramVerifier:
    keys = [secret.keys for secret in user.secrets if secret.valid(at_s) and not secret.imported]
    return ScramVerifier(user.salt, user.iterations, keys)


def _unfitting_verifier(key: bytes, username: str) -> ScramVerifier:
    """Return the verifier of an unknown user, always the same for a name, which no proof fits."""
    salt = hmac.digest(key, username.encode("utf-8", "surrogatepass"), hashlib.sha256)
    return ScramVerifier(salt[:SALT_BYTES], ITERATIONS, ())


@functools.cache
def _decoy() -> CredentialUser:
    return with_secret(new_user(DECOY_USER), secrets.token_hex(8), at_s=0.0)


def _verify_decoy(password: bytes) -> None:
    """Take as long as the verification of a user's wrong password."""
    verify(_decoy(), password, 0.0)
