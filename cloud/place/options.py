"""How an object store is reached, and with which credentials: from the environment, or a file.

The names are those of AWS's own programs: `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`; else the profile `AWS_PROFILE` (`default`) of the file
`AWS_SHARED_CREDENTIALS_FILE`. Where there is none of these it is what the machine has: a role of the instance,
container or pod. Nothing of it is an argument of a command, and `repr` shows no secret.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bridge.hidden import hides
from cloud.place.limits import CREDENTIALS_BYTES_MAX

REGION_DEFAULT = "us-east-1"


class BadOptions(ValueError):
    """It cannot be so; the message says what and where."""


@hides("secret_access_key", "session_token")
@dataclass(frozen=True, slots=True)
class Credentials:
    """A key pair, and the token of one that is lent."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """`endpoint`: None for AWS; `credentials`: None for those of the machine's role."""

    region: str = REGION_DEFAULT
    endpoint: str | None = None
    credentials: Credentials | None = None

    @property
    def plain(self) -> bool:
        """Without TLS."""
        return self.endpoint is not None and self.endpoint.startswith("http:")


def from_environment(environment: Mapping[str, str]) -> Options:
    """Raises `BadOptions`."""
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or REGION_DEFAULT
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or None
    return Options(region, _endpoint(endpoint), _credentials(environment))


def _endpoint(given: str | None) -> str | None:
    if given is None:
        return None
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise BadOptions("AWS_ENDPOINT_URL: it has the form https://HOST:PORT, without a user")
    return given.rstrip("/")


def _credentials(environment: Mapping[str, str]) -> Credentials | None:
    key, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if key and secret:
        return Credentials(key, secret, environment.get("AWS_SESSION_TOKEN") or None)
    if key or secret:
        missing = "AWS_SECRET_ACCESS_KEY" if key else "AWS_ACCESS_KEY_ID"
        raise BadOptions(f"{missing} is not set, and its other half is")
    file = environment.get("AWS_SHARED_CREDENTIALS_FILE")
    return read_credentials(Path(file), environment.get("AWS_PROFILE") or "default") if file else None


def read_credentials(file: Path, profile: str = "default") -> Credentials:
    """A profile of a file in the form of `~/.aws/credentials`. Raises `BadOptions`, which quotes nothing of it."""
    parser = configparser.RawConfigParser()
    try:
        with file.open(encoding="utf-8") as opened:
            parser.read_string(opened.read(CREDENTIALS_BYTES_MAX))
    except OSError as error:
        raise BadOptions(f"credentials file {file}: {error.strerror}") from None
    except (configparser.Error, UnicodeDecodeError):
        raise BadOptions(f"credentials file {file}: it has no sections [PROFILE] with lines KEY = VALUE") from None
    if not parser.has_section(profile):
        raise BadOptions(f"credentials file {file} has no profile [{profile}]")
    key, secret = (
        parser.get(profile, "aws_access_key_id", fallback=""),
        parser.get(profile, "aws_secret_access_key", fallback=""),
    )
    if not key or not secret:
        raise BadOptions(f"credentials file {file}: [{profile}] needs aws_access_key_id and aws_secret_access_key")
    return Credentials(key, secret, parser.get(profile, "aws_session_token", fallback="") or None)
