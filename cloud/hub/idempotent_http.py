"""Requests with an ``Idempotency-Key``: however often a client repeats one, it is done once.

It is for every POST of the API that changes something. The answer is stored in the registry, so that another replica
and a hub that was restarted give it too; answers with a secret are not. Commands to one gateway have keys of their own
(`cloud.hub.commands`), as their answer is the state of the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cloud.hub.changes import NOT_STORED
from cloud.hub.committer import Committer
from cloud.hub.limits import (
    IDEMPOTENCY_KEY_CHARACTERS_MAX,
    IDEMPOTENT_BODY_BYTES_MAX,
    REQUEST_ANSWER_BYTES_MAX,
    REQUEST_IN_PROGRESS_S,
)
from cloud.hub.peers import tenant_of_user
from cloud.hub.registry.request_keys import KeptRequest, RequestKey, TooManyKeys
from cloud.lake.faults import RegistryError
from edge.broker.http.access import HttpAccess
from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.limits import HTTP_BODY_S_MAX
from edge.broker.http.refusal import RequestRefused
from edge.broker.model.authorization import Grant

KEY: Final = "idempotency-key"
REPLAYED: Final = {"Idempotency-Replayed": "true"}
"""Field of an answer that was given before."""
_API: Final = ("/api/v1/", "/v1/")
_COMMANDS: Final = "/api/v1/commands"
_DIGEST_CHARACTERS: Final = 48
"""Hexadecimal characters of a request's digest: 192 bits."""
_RIGHTS_CHARACTERS: Final = 15
"""Hexadecimal characters of the digest of the user's rights, behind a full stop. The registry has room for 64."""
_WITHOUT: Final = ("/api/v1/session", "/api/v1/plans", "/api/v1/commands/rehearsal")
"""Begins of paths where POST changes nothing, or signs in."""


class IdempotentRequests:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, committer: Committer, access: HttpAccess, now_us: Callable[[], int]) -> None:
        """`now_us`: UTC microseconds."""
        self._app = app
        self._committer = committer
        self._access = access
        self._now_us = now_us

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = _key_of(scope)
        if key is None:
            await self._app(scope, receive, send)
            return
        try:
            answer = await self._answer(scope, receive, send, key)
        except RequestRefused as refused:
            answer = refused.response()
        except RegistryError as error:
            answer = RequestRefused(503, str(error)).response()
        if answer is not None:
            await answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, key: str) -> ASGIApp | None:
        """Return the answer to a request; None if it is sent. Raises RequestRefused, RegistryError."""
        if not 0 < len(key) <= IDEMPOTENCY_KEY_CHARACTERS_MAX or not key.isprintable():
            raise RequestRefused(
                400, f"an idempotency key has 1 to {IDEMPOTENCY_KEY_CHARACTERS_MAX} printable characters"
            )
        await self._access.recover_session(Request(scope))  # the application does that for requests without a key
        async with self._access.admitted(Request(scope)) as (grant, _):
            user, rights = ("", "") if grant is None else (grant.user, _digest_of_rights(grant))
        mine, body = RequestKey(user, key, tenant_of_user(user)), await _read(receive)
        if scope["path"] == _COMMANDS and not _has_selector(body):
            await self._app(scope, _again(body, receive), send)
            return None
        captured, digest = _CapturedAnswer(), _digest(scope, body, rights)
        kept = await self._begin(mine, digest)
        if kept is not None:
            return _kept_answer(kept, digest, self._now_us())
        try:
            async with self._renewed(mine):
                await self._app(_plain(scope), _again(body, receive), captured.send)
        except Exception:
            await self._end(mine, _CapturedAnswer(), secret=False)  # an internal error, which is answered outside
            raise
        await self._end(mine, captured, secret=bool(scope.get(NOT_STORED)))
        return captured

    async def _begin(self, mine: RequestKey, digest: str) -> KeptRequest | None:
        now_us = self._now_us()
        try:
            return await self._committer.read(lambda registry: registry.request_keys.begin(mine, digest, now_us))
        except TooManyKeys as why:
            step = "give a key to changes that you may have to repeat, and to no others"
            raise RequestRefused(429, str(why), {"Retry-After": str(why.wait_s)}, next_step=step) from None

    @contextlib.asynccontextmanager
    async def _renewed(self, mine: RequestKey) -> AsyncIterator[None]:
        """Keep a request known as being done, however long it takes."""
        task = asyncio.get_running_loop().create_task(self._renew(mine), name="idempotency key")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _renew(self, mine: RequestKey) -> None:
        while True:
            await asyncio.sleep(REQUEST_IN_PROGRESS_S / 3)
            with contextlib.suppress(RegistryError):
                await self._committer.read(lambda registry: registry.request_keys.renew(mine, self._now_us()))

    async def _end(self, mine: RequestKey, captured: _CapturedAnswer, *, secret: bool) -> None:
        """Store an answer. After a failure of the hub the outcome is unknown: it may have come after the change."""
        status, body = captured.status, captured.body
        kept = None if secret or status >= 500 or len(body) > REQUEST_ANSWER_BYTES_MAX else body
        try:
            if 400 <= status < 500:
                await self._committer.read(lambda registry: registry.request_keys.forget(mine))
            else:
                await self._committer.read(lambda registry: registry.request_keys.finish(mine, status, kept))
        except RegistryError:
            return  # the request was done, so its answer is sent


class _CapturedAnswer:
    """Answer of the application, which is sent later."""

    def __init__(self) -> None:
        self._start: Message | None = None
        self._parts: list[bytes] = []

    @property
    def status(self) -> int:
        """Status; 500 if the application gave no answer."""
        return int(self._start["status"]) if self._start is not None else 500

    @property
    def body(self) -> bytes:
        """Body of the answer."""
        return b"".join(self._parts)

    async def send(self, message: Message) -> None:
        """Take a message of the application."""
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body":
            self._parts.append(message.get("body", b""))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._start is not None:
            await send(self._start)
            await send({"type": "http.response.body", "body": self.body})


def _kept_answer(kept: KeptRequest, digest: str, now_us: int) -> Response:
    """Return the answer to a request that was sent before under its key. Raises RequestRefused."""
    if kept.digest[:_DIGEST_CHARACTERS] != digest[:_DIGEST_CHARACTERS]:
        raise RequestRefused(
            422, "another request was sent with this idempotency key", code="key-reused", next_step="use a new key"
        )
    if kept.status is None and now_us - kept.at < REQUEST_IN_PROGRESS_S * 1_000_000:
        raise RequestRefused(409, "this request is being done", next_step="wait some seconds, then repeat it")
    if kept.status is None or kept.status >= 500:
        why = "the hub was stopped before its answer" if kept.status is None else f"it failed (status {kept.status})"
        raise RequestRefused(
            409,
            f"this request was started, and {why}",
            code="outcome-unknown",
            next_step="look whether it was done; if not, send it with a new key",
        )
    if kept.digest[_DIGEST_CHARACTERS] == "." and kept.digest != digest:  # older versions stored no rights
        raise RequestRefused(
            403,
            f"this request was done (status {kept.status}); your rights have changed since",
            code="rights-changed",
            next_step="look at the result, if you may still see it",
        )
    if kept.body is None:
        raise RequestRefused(
            409,
            f"this request was done (status {kept.status}); its answer is not kept, as it had a secret or was large",
            code="done-already",
            next_step="look at the result; make a new password or token if the secret is lost",
        )
    return Response(kept.body, kept.status, media_type="application/json", headers={**NEVER_CACHED, **REPLAYED})


def _key_of(scope: Scope) -> str | None:
    """Return the key of a request that may have one."""
    if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].startswith(_API):
        return None
    if scope["path"].startswith(_WITHOUT):
        return None
    found = [value for name, value in scope["headers"] if name == KEY.encode()]
    return found[0].decode("latin-1") if found else None


async def _read(receive: Receive) -> bytes:
    """Read the body of a request as it is. Raises RequestRefused."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(HTTP_BODY_S_MAX):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise RequestRefused(408, "the request did not come in time")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > IDEMPOTENT_BODY_BYTES_MAX:
                    raise RequestRefused(413, f"the request is larger than {IDEMPOTENT_BODY_BYTES_MAX} bytes")
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise RequestRefused(408, "the request did not come in time") from None


def _again(body: bytes, receive: Receive) -> Receive:
    """Return the source of a body that was read already."""
    waiting = [body]

    async def received() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return received


def _plain(scope: Scope) -> Scope:
    """Ask for an answer that is not compressed: it is stored."""
    scope["headers"] = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
    return scope


def _digest(scope: Scope, body: bytes, rights: str) -> str:
    """Return the digest of a request, of its path, query and body, and after it that of its user's rights."""
    content: list[Any] = [scope["path"], bytes(scope["query_string"]), body]
    return hashlib.sha256(msgspec.msgpack.encode(content)).hexdigest()[:_DIGEST_CHARACTERS] + "." + rights


def _digest_of_rights(grant: Grant) -> str:
    """Return the digest of a user's rights, in any order."""
    rules = sorted((sorted(rule.addresses), sorted(each.value for each in rule.operations)) for rule in grant.rules)
    return hashlib.sha256(msgspec.msgpack.encode(rules)).hexdigest()[:_RIGHTS_CHARACTERS]


def _has_selector(body: bytes) -> bool:
    """Return True for commands to several gateways."""
    try:
        return bool(msgspec.json.decode(body, type=dict[str, Any]).get("selector"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
