"""Verify that a document is from the hub at which this gateway enrolled, and for this gateway.

This module is imported when it is needed, as it takes 10 MiB. It ignores the validity times of certificates: the
authority was fixed at the enrolment, and a gateway's clock may be wrong.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes

from bridge import device_pages
from bridge.certificate_signature import is_signed_by
from bridge.desired import DesiredError, SignedDesired, VerifiedDesired, read, to_sign
from bridge.device_pages import DevicePage, DevicePageError, SignedDevicePage
from edge.appliance.identity.files import GatewayIdentity


class NotOurs(Exception):
    """A document is not from our hub, or not for this gateway."""


def verify(signed: SignedDesired, data: Path) -> VerifiedDesired:
    """Return the signed document. Raises `DesiredError`."""
    try:
        signer, own = _identity(data)
        _require_signature(signer, signed.signature_bytes, to_sign(signed.content))
        desired = read(signed.content)
        _require_names(own, desired.tenant, desired.gateway)
    except NotOurs as why:
        raise DesiredError(str(why)) from None
    return VerifiedDesired(desired, signer.fingerprint(hashes.SHA256()).hex())


def verify_devices(signed: SignedDevicePage, data: Path) -> DevicePage:
    """Return the signed page of devices. Raises `DevicePageError`."""
    try:
        signer, own = _identity(data)
        _require_signature(signer, signed.signature_bytes, device_pages.to_sign(signed.content))
        page = device_pages.read_page(signed.content)
        _require_names(own, page.tenant, page.gateway)
    except NotOurs as why:
        raise DevicePageError(str(why)) from None
    return page


def _identity(data: Path) -> tuple[x509.Certificate, x509.Certificate]:
    """Return the certificates of the authority and of this gateway. Raises `NotOurs`."""
    try:
        identity = GatewayIdentity(data)
        authority = x509.load_pem_x509_certificate(identity.authority().encode("ascii"))
        return authority, identity.certificate()
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise NotOurs(f"this gateway's identity cannot be read: {error}") from None


def _require_signature(authority: x509.Certificate, signature: bytes, statement: bytes) -> None:
    if not is_signed_by(authority, signature, statement):
        raise NotOurs("its signature is not from the authority at which this gateway enrolled")


def _require_names(own: x509.Certificate, tenant: str, gateway: str) -> None:
    if (tenant, gateway) != _names_in(own):
        raise NotOurs(f"it is for another gateway, {gateway} of tenant {tenant}")


def _names_in(own: x509.Certificate) -> tuple[str, str] | None:
    """Return tenant and gateway of the URI in a gateway's certificate."""
    try:
        names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    for uri in names.get_values_for_type(x509.UniformResourceIdentifier):
        parts = urlsplit(uri)
        if parts.scheme == "waypost":
            return unquote(parts.netloc), unquote(parts.path.removeprefix("/"))
    return None
