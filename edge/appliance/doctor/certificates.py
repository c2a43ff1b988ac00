"""Checks of certificates and revocation lists: readable, valid now, a complete chain, with the right key."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from edge.appliance.doctor.check import CheckContext, CheckResult, fail, ok, warn
from edge.appliance.identity.location import FILE, FOLDER
from edge.broker.listeners.revocations import ClientRevocations
from edge.output.amounts import counted

DAYS_WARN: Final = 30
"""Days before its end at which a certificate gets a warning: time to renew it by hand."""
DAYS_WARN_ENROLLED: Final = 20
"""The same for a certificate from an enrolment, which is renewed about 30 days before its end."""
BEGIN_CRL: Final = b"-----BEGIN X509 CRL-----"


class Files(NamedTuple):
    """Files of one user of TLS: certificate and key, authority, revocation list."""

    user: str
    certificate: str | None
    key: str | None
    authority: str | None
    revoked: str | None

    @property
    def enrolled(self) -> bool:
        """True when the certificate is from an enrolment: the gateway renews it."""
        return self.certificate is not None and Path(self.certificate).parts[-2:] == (FOLDER, FILE)


def certificates(context: CheckContext) -> Iterator[CheckResult]:
    """Check the certificates of the listeners and of each connector."""
    for files in _configured(context):
        yield from check_files(files, datetime.datetime.fromtimestamp(context.now(), datetime.UTC))
    yield from _client_revocations(context)


def _configured(context: CheckContext) -> Iterator[Files]:
    tls = context.configuration.tls
    if tls is not None:
        yield Files("listeners", tls.certificate, tls.key, tls.client_ca, None)
    for connector in context.configuration.connectors:
        own = connector.tls
        if own is not None and (own.certificate or own.ca):
            yield Files(f"connector {connector.name}", own.certificate, own.key, own.ca, own.crl)


def _client_revocations(context: CheckContext) -> Iterator[CheckResult]:
    """Check the list of revoked client certificates as a start does."""
    tls = context.configuration.tls
    if tls is None or tls.client_crl is None:
        return
    known = ClientRevocations(tls.client_crl, tls.client_ca, context.now)
    name = "revocations of listeners"
    if known.trouble is None:
        yield ok(name, f"{tls.client_crl} is valid")
    else:
        result = fail if known.closed else warn
        yield result(name, known.trouble, "put the authority's current list there; it is loaded automatically")


def check_files(files: Files, now: datetime.datetime) -> Iterator[CheckResult]:
    """Yield the problems of these files at a time, or one good result."""
    name = f"certificate of {files.user}"
    problems = list(_problems(files, name, now))
    yield from problems
    if not problems:
        yield ok(name, _summary(files, now))


def _problems(files: Files, name: str, now: datetime.datetime) -> Iterator[CheckResult]:
    if files.certificate is not None:
        chain = _load(files.certificate)
        if isinstance(chain, str):
            yield fail(name, chain, "put a PEM certificate (with its chain) there")
        else:
            for certificate in chain:
                yield from _times(certificate, name, now, enrolled=files.enrolled)
            yield from _chained(chain, name)
            if files.key is not None:
                yield from _key(chain[0], files.key, name)
    if files.authority is not None and files.authority != files.certificate:
        trusted = _load(files.authority)
        if isinstance(trusted, str):
            yield fail(f"authority of {files.user}", trusted, "put the authority's PEM certificate there")
        else:
            for certificate in trusted:
                yield from _times(certificate, f"authority of {files.user}", now)
    if files.revoked is not None and not Path(files.revoked).is_file():
        yield fail(f"revocations of {files.user}", f"{files.revoked} not found", "fetch the authority's current list")
    for place in (files.revoked, files.authority):
        if place is not None:
            yield from _revoked(place, files.user, now)


def _load(path: str) -> list[x509.Certificate] | str:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        return f"{path}: {error.strerror}"
    try:
        return x509.load_pem_x509_certificates(content)
    except (ValueError, x509.InvalidVersion):
        return f"{path} does not contain a PEM certificate"


def _times(
    certificate: x509.Certificate, name: str, now: datetime.datetime, *, enrolled: bool = False
) -> Iterator[CheckResult]:
    subject = certificate.subject.rfc4514_string() or "(no name)"
    renew, days_warn = "renew it; the new file is loaded automatically", DAYS_WARN
    if enrolled:
        renew = "the gateway renews it: check that it reaches its hub; otherwise use a new token: waypost enrol"
        days_warn = DAYS_WARN_ENROLLED
    if now < certificate.not_valid_before_utc:
        begins = certificate.not_valid_before_utc.date()
        yield fail(name, f"{subject} is not valid before {begins}", "check the clock; otherwise get a new certificate")
    left = certificate.not_valid_after_utc - now
    if left.total_seconds() <= 0:
        yield fail(name, f"{subject} expired on {certificate.not_valid_after_utc.date()}", renew)
    elif left.days < days_warn:
        yield warn(name, f"{subject} expires in {counted(left.days, 'day')}", renew)


def _chained(chain: Sequence[x509.Certificate], name: str) -> Iterator[CheckResult]:
    for lower, upper in pairwise(chain):
        try:
            lower.verify_directly_issued_by(upper)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            seen = f"{upper.subject.rfc4514_string()} did not sign {lower.subject.rfc4514_string()}"
            yield fail(name, seen, "order the file: own certificate first, then its issuer, and so on")


def _key(certificate: x509.Certificate, path: str, name: str) -> Iterator[CheckResult]:
    try:
        key = load_pem_private_key(Path(path).read_bytes(), None)
    except OSError as error:
        yield fail(name, f"key {path}: {error.strerror}", "put the key there, readable by the gateway's user")
        return
    except (ValueError, TypeError, UnsupportedAlgorithm):
        yield fail(name, f"key {path} is not a PEM key without a passphrase", "store it without one, mode 0600")
        return
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        yield fail(
            name, f"key {path} does not belong to it", "put there the key with which the certificate was requested"
        )


def _revoked(path: str, user: str, now: datetime.datetime) -> Iterator[CheckResult]:
    try:
        content = Path(path).read_bytes()
        if BEGIN_CRL not in content:
            return
        revoked = x509.load_pem_x509_crl(content[content.index(BEGIN_CRL) :])
    except OSError:
        return  # the check of the authority reports it
    except ValueError as error:
        yield fail(f"revocations of {user}", f"{path}: {error}", "fetch the authority's current list")
        return
    due = revoked.next_update_utc
    if due is not None and due < now:
        seen = f"{path} should have been replaced on {due.date()}"
        yield fail(f"revocations of {user}", seen, "fetch the authority's current list")


def _summary(files: Files, now: datetime.datetime) -> str:
    found = _load(files.certificate or files.authority or "")
    if isinstance(found, str):
        return found
    first = min(found, key=lambda certificate: certificate.not_valid_after_utc)
    return f"{found[0].subject.rfc4514_string()}, {counted((first.not_valid_after_utc - now).days, 'day')} left"
