"""HTTP client for the console of a gateway on this machine. It logs in by a token of the data directory."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click
import msgspec

from edge.appliance.errors import CommandError, Exit
from edge.appliance.initial.defaults import HTTP
from edge.output.text import word

if TYPE_CHECKING:
    import ssl
    from http.client import HTTPResponse

ANSWER_S: Final = 5.0
"""Time limit for an answer: a gateway on this machine that takes longer is not healthy."""

data_option = click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False, readable=False),
    help="Data directory of the gateway. Its operator token is used to log in.",
)
http_option = click.option(
    "--http", metavar="HOST:PORT", help="Address of its console.  [default: from --data, else 127.0.0.1:8080]"
)


def console(data: Path | None, http: str | None) -> str:
    """Return HOST:PORT of a gateway's console: the given one, that of the gateway on the data directory, or the
    default. Raises CommandError."""
    if http is not None:
        return _parse_console_address(http)
    return HTTP if data is None else _console_of(data)


def token_of(data: Path | None) -> str | None:
    """Return the operator's token of a data directory. Raises CommandError."""
    from edge.broker.security.operator_token import OperatorTokenError, read_token

    try:
        return None if data is None else read_token(data)
    except OperatorTokenError as error:
        raise CommandError(str(error)) from None


def ask(
    url: str,
    token: str | None,
    *,
    method: str = "GET",
    body: Any = None,
    login: tuple[str, str] | None = None,
    answer_s: float = ANSWER_S,
    context: ssl.SSLContext | None = None,
) -> Any:
    """Return the document at a URL of a gateway. `body`: document to send; `login`: user and password, instead of the
    token; `context`: for `https`. Raises CommandError."""
    with connect(url, token, method=method, body=body, login=login, answer_s=answer_s, context=context) as answer:
        try:
            return msgspec.json.decode(answer.read())
        except (OSError, ValueError) as error:
            raise _unreachable(url, error) from None


def connect(
    url: str,
    token: str | None,
    *,
    method: str = "GET",
    body: Any = None,
    login: tuple[str, str] | None = None,
    answer_s: float = ANSWER_S,
    context: ssl.SSLContext | None = None,
) -> HTTPResponse:
    """Return the response of a gateway, with its body not yet read. Parameters as of `ask`. Raises CommandError."""
    import urllib.error
    import urllib.request

    request = urllib.request.Request(url, method=method)  # noqa: S310 - http
    if body is not None:
        request.data = msgspec.json.encode(body)
        request.add_header("Content-Type", "application/json")
    if login is not None:
        request.add_header("Authorization", f"Basic {base64.b64encode(':'.join(login).encode()).decode()}")
    elif token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        return cast("HTTPResponse", urllib.request.urlopen(request, timeout=answer_s, context=context))  # noqa: S310
    except urllib.error.HTTPError as refused:
        with refused:
            why = f"{url} answers {refused.code} {refused.reason}"
            body = refused.read()
        if refused.code not in (401, 403) or (login is not None and refused.code == 403):
            raise CommandError(_error_in(body) or why) from None
        if login is not None:
            raise CommandError(f"user {login[0]}: {_error_in(body) or why}") from None
        hint = "give --data with the gateway's data directory, and run this as the user the gateway runs as"
        if token is not None:
            hint = "another gateway answers there: --http has the address of this one, after http= in its `ready` line"
        raise CommandError(f"{why}: the gateway requires a login", hint=hint) from None
    except (OSError, ValueError) as error:
        raise _unreachable(url, error) from None


def _unreachable(url: str, error: Exception) -> CommandError:
    """Return the error for a gateway that does not answer."""
    reason = getattr(error, "reason", error)
    hint = "start it, and use the address after http= in its `ready` line"
    if isinstance(reason, TimeoutError):
        hint = "it may be busy: try again; then see its log, and `waypost doctor`"
    return CommandError(f"no gateway answers at {url}: {reason}", hint=hint, code=Exit.UNREACHABLE)


def _error_in(body: bytes) -> str | None:
    """Return the error in a gateway's response; None without one."""
    try:
        return msgspec.json.decode(body, type=dict[str, str]).get("error")
    except msgspec.MsgspecError:
        return None


def _parse_console_address(http: str) -> str:
    """Return HOST:PORT; the console's URL is accepted too. Raises CommandError."""
    from bridge.resources.endpoint import ListenEndpoint

    try:
        return str(ListenEndpoint.parse(http.removeprefix("http://").rstrip("/")))
    except ValueError as why:
        hint = "HOST:PORT follows http= in the gateway's `ready` line"
        raise CommandError(f"--http {http}: {why}", hint=hint, code=Exit.USAGE) from None


def _console_of(data: Path) -> str:
    """Return the console's address of the gateway on a data directory, as seen from this machine.

    Raises CommandError.
    """
    from edge.broker.listeners.endpoints import running_endpoints
    from edge.broker.store.lock import LOCK_NAME, is_held

    listening = running_endpoints(data)
    if listening is not None and "http" in listening:
        return str(listening["http"].from_here)
    if listening is not None:
        hint = "add one: spec.listeners.http of its Gateway resource, or --http of `waypost run`"
        raise CommandError(f"the gateway of {data} has no HTTP listener, and so no console", hint=hint)
    if not is_held(data) and (os.access(data / LOCK_NAME, os.R_OK) or not (data / LOCK_NAME).exists()):
        hint = f"start it: waypost run --data {word(data)}"
        raise CommandError(f"no gateway runs on {data}", hint=hint, code=Exit.UNREACHABLE)
    return _configured_console(data) or HTTP


def _configured_console(data: Path) -> str | None:
    """Return the console's address in the applied configuration of a data directory; None without a fixed port."""
    from edge.configuration.effective import build_configuration
    from edge.configuration.file import RepositoryError
    from edge.configuration.repository import Repository

    try:
        endpoint = build_configuration(Repository(data).load().resources).endpoint("http")
    except RepositoryError as error:
        raise CommandError(str(error)) from None
    return None if endpoint is None or not endpoint.port else str(endpoint.from_here)
