"""Somebody's account at balenaCloud, or at an openBalena of their own.

The token lies in a file that only its owner reads; the SDK, which would keep it in the open, gets it in memory. The
SDK says "not logged in" of every failure and hands no timeout to a request: both are put right here.
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
"""To connect, and between two pieces of an answer; a release of a large fleet is found within seconds."""
AGAIN: Final = "do it again: what was done is not done twice"
UNAUTHORISED, NOT_ALLOWED, TOO_MANY = 401, 403, 429
LOG_IN: Final = "make a token in balena's dashboard (Preferences, Access tokens), then: waypost balena login"


@dataclass(frozen=True, slots=True)
class Login:
    """What is remembered of an account."""

    endpoint: str
    token: str

    def __repr__(self) -> str:
        return f"Login(endpoint={self.endpoint!r})"


@dataclass(frozen=True, slots=True)
class Account:
    """An account whose token was taken: the SDK, whom the token is of (`name`), and the kind of that actor."""

    sdk: Any
    endpoint: str
    name: str
    kind: str


def remembered_at() -> Path:
    """The file of the login."""
    configuration = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(configuration, "waypost", "balena.json")


def remember(login: Login, file: Path) -> None:
    """Keep a login, in the place of an earlier one; readable by its owner alone. Raises ImageError."""
    fresh = file.with_name(f"{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as text:
            json.dump({"endpoint": login.endpoint, "token": login.token}, text)
        fresh.replace(file)
    except OSError as error:
        raise ImageError(f"{error.filename or file}: {error.strerror}") from None


def recall(file: Path) -> Login:
    """The login that is kept, or that of BALENA_API_KEY. Raises ImageError when there is none."""
    token = os.environ.get("BALENA_API_KEY")
    try:
        kept = json.loads(file.read_text())
        return Login(kept["endpoint"], token or kept["token"])
    except FileNotFoundError:
        if token:
            return Login(ENDPOINT, token)
        raise ImageError("not logged in at balena", hint=LOG_IN, code=USAGE) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ImageError(f"{file}: not a login ({error})", hint=f"remove it, then: {LOG_IN}") from None


def forget(file: Path) -> None:
    with suppress(FileNotFoundError):
        file.unlink()


def endpoint_of(host: str) -> str:
    """The address of the API: of a host like `balena-cloud.com`, or given whole. Raises ImageError."""
    wrong = ImageError(f"{host}: neither a host nor an https:// address", code=USAGE)
    try:
        url = urlsplit(host if "://" in host or not host else f"https://api.{host}")
        _ = url.port  # read once, as it raises where it is out of range
    except ValueError:
        raise wrong from None
    if url.scheme not in {"https", "http"} or not url.hostname or url.query or url.username:
        raise wrong
    if url.scheme == "http" and url.hostname not in {"127.0.0.1", "localhost", "::1"}:
        raise ImageError(f"{host}: the token would cross the network in the open", hint="use https://", code=USAGE)
    return f"{url.scheme}://{url.netloc}/"


def connect(login: Login) -> Account:
    """Log in. Raises ImageError when the API cannot be reached or does not take the token."""
    _bound_requests()
    with said_plainly(login.endpoint):
        whoami = urljoin(login.endpoint, "actor/v1/whoami")
        answer = requests.get(whoami, headers={"Authorization": f"Bearer {login.token}"}, timeout=TIMEOUT_S)
        answer.raise_for_status()
    try:
        actor: dict[str, Any] = answer.json()
        name = actor.get("username") or actor.get("slug") or actor.get("uuid") or actor["id"]
        kind = actor["actorType"]
    except (ValueError, KeyError, AttributeError):
        raise ImageError(f"{login.endpoint} is no API of balena: {answer.text[:80]!r}") from None
    sdk = Balena({"data_directory": False})
    sdk.settings.set("api_endpoint", login.endpoint)
    sdk.settings.set("token", login.token)
    # `pine` took its address when it was made, from a host.
    sdk.pine.api_prefix = urljoin(login.endpoint, f"{sdk.settings.get('api_version')}/")
    return Account(sdk, login.endpoint, str(name), str(kind))


def _bound_requests() -> None:
    """Give every request of this process a timeout; the SDK makes a session for each, and none can be handed in."""
    request = vars(requests.Session)["request"]
    if not isinstance(request, functools.partialmethod):
        requests.Session.request = functools.partialmethod(request, timeout=TIMEOUT_S)  # type: ignore[assignment]


@contextmanager
def said_plainly(endpoint: str) -> Iterator[None]:
    """Raise an ImageError with a next step for whatever goes wrong with balena's API."""
    host = urlsplit(endpoint).netloc
    try:
        with redirect_stdout(io.StringIO()):  # the SDK prints the answer of a server that fails
            yield
    except RequestError as error:
        raise _refused(host, error.status_code, error.body) from None
    except (BalenaException, AttributeError) as error:
        if (hidden := _hidden_failure(error)) is not None:
            raise _failed(host, hidden) from None
        if isinstance(error, AttributeError):
            raise
        raise ImageError(f"{host}: {getattr(error, 'message', None) or error}", code=FAILED) from None
    except requests.RequestException as error:
        raise _failed(host, error) from None


def _hidden_failure(error: BaseException) -> requests.RequestException | None:
    """Return the failure of a request that the SDK was handling when it raised this.

    It says "not logged in" of some; and where it sets a variable, it looks for a message that the failure does not
    have, which is an AttributeError.
    """
    cause = error.__context__
    while cause is not None and not isinstance(cause, requests.RequestException):
        cause = cause.__context__
    return cause


def _failed(host: str, error: requests.RequestException) -> ImageError:
    """Say what has become of a request that has no answer, or none that can be used."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return _refused(host, error.response.status_code, error.response.text)
    if isinstance(error, requests.Timeout):
        return ImageError(f"{host} does not answer", hint=AGAIN)
    broken = isinstance(error, requests.exceptions.ChunkedEncodingError | requests.exceptions.ContentDecodingError)
    if broken or (error.args and isinstance(error.args[0], ProtocolError)):
        return ImageError(f"the connection to {host} broke before all of the answer had come", hint=AGAIN)
    if isinstance(error, requests.ConnectionError):
        return ImageError(
            f"{host} cannot be reached", hint="balena is asked over the network: check it, and a proxy (HTTPS_PROXY)"
        )
    return ImageError(f"{host}: {error}")


def _refused(host: str, status: int, said: str) -> ImageError:
    said = "" if said.lstrip().startswith("<") else " ".join(said.split())[:200]  # a proxy answers with a page
    if status == UNAUTHORISED:
        return ImageError(f"{host} does not take the token", hint=LOG_IN)
    if status == NOT_ALLOWED:
        return ImageError(
            f"{host}: this account may not do that", hint="ask the fleet's owner for the role of a developer"
        )
    if status == TOO_MANY:
        return ImageError(f"{host} has had too many requests of this account", hint="wait a minute, then go on")
    name = f" ({HTTPStatus(status).phrase})" if status in set(HTTPStatus) else ""
    hint = "the fault is at balena: wait, then do it again" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else ""
    return ImageError(f"{host} answers {status}{name}{f': {said}' if said else ''}", hint=hint)
