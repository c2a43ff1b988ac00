"""Who the gateway is: the certificate it has, the registry of those there are, and the person who lets it in anew.

TLS is a look at the certificate: one that has ended is turned away with the connection. When a certificate is renewed
(`Renewal`), whose does not count any more (`Enrolment`) and who has to leave (`Acceptor`) is decided by the product.
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
"""Share of renewals whose certificate does not reach the gateway."""


class SimulatedEnrolments:
    """As `cloud.hub.registry.enrolments.Enrolments`, as far as a hub and its gateway ask."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def close(self) -> None:
        """There is nothing to close."""

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
        """Nobody forgets the only gateway."""
        return {}


class Admission:
    """The gateway's certificate, and the person at the hub and at the gateway who makes and revokes it."""

    def __init__(
        self, scheduler: Scheduler, network: Network, database: Database, hub: Hub, history: History, random: Random
    ) -> None:
        self.has: CertificateRecord
        """What is in the gateway's file."""
        self._key = b""
        """Of the request under way, until it is answered."""
        self._scheduler = scheduler
        self._network = network
        self._database = database
        self._registry = SimulatedEnrolments(database)
        self._hub = hub
        self._history = history
        self._random = random
        self._outside = Process("person")
        self._wanted = True
        """The person wants the gateway in."""
        self._known_s = 0.0
        """How long a revoked certificate has been let in that the hub could know of."""
        self._enrol()
        scheduler.after(LOOK_S, self._outside, self._look)

    @property
    def now_us(self) -> int:
        """The hub's clock."""
        return (EPOCH_NS + int(self._scheduler.now_s * 1e9)) // 1_000

    @property
    def good(self) -> bool:
        """The gateway's certificate lets it in."""
        return self._database.certificates[self.has.serial].good(self.now_us)

    @property
    def shown(self) -> dict[str, Any]:
        """The certificate, as `ssl` gives it to who verified it."""
        uri = gateway_uri(self.has.tenant, self.has.gateway)
        return {"subjectAltName": (("URI", uri),), "serialNumber": self.has.serial.upper()}

    def context(self, _files: object) -> Context:
        """In place of `peer_context`: for the next attempt of the gateway to connect."""
        return Context(self.shown, self._refusal_of(self.has))

    def revoke(self) -> None:
        """The gateway is shut out until `want`."""
        self._wanted = False
        for each in list(self._database.certificates.values()):
            if each.good(self.now_us):
                self._database.certificates[each.serial] = each._replace(revoked_at=self.now_us)
                self._history.record("revoked", each.serial)

    def want(self) -> None:
        """Somebody enrols it anew where it is not let in, as soon as that can be done."""
        self._wanted = True

    def end_soon(self) -> None:
        """The certificate is one that ends in a moment: its gateway was away for long."""
        ends_at = self.now_us + 100_000
        self.has = self._database.certificates[self.has.serial] = self.has._replace(ends_at=ends_at)

    # --- in place of what the product does ----------------------------------------------------------------------

    def validity(self, _file: Path) -> tuple[float, float]:
        """As `validity_of`."""
        return self.has.begins_at / 1e6, self.has.ends_at / 1e6

    def renew(self, _data: Path, _endpoint: ListenEndpoint) -> HubRequestFailure | None:
        """As `renewal._renew`, in its thread."""
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
        """What a handshake with it says, when it comes to that."""

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
        """With a token made for its name: what it had does not count any more."""
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
    """In place of an SSL context: what the gateway shows, and what comes of the handshake."""

    def __init__(self, shown: dict[str, Any], refusal: Callable[[], ssl.SSLError | None]) -> None:
        self.shown = shown
        self.refusal = refusal


@contextmanager
def simulated_certificates(admission: Admission) -> Iterator[None]:
    """While this lasts, the product's certificates are these."""
    with ExitStack() as patches:
        for owner, attribute, replacement in (
            (connector_uplink, "peer_context", admission.context),
            (renewal, "validity_of", admission.validity),
            (renewal, "_renew", admission.renew),
            (service, "Enrolments", SimulatedEnrolments),
        ):
            patches.enter_context(mock.patch.object(owner, attribute, replacement))
        yield
