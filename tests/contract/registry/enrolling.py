"""Tokens, certificates and claims of gateways that enrol."""

from __future__ import annotations

import itertools

import pytest

from bridge.enrolment import RefusalReason
from cloud.hub.registry.enrolments import (
    CertificateRecord,
    EnrolmentRefused,
    Enrolments,
    TokenClaim,
    TokenRecord,
)

DAY = 86_400_000_000


LIFE = 90 * DAY


NUMBERS = itertools.count(1)


def token(name: str = "t", *, gateway: str | None = None, ends: int = DAY) -> TokenRecord:
    return TokenRecord(name, b"digest of " + name.encode(), "acme", gateway, 0, ends)


def claim(key: bytes, *, name: str = "t", gateway: str = "hall", secret: bytes | None = None) -> TokenClaim:
    return TokenClaim(name, b"digest of " + name.encode() if secret is None else secret, gateway, key)


def signing(key: bytes, now: int) -> object:
    def sign(tenant: str, gateway: str) -> CertificateRecord:
        serial = f"{next(NUMBERS):x}"
        return CertificateRecord(serial, tenant, gateway, key, now, now + LIFE, None, f"pem {serial}")

    return sign


def enrol(to: Enrolments, who: TokenClaim, now: int = 1) -> CertificateRecord:
    return to.enrol(who, now, signing(who.key_id, now))  # type: ignore[arg-type]


def refusal_of(to: Enrolments, who: TokenClaim, now: int = 1) -> RefusalReason:
    with pytest.raises(EnrolmentRefused) as caught:
        enrol(to, who, now)
    return caught.value.reason
