"""Endpoint and credentials of an object store, from the environment or a file.

The names are those of AWS's own programs: `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`; else the profile `AWS_PROFILE` (`default`) of the file
`AWS_SHARED_CREDENTIALS_FILE`; else the role of the instance, container or pod. None of them is an argument of a
command, and `repr` shows no secret.
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


class InvalidOptions(ValueError):
    """Invalid setting; the message says which and why."""


@hides("secret_access_key", "session_token")
@dataclass(frozen=True, slots=True)
class BucketCredentials:
    """Access key, with the session token of temporary credentials."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None


@dataclass(frozen=True, slots=True)
class BucketOptions:
    """Region, endpoint (None for AWS) and credentials (None for the role of the machine)."""

    region: str = REGION_DEFAULT
    endpoint: str | None = None
    credentials: BucketCredentials | None = None

    @property
    def plain(self) -> bool:
        """True for an endpoint without TLS."""
        return self.endpoint is not None and self.endpoint.startswith("http:")


def from_environment(environment: Mapping[str, str]) -> BucketOptions:
    """Read the options from environment variables. Raises `InvalidOptions`."""
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or REGION_DEFAULT
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or None
    return BucketOptions(region, _endpoint(endpoint), _credentials(environment))


def _endpoint(given: str | None) -> str | None:
    if given is None:
        return None
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise InvalidOptions("AWS_ENDPOINT_URL must have the form https://HOST:PORT, without a user")
    return given.rstrip("/")


def _credentials(environment: Mapping[str, str]) -> BucketCredentials | None:
    key, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if key and secret:
        return BucketCredentials(key, secret, environment.get("AWS_SESSION_TOKEN") or None)
    if key or secret:
        missing = "AWS_SECRET_ACCESS_KEY" if key else "AWS_ACCESS_KEY_ID"
        raise InvalidOptions(f"{missing} is not set; both halves of the key are needed")
    file = environment.get("AWS_SHARED_CREDENTIALS_FILE")
    return read_credentials(Path(file), environment.get("AWS_PROFILE") or "default") if file else None


def read_credentials(file: Path, profile: str = "default") -> BucketCredentials:
    """Read a profile of a file like `~/.aws/credentials`. Raises `InvalidOptions`, which quotes nothing of the file."""
    parser = configparser.RawConfigParser()
    try:
        with file.open(encoding="utf-8") as opened:
            parser.read_string(opened.read(CREDENTIALS_BYTES_MAX))
    except OSError as error:
        raise InvalidOptions(f"credentials file {file}: {error.strerror}") from None
    except (configparser.Error, UnicodeDecodeError):
        raise InvalidOptions(f"credentials file {file}: expected sections [PROFILE] with lines KEY = VALUE") from None
    if not parser.has_section(profile):
        raise InvalidOptions(f"credentials file {file} has no profile [{profile}]")
    key, secret = (
        parser.get(profile, "aws_access_key_id", fallback=""),
        parser.get(profile, "aws_secret_access_key", fallback=""),
    )
    if not key or not secret:
        raise InvalidOptions(f"credentials file {file}: [{profile}] needs aws_access_key_id and aws_secret_access_key")
    return BucketCredentials(key, secret, parser.get(profile, "aws_session_token", fallback="") or None)
