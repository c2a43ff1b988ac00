"""HTTP client of the API of one gateway or hub. All commands that talk to a console use it."""

from __future__ import annotations

import base64
import contextlib
import re
import ssl
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from bridge.applied_query import APPLIED_QUERY, ignored
from bridge.hidden import hides
from edge.output.errors import CommandError, Exit
from edge.output.http_errors import code_of_status
from edge.output.text import word
from edge.remote.contexts import Context
from edge.remote.trust import CertificateChanged, PinnedConnection, tls_context

T = TypeVar("T")

API: Final = "/api/v1/"
ANSWER_S: Final = 5.0
"""Time limit for an answer: a node that takes longer is not healthy."""
PAGE_ROWS: Final = 500
"""Rows of a page of a list."""
EVENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Longest event that is read."""
NO_FILTERS: Final[Mapping[str, Any]] = {}
READING: Final = frozenset({"GET", "HEAD"})
"""Methods that change nothing: a command may repeat them."""
_CODE: Final = re.compile("[a-z]{2,}(-[a-z]+){0,5}")
"""Code of an error in an answer."""


@hides("token", "login", "cookie")
class Login(NamedTuple):
    """Authentication of a client, in one way or in none."""

    token: str | None = None
    """Operator token of a data directory."""
    login: tuple[str, str] | None = None
    """User and password."""
    cookie: str = ""
    """Cookie of a session, as NAME=VALUE."""

    def fields(self, origin: str) -> dict[str, str]:
        """Return the header fields of a request."""
        if self.login is not None:
            return {"Authorization": f"Basic {base64.b64encode(':'.join(self.login).encode()).decode()}"}
        if self.token is not None:
            return {"Authorization": f"Bearer {self.token}"}
        # A change with a cookie has to name its origin: a page of another site cannot.
        return {"Cookie": self.cookie, "Origin": origin} if self.cookie else {}


class ServerEvent(NamedTuple):
    """One Server-Sent Event."""

    name: str
    data: Any
    id: str = ""
    """Identity of the last event so far, to go on from."""


class ConsoleClient:
    """Requests to one console. Each opens a connection, as a command sends few; see `keeping`."""

    def __init__(
        self,
        url: str,
        login: Login | None = None,
        trust: Context | None = None,
        *,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """`url`: without a path; `trust`: context with the certificates to accept; `context`: TLS to use instead."""
        self.url = url
        self.login = login or Login()
        self._trust = trust or Context()
        self._context = context
        self._keeps = False
        self._kept: HTTPConnection | None = None

    @contextlib.contextmanager
    def keeping(self) -> Iterator[ConsoleClient]:
        """Yield a client for many requests, one after the other, over one connection. Each answer has to be read to its
        end."""
        client = ConsoleClient(self.url, self.login, self._trust, context=self._context)
        client._keeps = True
        try:
            yield client
        finally:
            client._forget()

    def as_user(self, login: tuple[str, str] | None) -> ConsoleClient:
        """Return a client with a user and password; this one for None."""
        return (
            self if login is None else ConsoleClient(self.url, Login(login=login), self._trust, context=self._context)
        )

    def ask(
        self, path: str, /, *, method: str = "GET", body: Any = None, answer_s: float = ANSWER_S, **query: Any
    ) -> Any:
        """Return the document of a route below `API`; `query`: None is left out. Raises CommandError."""
        with self.open(path, method=method, body=body, answer_s=answer_s, **query) as answer:
            return self.document(answer, method)

    def find(self, path: str, filters: Mapping[str, Any], /, **query: Any) -> Any:
        """Return the document of a hub's list below `API`, which a hub that does not know all filters cannot answer;
        None is left out. Raises CommandError."""
        with self.open(path, **filters, **query) as answer:
            wanted = [name for name, value in filters.items() if value is not None]
            if missing := ignored(answer.headers.get(APPLIED_QUERY), wanted):
                names = ", ".join(missing)
                what = f"{self.url} is older than the filter {names}: its answer has all rows"
                raise CommandError(what, "update the hub, or ask without this filter", error="filter-ignored")
            return self.document(answer, "GET")

    def document(self, answer: HTTPResponse, method: str) -> Any:
        """Read the document of an answer. Raises CommandError."""
        try:
            return msgspec.json.decode(answer.read() or b"null")
        except (OSError, HTTPException, msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._forget()
            raise self._lost(method, error) from None

    def read(self, kind: type[T], path: str, /, **given: Any) -> T:
        """Return the document of a route as a struct; `given`: as of `ask`. Raises CommandError."""
        return as_document(kind, self.ask(path, **given))

    def open(
        self,
        path: str,
        /,
        *,
        method: str = "GET",
        body: Any = None,
        answer_s: float = ANSWER_S,
        headers: Mapping[str, str] | None = None,
        api: str = API,
        content_type: str = "application/yaml",
        **query: Any,
    ) -> HTTPResponse:
        """Return an answer; its body is not read yet. `body`: document, or bytes of a content type; `api`: begin of the
        path. Raises CommandError."""
        given = {name: value for name, value in query.items() if value is not None}
        target = f"{api}{path}{'?' if given else ''}{urlencode(given, doseq=True)}"
        fields = {
            "Connection": "keep-alive" if self._keeps else "close",
            "X-Requested-With": "waypost",
            **self.login.fields(self.url),
            **(headers or {}),
        }
        if body is not None:
            fields["Content-Type"] = content_type if isinstance(body, bytes) else "application/json"
        content = body if isinstance(body, bytes | None) else msgspec.json.encode(body)
        try:
            connection = self._connected(answer_s)
        except CertificateChanged as error:
            hint = "compare the fingerprint with that of its label or its `waypost open`, then accept it: waypost login"
            raise CommandError(
                f"{self.url}: {error}", hint, error="certificate-changed", code=Exit.UNREACHABLE
            ) from None
        except ssl.SSLCertVerificationError as error:
            hint = f"waypost login {word(self.url)} --ca FILE, with the certificate of its authority"
            what = f"{self.url}: its certificate is not trusted: {error.verify_message}"
            raise CommandError(what, hint, error="certificate-not-trusted", code=Exit.UNREACHABLE) from None
        except (OSError, ValueError) as error:
            raise self._unreachable(error) from None
        try:
            connection.request(method, target, content, fields)
            answer = connection.getresponse()  # it owns the socket
        except BaseException as error:
            connection.close()
            self._kept = None
            if isinstance(error, OSError | HTTPException | ValueError):
                raise self._lost(method, error) from None
            raise
        if answer.status < 400:
            return answer
        with answer:
            try:
                said = answer.read()
            except (OSError, HTTPException):  # the status says enough
                said = b""
            raise self._refused(answer, said)

    def _connected(self, answer_s: float) -> HTTPConnection:
        """Return a connection, a new one unless it is kept. Raises what `open` translates."""
        if self._kept is not None and self._kept.sock is not None:
            self._kept.sock.settimeout(answer_s)
            return self._kept
        connection = self.connection(answer_s)
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        if self._keeps:
            self._kept = connection
        return connection

    def _forget(self) -> None:
        """Close the kept connection."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def pages(self, path: str, key: str, filters: Mapping[str, Any] = NO_FILTERS, **query: Any) -> Iterator[Any]:
        """Yield the rows of all pages of a list; `key`: of its rows; `filters`: as of `find`. Raises CommandError."""
        after = None
        while True:
            page = self.find(path, filters, after=after, limit=PAGE_ROWS, **query)
            yield from page[key]
            after = page.get("next")
            if after is None:
                return

    def events(self, path: str, /, answer_s: float, last: str = "", **query: Any) -> Iterator[ServerEvent]:
        """Yield the events of a stream until the console ends it; `answer_s`: longest pause; `last`: identity of the
        event to go on from. Raises CommandError."""
        fields = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
        with self.open(path, answer_s=answer_s, headers=fields, **query) as answer:
            try:
                yield from read_events(answer)
            except (OSError, HTTPException, msgspec.MsgspecError) as error:
                hint = "the node may have stopped: try again"
                raise CommandError(f"{self.url}: the stream ended: {error}", hint, error="connection-lost") from None

    def connection(self, answer_s: float) -> HTTPConnection:
        """Return a new connection, which connects at its first request."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        if parts.scheme != "https":
            return HTTPConnection(host, parts.port, timeout=answer_s)
        if self._trust.certificate:
            return PinnedConnection(host, parts.port, answer_s, self._trust.certificate)
        context = self._context or tls_context(self._trust.ca)
        return HTTPSConnection(host, parts.port, timeout=answer_s, context=context)

    def _refused(self, answer: HTTPResponse, body: bytes) -> CommandError:
        """Return the error of an answer."""
        why, hint, code = _problem_in(body)
        why = why or f"{self.url} answers {answer.status} {answer.reason}"
        code = code or code_of_status(answer.status)
        if answer.status == 401 and self.login.login is not None:
            why = f"user {self.login.login[0]}: {why}"
        elif answer.status == 401 and self.login.token is not None:
            hint = "another node answers there: --http has the address of this one, after http= in its `ready` line"
            why = f"{self.url}: {why}: it requires a login"
        elif answer.status == 401:
            hint = f"sign in: waypost login {word(self.url)}\nor on its machine give --data with its data directory"
            why = f"{self.url}: {why}: it requires a login"
        return CommandError(why, hint, error=code)

    def _lost(self, method: str, error: Exception) -> CommandError:
        """Return the error of a request that was sent, and has no complete answer."""
        if method in READING:
            return self._unreachable(error)
        what = f"{self.url} did not answer: {error}; it may have been done"
        return CommandError(what, "look before you repeat it", error="outcome-unknown", code=Exit.UNREACHABLE)

    def _unreachable(self, error: Exception) -> CommandError:
        hint = "start it, and use the address after http= or https= in its `ready` line"
        if isinstance(error, TimeoutError):
            hint = "it may be busy: try again; then see its log, and `waypost doctor`"
        return CommandError(f"{self.url} does not answer: {error}", hint, error="unreachable", code=Exit.UNREACHABLE)


def as_document(kind: type[T], document: Any) -> T:
    """Return a document of the API as a struct. Raises CommandError."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        hint = "node and command may be of different versions: compare `waypost --version` with `waypost status`"
        raise CommandError(f"the answer is not understood: {error}", hint, error="answer-not-understood") from None


def read_events(answer: HTTPResponse) -> Iterator[ServerEvent]:
    """Yield Server-Sent Events until their proper end. Raises OSError, HTTPException and msgspec.MsgspecError."""
    name, data, last = "", b"", ""
    while text := answer.readline(EVENT_BYTES_MAX):
        field, _, value = text.rstrip(b"\r\n").partition(b":")
        if field == b"event":
            name = value.strip().decode()
        elif field == b"data":
            data = value.strip()
        elif field == b"id":
            last = value.strip().decode()
        elif not field and not value and name:
            yield ServerEvent(name, msgspec.json.decode(data), last)
            name, data = "", b""
    if answer.chunked and answer.chunk_left is not None:  # set until the last chunk, which is empty
        raise ConnectionError("the connection was cut")


class _Problem(NamedTuple):
    """Error in an answer; empty texts where it has none."""

    detail: str = ""
    next_step: str = ""
    code: str = ""


def _problem_in(body: bytes) -> _Problem:
    """Return the error in an answer. Nodes of earlier versions send only `error`."""
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _Problem()
    if "detail" not in found:
        return _Problem(str(found.get("error", "")))
    code = str(found.get("code", ""))
    known = code if _CODE.fullmatch(code) else ""
    return _Problem(str(found["detail"]), str(found.get("next_step", "")), known)
