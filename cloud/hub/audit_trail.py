"""Audit of a hub: one line in the registry for each change over HTTP.

A line has user, address, action, subject, the state before and after where it is small, and the outcome. It is written
before the answer leaves. While the registry cannot be written, lines wait in memory, and the hub reports a problem: the
change itself has been made. Endpoints say what they change (`cloud.hub.changes`); bodies are not recorded, as they may
contain secrets. Requests without a user change nothing and are left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bridge.periodic_task import PeriodicTask
from cloud.hub.changes import CHANGE, NotedChange
from cloud.hub.limits import (
    AUDIT_CHECK_S,
    AUDIT_CLEANUP_S,
    AUDIT_KEPT_S,
    AUDIT_REFUSED_INTERVAL_S,
    AUDIT_SESSION_INTERVAL_S,
    AUDIT_TENANT_ROWS_MAX,
    AUDIT_TEXT_CHARACTERS_MAX,
    AUDIT_VALUE_BYTES_MAX,
    AUDIT_WAITING_MAX,
)
from cloud.hub.peers import DEFAULT_TENANT, InvalidPeer, PeerKind, parse_user
from cloud.hub.registry.audit import Audit, AuditEntry, AuditFilter, AuditReader, FoundEntries
from cloud.hub.registry_thread import RegistryThread
from cloud.lake.faults import RegistryError
from edge.broker.http.access import USER, HttpAccess
from edge.broker.http.oidc_api import CALLBACK
from edge.broker.http.route import READS
from edge.broker.http.session_api import PATH as SESSION
from edge.broker.model.remote import remote_of
from edge.output.document import json
from edge.output.text import line

log = logging.getLogger(__name__)

T = TypeVar("T")

_SESSIONS: Final = {
    ("POST", SESSION): "session.open",
    ("GET", CALLBACK): "session.open",
    ("DELETE", SESSION): "session.close",
}
"""Actions of sign-ins and sign-outs, by method and path."""
_FAILED: Final = 500
"""Status of an answer when the endpoint raised an exception."""
_UNANSWERED: Final = "the request ended without an answer: the change may have been made"
_REFUSED: Final = 400
"""Least status of a request that was not done."""
_REFUSED_INTERVAL_US: Final = int(AUDIT_REFUSED_INTERVAL_S * 1_000_000)
_SESSION_INTERVAL_US: Final = int(AUDIT_SESSION_INTERVAL_S * 1_000_000)
_LEFT_OUT: Final = '{"left_out":true}'
"""Value that was too large."""


class SearchInProgress(Exception):
    """The user searches the audit already."""


class HubAudit:
    """Writes and reads the audit. `open`, later `close`. Runs on the event loop; the registry work in two threads, one
    that writes and one that reads."""

    def __init__(self, registry: sa.URL, now: Callable[[], float]) -> None:
        """`now`: UTC seconds since 1970."""
        self.lost = 0
        """Lines lost since the start, as too many waited."""
        self._now = now
        self._writer = RegistryThread("audit", lambda: Audit(registry))
        self._reader = RegistryThread("audit-reading", lambda: AuditReader(registry))
        self._searching: set[str] = set()
        """Users with a search in progress."""
        self._waiting: deque[AuditEntry] = deque()
        self._fault: str | None = None
        self._cleaned_at = float("-inf")
        self._keeping = PeriodicTask(
            "audit", self._keep, AUDIT_CHECK_S,
            log=log, failed="old lines of the audit are not deleted", expected=(RegistryError,),
        )  # fmt: skip

    @property
    def trouble(self) -> str | None:
        """Reason why changes are not recorded; None if they are."""
        if self._fault is None:
            return None
        lost = f", {self.lost} are lost" if self.lost else ""
        return f"{len(self._waiting)} changes are not in the audit yet{lost}: {self._fault}"

    async def open(self) -> None:
        """Open the registry. Raises `RegistryError`."""
        await self._writer.open()
        await self._reader.open()
        self._keeping.start()

    async def close(self) -> None:
        """Write what waits, and close the registry. Idempotent."""
        await self._keeping.stop()
        await self._write()
        await self._reader.close()
        await self._writer.close()

    def now_us(self) -> int:
        """Return UTC microseconds since 1970."""
        return int(self._now() * 1_000_000)

    async def ask(self, work: Callable[[Audit], T]) -> T:
        """Run `work` on the registry's thread. Raises `RegistryError`."""
        return await self._writer.run(work)

    async def search(self, who: str, wanted: AuditFilter, limit: int) -> FoundEntries:
        """Return a page of lines, for one search of `who` at a time. It delays no line that is written. Raises
        `SearchInProgress`, `RegistryError`."""
        if who in self._searching:
            raise SearchInProgress("your last search of the audit is not done yet; wait for it, and try again")
        found = self._reader.submit(lambda reader: reader.page(wanted, limit))
        self._searching.add(who)
        found.add_done_callback(lambda _: self._searching.discard(who))
        return await asyncio.shield(found)  # a search goes on after its client has left, and counts until its end

    async def record(self, entry: AuditEntry) -> None:
        """Write a line; it is on disk on return, unless the registry cannot be written."""
        self.put(entry)
        await self._write()

    def put(self, entry: AuditEntry) -> None:
        """Queue a line; it is on disk within `AUDIT_CHECK_S`, at the latest when the audit is closed."""
        self._waiting.append(entry)

    async def clean_up(self) -> int:
        """Delete old lines; return their number. Raises `RegistryError`."""
        before_us = self.now_us() - AUDIT_KEPT_S * 1_000_000
        return await self.ask(lambda registry: registry.clean_up(before_us, AUDIT_TENANT_ROWS_MAX))

    async def _write(self) -> None:
        entries = list(self._waiting)
        if not entries:
            return
        self._waiting.clear()
        try:
            await self.ask(lambda registry: registry.add(entries))
        except RegistryError as error:
            self._keep_waiting(entries, str(error))
        except BaseException:
            self._keep_waiting(entries, "internal error")
            raise
        else:
            self._fault = None

    def _keep_waiting(self, entries: list[AuditEntry], why: str) -> None:
        self._waiting.extendleft(reversed(entries))
        if self._fault is None:
            log.warning("changes are not recorded in the audit: %s", why)
        self._fault = why
        while len(self._waiting) > AUDIT_WAITING_MAX:
            self._waiting.popleft()
            self.lost += 1

    async def _keep(self) -> None:
        """Write again what waits, and delete old lines when they are due."""
        await self._write()
        if not 0 <= self._now() - self._cleaned_at < AUDIT_CLEANUP_S:
            self._cleaned_at = self._now()
            await self.clean_up()


class AuditTrail:
    """ASGI middleware that records changes in the audit."""

    def __init__(self, app: ASGIApp, audit: HubAudit, access: HttpAccess) -> None:
        self._app = app
        self._audit = audit
        self._access = access
        self._written: dict[tuple[str, str, int, str], int] = {}
        """Time of the last line about a refusal, or of a session, by user, action, status and network."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"] in READS and _place(scope) not in _SESSIONS):
            await self._app(scope, receive, send)
            return
        recorded = False

        async def send_after_recording(message: Message) -> None:
            nonlocal recorded
            if message["type"] == "http.response.start" and not recorded:
                recorded = True
                if (entry := self._entry_of(scope, message["status"])) is not None:
                    await self._audit.record(entry)
            await send(message)

        try:
            await self._app(scope, receive, send_after_recording)
        finally:
            # Without waiting: the request may have been cancelled because the server stops.
            if not recorded and (entry := self._entry_of(scope, _FAILED, _UNANSWERED)) is not None:
                self._audit.put(entry)

    def _entry_of(self, scope: Scope, status: int, why: str = "") -> AuditEntry | None:
        """Return the line about a request; None if it changes nothing, or repeats the last one."""
        noted, user = _noted(scope, status), scope.get(USER)
        if noted is None or (user is None and not self._access.open):
            return None
        if status < _REFUSED and noted.before is not None and noted.before == noted.after:
            return None
        now_us, client, subject = self._audit.now_us(), scope.get("client"), noted.subject
        if status >= _REFUSED:
            if self._is_repeated((user or "", noted.action, status, ""), _REFUSED_INTERVAL_US, now_us):
                return None
        elif _place(scope) in _SESSIONS:
            network = remote_of(client[0]) if client else ""
            if self._is_repeated((user or "", noted.action, status, network), _SESSION_INTERVAL_US, now_us):
                return None
        if subject is None:
            subject = " ".join(str(each) for each in scope.get("path_params", {}).values())
        return AuditEntry(
            at=now_us,
            user=user or "",
            remote=client[0] if client else "",
            tenant=_tenant(noted, user),
            action=noted.action,
            subject=line(subject[:AUDIT_TEXT_CHARACTERS_MAX]),
            before=_value(noted.before),
            after=_value(noted.after),
            status=status,
            error=line((noted.error or why)[:AUDIT_TEXT_CHARACTERS_MAX]),
        )

    def _is_repeated(self, event: tuple[str, str, int, str], interval_us: int, now_us: int) -> bool:
        """Return True for an event like one a moment ago: refusals and sign-ins must not push changes out of the
        audit."""
        if now_us - self._written.get(event, -interval_us) < interval_us:
            return True
        if len(self._written) >= AUDIT_WAITING_MAX:
            self._written.clear()
        self._written[event] = now_us
        return False


def _noted(scope: Scope, status: int) -> NotedChange | None:
    """Return the change of a request; None if it changes nothing. A failed sign-in has no user, and no line."""
    action = _SESSIONS.get(_place(scope))
    if action is None:
        return scope.get(CHANGE)
    return NotedChange(action) if status < _REFUSED and scope.get(USER) else None


def _place(scope: Scope) -> tuple[str, str]:
    return scope["method"], scope["path"]


def _tenant(noted: NotedChange, user: str | None) -> str:
    """Return the tenant that the endpoint has checked, else the user's; the query of a request may name any."""
    if noted.tenant is not None:
        return noted.tenant
    try:
        return parse_user(user or "", PeerKind.PERSON).tenant
    except InvalidPeer:
        return DEFAULT_TENANT


def _value(document: Any) -> str | None:
    if document is None:
        return None
    text = json(document)
    return text if len(text.encode()) <= AUDIT_VALUE_BYTES_MAX else _LEFT_OUT
