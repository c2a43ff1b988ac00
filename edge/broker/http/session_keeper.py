"""Lets the sessions of browsers outlive a restart, and be used at every node that shares their archive.

```
sign-in ──► table of sessions ──► archive          request with an unknown token ──► archive ──► table
sign-out ─► table, archive, answer                 every minute: times of use ─────► archive
revoked ──► table, archive a moment later          every 5 s of use, if shared: ───► still there?
```

The archive blocks, so it is opened and used in a thread. While it cannot be used, people sign in and work as before;
their sessions end with the process. A silent one is asked seldom: one check at a time, none for some seconds after a
failure, and what waits behind a failed question fails with it. A sign-out is answered when it is durable. A restored
session has the rights that its user has now, and is not restored if the user, its password or the issuer has changed: a
revocation that was not written any more before a power cut is not undone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from edge.broker.http.limits import (
    SESSION_ASKS_MAX,
    SESSION_CHECK_S,
    SESSION_CHECK_S_MAX,
    SESSION_KEEP_S,
    SESSION_LIFE_S,
    SESSION_LOOKUP_S_MAX,
    SESSION_LOOKUPS_MAX,
    SESSION_TOUCHES,
    SESSION_UNKNOWN_S,
    SESSIONS_ENDED_KEPT_MAX,
)
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.session_archive import (
    ArchiveFailed,
    IssuerMemory,
    KeptSession,
    SessionArchive,
    kept_origin,
    seal,
    sealing_key,
    unseal,
)
from edge.broker.http.sessions import BrowserSession, BrowserSessions, key_of
from edge.broker.model.authorization import Ended, Grant
from edge.broker.security.proof import VerifiedIdentity, renewed_origin
from edge.broker.security.sign_in import SignedInPerson
from edge.output.text import line

log = logging.getLogger(__name__)

T = TypeVar("T")

GrantKept = Callable[[KeptSession, Callable[[Ended], None]], Grant | None]
"""Makes the grant of a kept session, with the callback that ends it; None if it is not to be restored."""


class Renewer(Protocol):
    """Renews the rights of people at the issuer."""

    def resume(self, session: BrowserSession, refresh_token: str) -> None:
        """Keep the rights of a restored session those that the issuer gives."""
        ...

    async def renew(self, refresh_token: str) -> SignedInPerson | None:
        """Return the person of a token with the rights of now; None if the issuer does not give it any."""
        ...


class _Known(NamedTuple):
    """Kept state of a session in the table, and when this node looked last (monotonic)."""

    kept: KeptSession
    checked_at: float


class SessionKeeper:
    """Keeps the sessions of a table in an archive. Call `start`, later `close`, inside a running loop."""

    def __init__(
        self,
        sessions: BrowserSessions,
        open_archive: Callable[[], SessionArchive],
        grant_kept: GrantKept,
        *,
        clock: Callable[[], float],
        utc_s: Callable[[], float],
        shared: bool = False,
        has_signed_out: Callable[[KeptSession], bool] = lambda _: False,
    ) -> None:
        """`clock` returns monotonic seconds; `utc_s` UTC seconds. `shared`: other nodes use the archive too.
        `has_signed_out` returns True for a session with a sign-in that the issuer has ended."""
        self._has_signed_out = has_signed_out
        self._renewer: Renewer | None = None
        self.trouble: str | None = None
        """Why sessions are not kept; None if they are."""
        self._sessions = sessions
        self._open_archive = open_archive
        self._shared = shared
        self._grant_kept = grant_kept
        self._clock = clock
        self._utc_s = utc_s
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="sessions")
        self._archive: SessionArchive | None = None
        self._known: dict[bytes, _Known] = {}
        self._unkept: dict[bytes, KeptSession] = {}
        """Sessions in the table that could not be kept yet."""
        self._ended: dict[bytes, None] = {}
        """Keys of sessions that must not come back; the oldest first."""
        self._unwritten: dict[bytes, None] = {}
        """Ended keys that the archive may still have."""
        self._lookups: dict[bytes, asyncio.Task[None]] = {}
        """Lookups of unknown sessions in progress: a page sends several requests at once."""
        self._strangers: dict[bytes, float] = {}
        """Keys that the archive does not have, and when that was seen (monotonic); the oldest first."""
        self._checking: asyncio.Task[None] | None = None
        """Check in progress, of one session."""
        self._resume_at = float("-inf")
        """When the archive is looked at again after a failure (monotonic)."""
        self._asks = 0
        self._failures = 0
        """Questions that wait for the archive or are answered by it, and those that failed."""
        self._why = ""
        """Reason of the last failure, known on the thread before the loop takes it."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loading: asyncio.Task[None] | None = None
        sessions.call_when_discarded(self._discard)

    def renew_with(self, renewer: Renewer) -> None:
        """Renew the rights of restored sessions in this way from now on."""
        self._renewer = renewer

    def start(self) -> None:
        """Start restoring what is kept."""
        loop = asyncio.get_running_loop()
        self._loading = loop.create_task(self._load(), name="sessions: load")
        self._task = loop.create_task(self._run(), name="sessions")

    async def close(self) -> None:
        """Write the last uses, and close the archive. Idempotent."""
        tasks, self._task, self._loading = [self._task, self._loading], None, None
        for task in tasks:
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if tasks[0] is None:
            return
        with contextlib.suppress(ArchiveFailed):
            await self._write(everything=True)
        await asyncio.get_running_loop().run_in_executor(self._executor, self._close_archive)
        self._executor.shutdown()

    # --- for requests -----------------------------------------------------------------------------------------------

    async def recover(self, token: str) -> None:
        """Bring the session of a token into the table if it is kept, and drop it if another node has ended it.

        Raises `ArchiveFailed` if the session is unknown here and cannot be looked up. An archive of this node alone
        that fails knows no session: its people sign in again.
        """
        if self._loading is not None and not self._loading.done():
            await asyncio.wait([self._loading], timeout=SESSION_LOOKUP_S_MAX)
        key = key_of(token)
        session = self._sessions.of_key(key)
        if session is None:
            try:
                await self._look_up(key, token)
            except ArchiveFailed:
                if self._shared:
                    raise
            session = self._sessions.of_key(key)
        else:
            await self._check(session)
        if session is not None:
            self._remember(session, token)

    def needs_lookup(self, token: str) -> bool:
        """Return True if `recover` would ask the archive for a session that is unknown here."""
        key = key_of(token)
        return self._sessions.of_key(key) is None and not self._is_known_stranger(key)

    async def opened(self, session: BrowserSession, token: str, kept: KeptSession) -> None:
        """Keep a new session. If that fails it is tried again while the session lasts."""
        session.sealing_key = sealing_key(token)
        try:
            await self._keep(session, kept)
        except ArchiveFailed as error:
            log.warning("the session of %s is not kept over a restart yet: %s", line(session.user), error)
            if session in self._sessions:
                self._unkept[kept.key] = kept
                self._wake.set()

    async def _keep(self, session: BrowserSession, kept: KeptSession) -> None:
        """Add a session to the archive. Raises `ArchiveFailed`."""
        displaced = await self._ask(lambda archive: archive.add(kept))
        for key in displaced:
            self._end(key)
        if session in self._sessions:
            self._known[kept.key] = _Known(kept, self._clock())
        else:
            self._discard(session)

    async def end(self, session: BrowserSession) -> None:
        """End a session; it is durable on return. Raises `ArchiveFailed`: it has ended here, and is removed later."""
        self._sessions.end(session)
        await self._ask(lambda archive: archive.remove([session.key]))
        self._unwritten.pop(session.key, None)

    async def end_user(self, user: str) -> int:
        """End the sessions of a user at every node; return their number. As `end`."""
        keys = {each.key for each in self._sessions if each.user == user}
        for key in keys:
            self._end(key)
        keys.update(await self._ask(lambda archive: archive.remove_user(user)))
        for key in keys:
            self._end(key)
            self._unwritten.pop(key, None)
        return len(keys)

    # --- tokens of an issuer ----------------------------------------------------------------------------------------

    async def keep_renewal(self, session: BrowserSession, person: SignedInPerson) -> None:
        """Keep the rights that the issuer gave a session, and what it needs to renew them."""
        known, unkept = self._known.get(session.key), self._unkept.get(session.key)
        if unkept is not None:
            self._unkept[session.key] = _renewed(unkept, person, session.id_token, session.sealing_key)
        elif known is not None and session.sealing_key:
            await self._renewed(_renewed(known.kept, person, session.id_token, session.sealing_key))

    async def may_renew(self, session: BrowserSession) -> bool:
        """Return True if this node is the one to ask the issuer; False if another one is doing so."""
        ends_at_s = session.grant.expires_at_s
        if session.key not in self._known or ends_at_s is None:
            return True
        try:
            return await self._ask(lambda archive: archive.claim(session.key, ends_at_s, self._utc_s()))
        except ArchiveFailed:
            return True

    async def renewed_elsewhere(self, session: BrowserSession) -> SignedInPerson | None:
        """Return the person with the rights that another node got when it renewed a session; None if none did."""
        try:
            kept = await self._ask(lambda archive: archive.find(session.key))
        except ArchiveFailed:
            return None
        ends_at_s = session.grant.expires_at_s
        if kept is None or kept.expires_at_s is None or ends_at_s is None or kept.expires_at_s <= ends_at_s:
            return None
        memory = unseal(session.sealing_key, kept.sealed)
        if memory is None:
            return None
        proven = VerifiedIdentity(kept.user, kept.rules, kept.expires_at_s, origin=kept.origin)
        return SignedInPerson(proven, memory.refresh_token, memory.id_token)

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Restore all that is kept."""
        try:
            found = await self._ask(lambda archive: archive.all())
        except ArchiveFailed as error:
            log.warning("sessions are not restored: %s", error)
            return
        for each in found:
            self._restore(each)

    async def _look_up(self, key: bytes, token: str) -> None:
        """Restore the session of a token if it is kept. Raises `ArchiveFailed`."""
        if self._is_known_stranger(key):
            return
        lookup = self._lookups.get(key)
        if lookup is None:
            if self._clock() < self._resume_at:
                raise ArchiveFailed(self.trouble or "the archive is silent; try again in some seconds")
            if len(self._lookups) >= SESSION_LOOKUPS_MAX:
                raise ArchiveFailed("too many requests with unknown sessions; try again in a moment")
            lookup = self._lookups[key] = asyncio.get_running_loop().create_task(self._looked_up(key, token))
            lookup.add_done_callback(lambda _: self._lookups.pop(key, None))
        try:
            async with asyncio.timeout(SESSION_LOOKUP_S_MAX):
                await asyncio.shield(lookup)
        except TimeoutError:
            raise ArchiveFailed("the archive is silent; try again in some seconds") from None

    def _is_known_stranger(self, key: bytes) -> bool:
        seen_at = self._strangers.get(key)
        return key in self._ended or (seen_at is not None and self._clock() - seen_at < SESSION_UNKNOWN_S)

    def _pause(self) -> None:
        """Ask the archive only what has to be asked, for some seconds."""
        self._resume_at = self._clock() + SESSION_CHECK_S

    async def _looked_up(self, key: bytes, token: str) -> None:
        kept = await self._ask(lambda archive: archive.find(key))
        if kept is None:
            self._strangers.pop(key, None)
            self._strangers[key] = self._clock()
            if len(self._strangers) > SESSIONS_ENDED_KEPT_MAX:
                del self._strangers[next(iter(self._strangers))]
            return
        if kept.sealed and kept.has_expired(self._utc_s()):
            kept = await self._renew_expired(kept, token)
        if kept is not None:
            self._restore(kept)

    async def _renew_expired(self, kept: KeptSession, token: str) -> KeptSession | None:
        """Renew a session with rights that ended while no node ran; None if the issuer does not renew them."""
        memory = unseal(sealing_key(token), kept.sealed)
        if memory is None or self._renewer is None or kept.is_over(self._utc_s()) or kept.expires_at_s is None:
            return None
        if self._has_signed_out(kept):
            return None
        ends_at_s = kept.expires_at_s
        if not await self._ask(lambda archive: archive.claim(kept.key, ends_at_s, self._utc_s())):
            return None
        person = await self._renewer.renew(memory.refresh_token)
        if person is None or person.proven.user != kept.user:
            return None
        person = person._replace(proven=renewed_origin(kept.origin, person.proven))
        fresh = _renewed(kept, person, memory.id_token, sealing_key(token))
        await self._renewed(fresh)
        return fresh

    def _restore(self, kept: KeptSession) -> None:
        if kept.key in self._ended or kept.is_over(self._utc_s()) or kept.has_expired(self._utc_s()):
            return
        self._sessions.restore(
            kept.key,
            lambda revoke: self._grant_kept(kept, revoke),
            stays=kept.stays,
            used_at_s=self._local(kept.used_at_s),
            now=self._clock(),
        )
        if self._sessions.of_key(kept.key) is not None:
            self._known[kept.key] = _Known(kept, self._clock())

    async def _check(self, session: BrowserSession) -> None:
        """Look whether another node has ended or used a session, if this node has not looked just now."""
        known = self._known.get(session.key)
        if known is None or not self._shared:
            return
        now = self._clock()
        if now - known.checked_at < SESSION_CHECK_S or now < self._resume_at or self._checking is not None:
            return
        self._known[session.key] = known._replace(checked_at=now)  # other requests do not look too
        self._checking = asyncio.get_running_loop().create_task(self._checked(session))
        self._checking.add_done_callback(self._forget_check)
        _, silent = await asyncio.wait([self._checking], timeout=SESSION_CHECK_S_MAX)
        if silent:
            self._pause()

    def _forget_check(self, task: asyncio.Task[None]) -> None:
        self._checking = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the check of a session failed with an internal error", exc_info=error)

    async def _checked(self, session: BrowserSession) -> None:
        try:
            kept = await self._ask(lambda opened: opened.find(session.key))
        except ArchiveFailed:
            return  # nothing can be ended at another node either
        if kept is None:
            self._end(session.key)
            return
        session.use(self._local(kept.used_at_s))

    def _remember(self, session: BrowserSession, token: str) -> None:
        """Continue the renewal of a session, as its token is known now."""
        if session.sealing_key:
            return
        session.sealing_key, known = sealing_key(token), self._known.get(session.key)
        if known is None or not known.kept.sealed:
            return
        memory = unseal(session.sealing_key, known.kept.sealed)
        if memory is not None:
            session.signed_in_at_issuer(memory.id_token)
            if self._renewer is not None and memory.refresh_token:
                self._renewer.resume(session, memory.refresh_token)

    async def _renewed(self, kept: KeptSession) -> None:
        known = self._known.get(kept.key)
        if known is not None:
            self._known[kept.key] = known._replace(kept=kept)
        try:
            await self._ask(lambda archive: archive.renewed(kept))
        except ArchiveFailed as error:
            log.warning("the renewed session of %s is not kept: %s", line(kept.user), error)

    def _end(self, key: bytes) -> None:
        _add_bounded(self._ended, key)
        session = self._sessions.of_key(key)
        if session is not None:
            self._sessions.end(session)

    def _discard(self, session: BrowserSession) -> None:
        """Forget a session that has ended in the table."""
        _add_bounded(self._ended, session.key)
        _add_bounded(self._unwritten, session.key)
        self._known.pop(session.key, None)
        self._unkept.pop(session.key, None)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SESSION_KEEP_S):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._write()
            except ArchiveFailed as error:
                log.debug("sessions are written later: %s", error)
                await asyncio.sleep(SESSION_CHECK_S)
                if self._unkept:
                    self._wake.set()
            except Exception:  # an internal error must not end the task silently
                log.exception("keeping sessions failed with an internal error")
                await asyncio.sleep(SESSION_CHECK_S)

    async def _write(self, *, everything: bool = False) -> None:
        """Remove ended sessions, and write the uses that are due. Raises `ArchiveFailed`."""
        removed = list(self._unwritten)
        if removed:
            await self._ask(lambda archive: archive.remove(removed))
            for key in removed:
                self._unwritten.pop(key, None)
        await self._keep_later()
        now, utc_s, used = self._clock(), self._utc_s(), dict[bytes, float]()
        for key in [each for each in self._known if self._sessions.of_key(each) is None]:
            del self._known[key]  # it was idle for too long
        for session in self._sessions:
            known = self._known.get(session.key)
            if known is None:
                continue
            if utc_s - known.kept.opened_at_s >= SESSION_LIFE_S:
                self._sessions.end(session)
                continue
            used_at_s = utc_s - (now - session.used_at_s(now))
            share = 0.0 if everything else session.idle_s / SESSION_TOUCHES
            if used_at_s - known.kept.used_at_s > share:
                used[session.key] = used_at_s
        if not used:
            return
        await self._ask(lambda archive: archive.touch(used))
        for key, used_at_s in used.items():
            if (known := self._known.get(key)) is not None:
                kept = msgspec.structs.replace(known.kept, used_at_s=used_at_s)
                self._known[key] = known._replace(kept=kept)

    async def _keep_later(self) -> None:
        """Add the sessions that could not be kept at their sign-in. Raises `ArchiveFailed`."""
        for key in list(self._unkept):
            session, kept = self._sessions.of_key(key), self._unkept.get(key)
            if session is None or kept is None:
                self._unkept.pop(key, None)
                continue
            now = self._clock()
            used_at_s = self._utc_s() - (now - session.used_at_s(now))
            await self._keep(session, msgspec.structs.replace(kept, used_at_s=used_at_s))
            renewed = self._unkept.pop(key, kept)
            if renewed is not kept:  # by the issuer in the meantime
                await self._renewed(renewed)

    def _local(self, at_s: float) -> float:
        """Return a time in UTC seconds on the monotonic clock; a time in the future is now."""
        return self._clock() - max(0.0, self._utc_s() - at_s)

    def _ask(self, work: Callable[[SessionArchive], T]) -> Awaitable[T]:
        """Run `work` on the archive's thread; it is done also if the caller is cancelled. Raises `ArchiveFailed`."""
        return asyncio.shield(self._asked(work))

    async def _asked(self, work: Callable[[SessionArchive], T]) -> T:
        failures = self._failures

        def run() -> T:
            if self._failures != failures:  # it would block as long as the one before it
                raise ArchiveFailed(self._why)
            try:
                if self._archive is None:
                    self._archive = self._open_archive()
                return work(self._archive)
            except ArchiveFailed as error:
                self._failures, self._why = self._failures + 1, str(error)
                raise

        if self._asks >= SESSION_ASKS_MAX:
            raise ArchiveFailed("too many sessions change at once; try again in some seconds")
        try:
            future = asyncio.get_running_loop().run_in_executor(self._executor, run)
        except RuntimeError as error:  # the executor was shut down
            raise ArchiveFailed("the node stops; try again in some seconds") from error
        self._asks += 1
        try:
            result = await future
        except ArchiveFailed as error:
            if self.trouble is None:
                log.warning("sessions are not kept: %s", line(str(error)))
            self.trouble = str(error)
            self._pause()
            raise
        finally:
            self._asks -= 1
        self.trouble, self._resume_at = None, float("-inf")
        return result

    def _close_archive(self) -> None:
        archive, self._archive = self._archive, None
        if archive is not None:
            archive.close()


def _renewed(kept: KeptSession, person: SignedInPerson, id_token: str, key: bytes) -> KeptSession:
    """Return a session with the rights that the issuer gives now. The issuer may leave out the id token."""
    memory = IssuerMemory(person.refresh_token, person.id_token or id_token)
    return msgspec.structs.replace(
        kept,
        rules=person.proven.rules,
        expires_at_s=person.proven.expires_at_s,
        sealed=seal(key, memory),
        origin=kept_origin(person.proven),
    )


def _add_bounded(keys: dict[bytes, None], key: bytes) -> None:
    keys.setdefault(key)
    while len(keys) > SESSIONS_ENDED_KEPT_MAX:
        del keys[next(iter(keys))]


class RecoverSessions:
    """ASGI middleware that brings back the session of a request before an endpoint needs it."""

    def __init__(self, app: ASGIApp, recover: Callable[[Request], Awaitable[None]]) -> None:
        """`recover` raises RequestRefused."""
        self._app = app
        self._recover = recover

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                await self._recover(Request(scope))
            except RequestRefused as refused:
                await refused.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)
