"""Identity of the gateway: its certificate, the registry of certificates, and the operator who enrols it again.

TLS is reduced to a check of the certificate; an expired certificate is refused together with its connection. The
product decides when a certificate is renewed (`Renewal`), which one no longer counts (`Enrolment`) and which gateway
has to disconnect (`Acceptor`).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from bridge.enrolment import RefusalReason
from bridge.resources.endpoint import ListenEndpoint
from cloud.hub.enrolment import service
from cloud.hub.enrolment.limits import CERTIFICATES_A_GATEWAY_MAX
from cloud.hub.groups import Key
from cloud.hub.peers import DEFAULT_TENANT, gateway_uri
from cloud.hub.registry.enrolments import CertificateHolder, CertificateRecord, EnrolmentRefused, ShownCertificate
from cloud.lake.faults import RegistryError
from edge.appliance.identity import renewal
from edge.appliance.identity.hub_request import HubRequestFailure
from edge.broker.router import connector_uplink
from tests.simulation.environment import EPOCH_NS
from tests.simulation.gateway import HUB, NAME
from tests.simulation.history import History
from tests.simulation.network import Network
from tests.simulation.registry import Database
from tests.simulation.scheduler import Process, Scheduler

if TYPE_CHECKING:
    from tests.simulation.hub import Hub

LIFE_S: Final = 3.0
LOOK_S: Final = 0.1
ANSWERS_LOST: Final = 0.2
"""Share of renewals in which the certificate does not reach the gateway."""


class SimulatedEnrolments:
    """Substitute for `cloud.hub.registry.enrolments.Enrolments`, with the methods that a hub and its gateway use."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def renew(
        self,
        shown: ShownCertificate,
        key_id: bytes,
        now_us: int,
        certificates_max: int,
        sign: Callable[[], CertificateRecord],
    ) -> CertificateRecord:
        database = self._database
        fails = database.transaction()
        known = database.certificates.get(shown.serial)
        if known is None or (known.tenant, known.gateway) != shown[1:] or not known.good(now_us):
            raise EnrolmentRefused(RefusalReason.NO_CERTIFICATE, "enrol anew")
        good = [each for each in database.certificates.values() if each.good(now_us)]
        if len(good) >= certificates_max:
            raise EnrolmentRefused(RefusalReason.TOO_MANY, "wait")
        made = next((each for each in good if each.key_id == key_id and each.fresh(now_us)), None) or sign()
        database.certificates[made.serial] = made
        database.end(fails)
        return made

    def revoked(self, since_us: int = 0) -> list[CertificateRecord]:
        self._database.end(self._database.transaction())
        every = self._database.certificates.values()
        return [each for each in every if each.revoked_at is not None and each.revoked_at >= since_us]

    def serials(self, now_us: int, among: Collection[str]) -> dict[str, CertificateHolder]:
        self._database.end(self._database.transaction())
        found = [self._database.certificates[serial] for serial in sorted(among)]
        return {
            each.serial: CertificateHolder((each.tenant, each.gateway), each.ends_at)
            for each in found
            if each.ends_at > now_us
        }

    def forgotten(self, since_us: int = 0) -> dict[Key, int]:
        """Return nothing: the only gateway is never forgotten."""
        return {}


class Admission:
    """The gateway's certificate, and the operator who creates and revokes it at the hub and at the gateway."""

    def __init__(
        self, scheduler: Scheduler, network: Network, database: Database, hub: Hub, history: History, random: Random
    ) -> None:
        self.has: CertificateRecord
        """Certificate in the gateway's file."""
        self._key = b""
        """Key of the pending request, until it is answered."""
        self._scheduler = scheduler
        self._network = network
        self._database = database
        self._registry = SimulatedEnrolments(database)
        self._hub = hub
        self._history = history
        self._random = random
        self._outside = Process("person")
        self._wanted = True
        """The operator wants the gateway to be connected."""
        self._known_s = 0.0
        """Time during which the hub accepted a certificate that it could know to be revoked."""
        self._enrol()
        scheduler.after(LOOK_S, self._outside, self._look)

    @property
    def now_us(self) -> int:
        """Return the time of the hub's clock."""
        return (EPOCH_NS + int(self._scheduler.now_s * 1e9)) // 1_000

    @property
    def good(self) -> bool:
        """Return whether the hub accepts the gateway's certificate."""
        return self._database.certificates[self.has.serial].good(self.now_us)

    @property
    def shown(self) -> dict[str, Any]:
        """Return the certificate in the form in which `ssl` returns a verified one."""
        uri = gateway_uri(self.has.tenant, self.has.gateway)
        return {"subjectAltName": (("URI", uri),), "serialNumber": self.has.serial.upper()}

    def context(self, _files: object) -> Context:
        """Stand in for `peer_context`: return the context of the gateway's next connection attempt."""
        return Context(self.shown, self._refusal_of(self.has))

    def revoke(self) -> None:
        """Lock the gateway out until `want`."""
        self._wanted = False
        for each in list(self._database.certificates.values()):
            if each.good(self.now_us):
                self._database.certificates[each.serial] = each._replace(revoked_at=self.now_us)
                self._history.record("revoked", each.serial)

    def want(self) -> None:
        """Enrol the gateway again, as soon as possible, if it is locked out."""
        self._wanted = True

    def end_soon(self) -> None:
        """Give the gateway a certificate that is about to expire, as after a long absence."""
        ends_at = self.now_us + 100_000
        self.has = self._database.certificates[self.has.serial] = self.has._replace(ends_at=ends_at)

    # --- substitutes for functions of the product ---------------------------------------------------------------

    def validity(self, _file: Path) -> tuple[float, float]:
        """Stand in for `validity_of`."""
        return self.has.begins_at / 1e6, self.has.ends_at / 1e6

    def renew(self, _data: Path, _endpoint: ListenEndpoint) -> HubRequestFailure | None:
        """Stand in for `renewal._renew`, in its thread."""
        if not self._reached:
            return HubRequestFailure("nobody answers", away=True)
        if (why := self._refusal_of(self.has)()) is not None:
            return HubRequestFailure(str(why), away=False)
        self._key = self._key or self._random.randbytes(8)
        try:
            made = self._registry.renew(
                ShownCertificate(self.has.serial, self.has.tenant, self.has.gateway),
                self._key,
                self.now_us,
                CERTIFICATES_A_GATEWAY_MAX,
                lambda: self._signed(self._key),
            )
        except (EnrolmentRefused, RegistryError) as error:
            return HubRequestFailure(str(error), away=False)
        if self._random.random() < ANSWERS_LOST:
            return HubRequestFailure("no answer", away=True)
        self._take(made, "renewed")
        return None

    # --- inside -------------------------------------------------------------------------------------------------

    @property
    def _reached(self) -> bool:
        return self._hub.up and not self._network.apart(NAME, HUB.host)

    def _refusal_of(self, certificate: CertificateRecord) -> Callable[[], ssl.SSLError | None]:
        """Return a function that returns the TLS error of a handshake with this certificate, or None."""

        def refusal() -> ssl.SSLError | None:
            if certificate.begins_at <= self.now_us < certificate.ends_at:
                return None
            return ssl.SSLError(1, "the certificate has expired")

        return refusal

    def _signed(self, key_id: bytes) -> CertificateRecord:
        now_us, serial = self.now_us, f"{self._random.getrandbits(64) | 1 << 63:x}"
        ends_at = now_us + int(LIFE_S * 1e6)
        return CertificateRecord(serial, DEFAULT_TENANT, NAME, key_id, now_us - 1_000, ends_at, None, "")

    def _take(self, made: CertificateRecord, how: str) -> None:
        self.has, self._key = made, b""
        self._history.record(how, made.serial)

    def _enrol(self) -> None:
        """Enrol with a token made for the gateway's name: its former certificate no longer counts."""
        self.revoke()
        made = self._signed(self._random.randbytes(8))
        self._database.certificates[made.serial] = made
        self._wanted = True
        self._take(made, "enrolled")

    def _look(self) -> None:
        self._scheduler.after(LOOK_S, self._outside, self._look)
        if self._wanted and not self.good and self._reached:
            self._enrol()
        certificates = self._database.certificates
        let_in = [serial for serial in self._hub.let_in if certificates[serial].revoked_at is not None]
        can_know = self._hub.up and not self._database.fails
        self._known_s = self._known_s + LOOK_S if let_in and can_know else 0.0
        for serial in let_in:
            self._history.record("let in", serial, round(self._known_s, 3))


class Context:
    """Replaces an SSL context: the certificate that the gateway shows, and the result of the handshake."""

    def __init__(self, shown: dict[str, Any], refusal: Callable[[], ssl.SSLError | None]) -> None:
        self.shown = shown
        self.refusal = refusal


@contextmanager
def simulated_certificates(admission: Admission) -> Iterator[None]:
    """Replace the product's certificates by these."""
    with ExitStack() as patches:
        for owner, attribute, replacement in (
            (connector_uplink, "peer_context", admission.context),
            (renewal, "validity_of", admission.validity),
            (renewal, "_renew", admission.renew),
            (service, "Enrolments", SimulatedEnrolments),
        ):
            patches.enter_context(mock.patch.object(owner, attribute, replacement))
        yield
