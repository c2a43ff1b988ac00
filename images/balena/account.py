"""Account at balenaCloud, or at an openBalena server.

The token is kept in a file that only its owner can read; the SDK, which would store it world-readable, gets it in
memory. The SDK reports "not logged in" for every failure and passes no timeout to requests; this module corrects both.
"""

from __future__ import annotations

import functools
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import requests
from balena import Balena
from balena.exceptions import BalenaException, RequestError
from urllib3.exceptions import ProtocolError

from images.errors import FAILED, USAGE, ImageError

ENDPOINT: Final = "https://api.balena-cloud.com/"
TIMEOUT_S: Final = (10.0, 60.0)
"""Seconds to connect, and between two parts of an answer. A release of a large fleet is found within seconds."""
AGAIN: Final = "run the command again: nothing is done twice"
UNAUTHORISED, NOT_ALLOWED, TOO_MANY = 401, 403, 429
LOG_IN: Final = "create a token in balena's dashboard (Preferences, Access tokens), then: waypost balena login"


@dataclass(frozen=True, slots=True)
class BalenaLogin:
    """Stored credentials of an account."""

    endpoint: str
    token: str

    def __repr__(self) -> str:
        return f"Login(endpoint={self.endpoint!r})"


@dataclass(frozen=True, slots=True)
class BalenaAccount:
    """Account with an accepted token: the SDK, the name of the token's owner, and the kind of that actor."""

    sdk: Any
    endpoint: str
    name: str
    kind: str


def login_file() -> Path:
    """Return the path of the stored login."""
    configuration = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(configuration, "waypost", "balena.json")


def save_login(login: BalenaLogin, file: Path) -> None:
    """Store a login, readable by its owner only, in place of an earlier one. Raises ImageError."""
    fresh = file.with_name(f"{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as text:
            json.dump({"endpoint": login.endpoint, "token": login.token}, text)
        fresh.replace(file)
    except OSError as error:
        raise ImageError(f"{error.filename or file}: {error.strerror}") from None


def load_login(file: Path) -> BalenaLogin:
    """Return the stored login, or that of BALENA_API_KEY. Raises ImageError if there is neither."""
    token = os.environ.get("BALENA_API_KEY")
    try:
        kept = json.loads(file.read_text())
        return BalenaLogin(kept["endpoint"], token or kept["token"])
    except FileNotFoundError:
        if token:
            return BalenaLogin(ENDPOINT, token)
        raise ImageError("not logged in at balena", hint=LOG_IN, code=USAGE) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ImageError(f"{file}: not a login ({error})", hint=f"remove it, then: {LOG_IN}") from None


def delete_login(file: Path) -> None:
    with suppress(FileNotFoundError):
        file.unlink()


def parse_endpoint(host: str) -> str:
    """Return the URL of the API for a host like `balena-cloud.com` or for a full URL. Raises ImageError."""
    wrong = ImageError(f"{host}: neither a host nor an https:// address", code=USAGE)
    try:
        url = urlsplit(host if "://" in host or not host else f"https://api.{host}")
        _ = url.port  # read once, as it raises where it is out of range
    except ValueError:
        raise wrong from None
    if url.scheme not in {"https", "http"} or not url.hostname or url.query or url.username:
        raise wrong
    if url.scheme == "http" and url.hostname not in {"127.0.0.1", "localhost", "::1"}:
        raise ImageError(f"{host}: the token would be sent unencrypted", hint="use https://", code=USAGE)
    return f"{url.scheme}://{url.netloc}/"


def connect(login: BalenaLogin) -> BalenaAccount:
    """Log in. Raises ImageError when the API cannot be reached or refuses the token."""
    _set_request_timeout()
    with translate_errors(login.endpoint):
        whoami = urljoin(login.endpoint, "actor/v1/whoami")
        answer = requests.get(whoami, headers={"Authorization": f"Bearer {login.token}"}, timeout=TIMEOUT_S)
        answer.raise_for_status()
    try:
        actor: dict[str, Any] = answer.json()
        name = actor.get("username") or actor.get("slug") or actor.get("uuid") or actor["id"]
        kind = actor["actorType"]
    except (ValueError, KeyError, AttributeError):
        raise ImageError(f"{login.endpoint} is not an API of balena: {answer.text[:80]!r}") from None
    sdk = Balena({"data_directory": False})
    sdk.settings.set("api_endpoint", login.endpoint)
    sdk.settings.set("token", login.token)
    # `pine` derived its address from a host when it was created.
    sdk.pine.api_prefix = urljoin(login.endpoint, f"{sdk.settings.get('api_version')}/")
    return BalenaAccount(sdk, login.endpoint, str(name), str(kind))


def _set_request_timeout() -> None:
    """Give every request of this process a timeout: the SDK creates a session for each and accepts none."""
    request = vars(requests.Session)["request"]
    if not isinstance(request, functools.partialmethod):
        requests.Session.request = functools.partialmethod(request, timeout=TIMEOUT_S)  # type: ignore[assignment]


@contextmanager
def translate_errors(endpoint: str) -> Iterator[None]:
    """Raise an ImageError with a next step for any failure of balena's API."""
    host = urlsplit(endpoint).netloc
    try:
        with redirect_stdout(io.StringIO()):  # the SDK prints the answer of a failing server
            yield
    except RequestError as error:
        raise _explain_status(host, error.status_code, error.body) from None
    except (BalenaException, AttributeError) as error:
        if (hidden := _find_request_error(error)) is not None:
            raise _explain_failure(host, hidden) from None
        if isinstance(error, AttributeError):
            raise
        raise ImageError(f"{host}: {getattr(error, 'message', None) or error}", code=FAILED) from None
    except requests.RequestException as error:
        raise _explain_failure(host, error) from None


def _find_request_error(error: BaseException) -> requests.RequestException | None:
    """Return the request error that the SDK was handling when it raised this.

    For some of them the SDK reports "not logged in". Where it sets a variable, it reads a message that the error does
    not have, which raises an AttributeError.
    """
    cause = error.__context__
    while cause is not None and not isinstance(cause, requests.RequestException):
        cause = cause.__context__
    return cause


def _explain_failure(host: str, error: requests.RequestException) -> ImageError:
    """Return the error to raise for a request without a usable answer."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return _explain_status(host, error.response.status_code, error.response.text)
    if isinstance(error, requests.Timeout):
        return ImageError(f"{host} does not answer", hint=AGAIN)
    broken = isinstance(error, requests.exceptions.ChunkedEncodingError | requests.exceptions.ContentDecodingError)
    if broken or (error.args and isinstance(error.args[0], ProtocolError)):
        return ImageError(f"the connection to {host} broke before the answer was complete", hint=AGAIN)
    if isinstance(error, requests.ConnectionError):
        return ImageError(f"{host} cannot be reached", hint="check the network, and a proxy (HTTPS_PROXY)")
    return ImageError(f"{host}: {error}")


def _explain_status(host: str, status: int, message: str) -> ImageError:
    message = (
        "" if message.lstrip().startswith("<") else " ".join(message.split())[:200]
    )  # a proxy answers with an HTML page
    if status == UNAUTHORISED:
        return ImageError(f"{host} refuses the token", hint=LOG_IN)
    if status == NOT_ALLOWED:
        return ImageError(
            f"{host}: this account may not do that", hint="ask the fleet's owner for the role of a developer"
        )
    if status == TOO_MANY:
        return ImageError(f"{host} has had too many requests from this account", hint="wait a minute, then continue")
    name = f" ({HTTPStatus(status).phrase})" if status in set(HTTPStatus) else ""
    hint = "the fault is at balena: wait, then try again" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else ""
    return ImageError(f"{host} answers {status}{name}{f': {message}' if message else ''}", hint=hint)
