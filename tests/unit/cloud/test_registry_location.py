"""URLs of a registry: accepted ones, and errors that show no password."""

from __future__ import annotations

import contextlib
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.resources.errors import ConfigurationRejected
from cloud.hub.configuration import HubSettings
from cloud.hub.configuration import parse as parse_configuration
from cloud.hub.registry.faults import RegistryUrlError
from cloud.hub.registry.location import parse, redact_url

SECRET = "h0nk"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("sqlite:////var/lib/waypost/registry.db", "/var/lib/waypost/registry.db"),
        ("postgresql+psycopg://hub:h0nk@db.example:5433/fleet", "postgresql://hub@db.example:5433/fleet"),
        ("postgresql://hub@db/fleet?sslmode=verify-full", "postgresql://hub@db/fleet"),
        ("postgres://db/fleet", "postgresql://db/fleet"),
        ("postgresql+psycopg:///fleet?host=/run/postgresql", "postgresql:///fleet"),
        ("postgresql://hub:h0nk%40%2F:@[::1]:5432/fleet", "postgresql://hub@::1:5432/fleet"),
    ],
)
def test_valid_urls_are_accepted(text: str, what: str) -> None:
    assert redact_url(parse(text)) == what


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is invalid"),
        ("h0nk", "is invalid"),
        ("postgresql+psycopg//hub:h0nk@db/fleet", "is invalid"),
        ("postgresql://hub:h0nk@db:port/fleet", "is invalid"),
        ("mysql://hub:h0nk@db/fleet", "unknown kind of registry 'mysql'"),
        ("postgresql+psycopg2://hub:h0nk@db/fleet", "unknown kind of registry 'postgresql+psycopg2'"),
        ("postgresql://hub:h0nk@h0nk@db/fleet", "%40"),
        ("postgresql://hub:h0nk@db", "names no database"),
        ("postgresql://hub@db/fleet?password=h0nk", "passfile"),
        ("sqlite://", "absolute path"),
        ("sqlite:///:memory:", "absolute path"),
        ("sqlite:///registry.db", "absolute path"),
    ],
)
def test_invalid_urls_are_refused(text: str, said: str) -> None:
    """Each error is one line with the file, the line and the path of the value."""
    with pytest.raises(RegistryUrlError, match=re.escape(said)) as caught:
        parse(text)
    assert SECRET not in str(caught.value)
    document = f"apiVersion: waypost/v1\nkind: Hub\nspec:\n  gatherMilliseconds: 5\n  registry: '{text}'\n"
    with pytest.raises(ConfigurationRejected, match=r"^hub\.yaml:5: spec\.registry: ") as told:
        parse_configuration(document.encode(), "hub.yaml")
    assert SECRET not in str(told.value)
    assert "\n" not in str(told.value)


def test_missing_driver_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(RegistryUrlError, match=re.escape("waypost[postgresql]")):
        parse("postgresql://hub@db/fleet")
    parse("sqlite:////var/lib/waypost/registry.db")


@given(st.text())
def test_any_text_is_a_url_or_refused(text: str) -> None:
    with contextlib.suppress(RegistryUrlError):
        redact_url(parse(text))


def test_representation_shows_no_password() -> None:
    assert SECRET not in repr(HubSettings(registry="postgresql://hub:h0nk@db/fleet"))
