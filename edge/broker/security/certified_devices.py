"""Devices that prove themselves with a certificate of an authority that their tenant trusts.

The hub gives these authorities with the devices. One that issues certificates of devices says nothing about the users
of this gateway: its certificates never name one, and only the authority itself may have issued them, not one below it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Final, NamedTuple

from bridge.device_pages import TrustAnchor
from bridge.device_reports import CERTIFICATE_BYTES_MAX
from edge.broker.security.hub_devices import HubDevices
from edge.broker.security.proof import CertifiedIdentity
from edge.broker.security.provisioned_file import ProvisionedDevice

if TYPE_CHECKING:
    from edge.broker.security.trust_anchors import CertificateIssuer, TrustedAuthorities


class DeviceCandidate(NamedTuple):
    """Device that is not registered, and may be let in by its certificate."""

    device: ProvisionedDevice
    identity: CertifiedIdentity
    """Its identity once it is let in."""


Decided = Callable[[bool], None]
"""Takes whether a candidate is a device now."""
Provision = Callable[[DeviceCandidate, Decided], None]
"""Lets a candidate in, or refuses it, and calls the second argument: at once, or later."""


class RecognizedCertificate(NamedTuple):
    """Certificate of a client with regard to the authorities of the hub."""

    by_hub: bool
    """Its authority is one of them. False: `clientCa` decides."""
    identity: CertifiedIdentity | None = None
    """Device; None if there is none with this certificate."""
    configured: bool = False
    """An authority of `clientCa` has issued it too: the lists and responders of that one count."""
    candidate: DeviceCandidate | None = None
    """Device that may be let in; None if there is one, or none may be."""


UNRECOGNIZED = RecognizedCertificate(by_hub=False)


def _refuse(_candidate: DeviceCandidate, decided: Decided) -> None:
    """Let no device in that is not registered."""
    decided(False)


class CertifiedDevices:
    """Devices by their certificates. For the loop's thread."""

    def __init__(
        self,
        devices: HubDevices,
        users: Callable[[], Collection[str]],
        now_s: Callable[[], float] = time.time,
        provision: Provision = _refuse,
    ) -> None:
        """`users` returns the names of the users of this gateway, which win over devices; `now_s` UTC seconds.
        `provision` lets candidates in; the default lets none in."""
        self._devices = devices
        self._users = users
        self._now_s = now_s
        self.provision: Final = provision
        self._anchors: Mapping[str, Sequence[TrustAnchor]] = {}
        self._authorities: TrustedAuthorities | None = None
        """None without authorities."""
        self._watchers: list[Callable[[], None]] = []
        self._reviewers: list[Callable[[Set[str]], None]] = []
        self.follow()

    @property
    def certificates(self) -> Sequence[bytes]:
        """Certificates of the authorities, in DER."""
        return () if self._authorities is None else self._authorities.certificates

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change of the authorities."""
        self._watchers.append(changed)

    def call_to_review(self, review: Callable[[Set[str]], None]) -> None:
        """Call `review` with identities that certificates may not prove any more."""
        self._reviewers.append(review)

    def review(self, identities: Set[str]) -> None:
        """Close the connections with these identities if their certificates prove another one now, or none."""
        for each in self._reviewers:
            each(identities)

    def follow(self) -> None:
        """Apply changed authorities of the devices."""
        anchors = self._devices.anchors
        if anchors == self._anchors:
            return
        self._anchors, self._authorities = anchors, _read(anchors)
        for changed in self._watchers:
            changed()

    def recognize(self, certificate: bytes, configured: Iterable[bytes] = ()) -> RecognizedCertificate:
        """Return what a verified client certificate (DER) proves. `configured`: certificates of the authorities of
        `clientCa`, in DER."""
        if self._authorities is None:
            return UNRECOGNIZED
        found = self._authorities.issuers_of(certificate, configured)
        if not found.named:
            return UNRECOGNIZED
        for issuer in found.issuers:
            identity = self._devices.certified(issuer.tenant, issuer.auth_id, self._now_s())
            if identity is not None and identity not in self._users():
                return RecognizedCertificate(True, CertifiedIdentity(identity), found.configured)
        if found.configured and any(name in self._users() for name in found.common_names):
            return UNRECOGNIZED
        candidate = self._candidate(found.issuers, certificate)
        if candidate is not None:
            return RecognizedCertificate(True, None, found.configured, candidate)
        return UNRECOGNIZED if found.configured else RecognizedCertificate(by_hub=True)

    def _candidate(self, issuers: Sequence[CertificateIssuer], certificate: bytes) -> DeviceCandidate | None:
        """Return the device that may be let in by a certificate; None without one, and if two tenants could have it."""
        possible = [each for each in issuers if each.device]
        if len(possible) != 1 or len(certificate) > CERTIFICATE_BYTES_MAX:  # the hub reads no larger one
            return None
        tenant, anchor, auth_id, device = possible[0]
        identity = self._devices.identity_of(tenant, device)
        if identity in self._users() or self._devices.has_names(tenant, device, auth_id):
            return None
        made = ProvisionedDevice(
            tenant=tenant,
            device=device,
            auth_id=auth_id,
            authority=anchor.id,
            certificate=certificate,
            at_s=self._now_s(),
        )
        return DeviceCandidate(made, CertifiedIdentity(identity))


def _read(anchors: Mapping[str, Sequence[TrustAnchor]]) -> TrustedAuthorities | None:
    if not any(anchors.values()):
        return None
    from edge.broker.security.trust_anchors import TrustedAuthorities  # noqa: PLC0415 - cryptography takes 10 MiB

    return TrustedAuthorities(anchors)
