"""`authenticationService.oidc`: accepted values, and the resulting configuration of the broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.resources.parse import read
from edge.broker.configuration import AuthenticationMode, TokenIssuer
from edge.configuration.effective import build_configuration
from edge.configuration.kinds import KINDS

SPACE = """
apiVersion: enmasse.io/v1beta1
kind: AddressSpace
metadata: {name: default}
spec: {authenticationService: {name: %s, oidc: {issuer: "%s", audience: waypost%s}}}
"""


def errors(folder: Path, issuer: str, name: str = "external", more: str = "") -> list[str]:
    file = folder / "space.yaml"
    file.write_text(SPACE % (name, issuer, more))
    return [str(error) for error in KINDS.validate(read(KINDS, [str(file)]))]


def test_every_field_is_read(tmp_path: Path) -> None:
    more = ", userClaim: preferred_username, rightsClaim: realm_access.roles, caCert: ca.pem, offlineGrace: 2h"
    assert errors(tmp_path, "https://id.example/realms/plant", more=more) == []
    configuration = build_configuration(read(KINDS, [str(tmp_path / "space.yaml")]))
    assert configuration.authentication is AuthenticationMode.EXTERNAL
    assert configuration.issuer == TokenIssuer(
        issuer="https://id.example/realms/plant",
        audience="waypost",
        user_claim="preferred_username",
        rights_claim="realm_access.roles",
        ca="ca.pem",
        grace_s=7200.0,
    )


@pytest.mark.parametrize("issuer", ["http://127.0.0.1:8080/realms/x", "http://localhost/x", "https://id.example"])
def test_valid_issuers_are_accepted(tmp_path: Path, issuer: str) -> None:
    assert errors(tmp_path, issuer) == []


@pytest.mark.parametrize(
    ("issuer", "why"),
    [
        ("http://id.example/x", "could replace its keys"),
        ("id.example", "is not an issuer"),
        ("ftp://id.example", "is not an issuer"),
        ("https://id.example/?a=b", "is not an issuer"),
        ("https://me@id.example/", "is not an issuer"),
        ("https://id.example:99999/", "is not an issuer"),
        ("https://[::1", "is not an issuer"),
    ],
)
def test_invalid_issuers_are_refused(tmp_path: Path, issuer: str, why: str) -> None:
    (error,) = errors(tmp_path, issuer)
    assert "space.yaml:5" in error
    assert why in error


def test_oidc_with_external_authentication_only(tmp_path: Path) -> None:
    (error,) = errors(tmp_path, "https://id.example", "standard")
    assert "name: external" in error
