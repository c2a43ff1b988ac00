"""Enrolment at the hub: revoked gateways, the delay until they are refused, and the published list."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from cryptography import x509

from bridge.enrolment import Attestation, EnrolmentRequest, RefusalReason, RenewalRequest
from cloud.hub.enrolment import service
from cloud.hub.enrolment.authority import OwnAuthority
from cloud.hub.enrolment.revocation_record import RevocationRecord
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.older_copy import OlderCopySign
from cloud.hub.peers import HubPeer, PeerKind, read_certificate
from cloud.hub.registry.enrolments import CertificateRecord, EnrolmentRefused, Enrolments
from cloud.hub.registry.location import sqlite_url
from cloud.lake.faults import RegistryError
from edge.appliance.identity.enrolling import enrol
from edge.appliance.identity.files import GatewayIdentity
from edge.appliance.identity.request import new_key, signing_request
from tests.support.loop_wait import until
from tests.unit.enrolment.hub import NOW, Hub, shown

DEADLINE_S = 20.0
HALL = HubPeer("acme", "hall", PeerKind.GATEWAY)
SAID = Attestation("", "hall", (), "", "", "", "", "", "")


class Watched:
    """A hub's enrolment that looks often, and a gateway that has enrolled."""

    def __init__(self, folder: Path) -> None:
        self.hub = Hub(folder)
        data = folder / "gw"
        data.mkdir()
        enrol(data, self.hub, self.hub.token(), "hall", now=lambda: NOW)
        self.serial = GatewayIdentity(data).certificate().serial_number
        self.told = 0
        url = sqlite_url(folder / "registry.db")
        self.enrolment = Enrolment(self.hub.own, url, life_s=60.0, revoked=self._tell, now=lambda: self.hub.now)

    def _tell(self) -> None:
        self.told += 1

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            await self.enrolment.open()
            try:
                await asyncio.wait_for(work(), DEADLINE_S)
            finally:
                await self.enrolment.close()

        asyncio.run(main())


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(service, "REVOCATIONS_CHECK_INTERVAL_S", 0.01)
    return Watched(tmp_path)


def test_revocation_by_a_command_is_noticed_once(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    enrolment, looks = watched.enrolment, 0
    revoked = Enrolments.revoked

    def counted(registry: Enrolments, since_us: int = 0) -> list[CertificateRecord]:
        nonlocal looks
        looks += 1
        return revoked(registry, since_us)

    monkeypatch.setattr(Enrolments, "revoked", counted)

    async def work() -> None:
        assert enrolment.refusal(HALL, watched.serial) is None
        await asyncio.to_thread(watched.hub.revoke, "hall")
        await until(lambda: enrolment.refusal(HALL, watched.serial) is not None)
        watched.hub.now += 1e8  # it has ended by then
        before = looks
        await until(lambda: looks > before + 5)
        assert watched.told == 1
        listed = x509.load_der_x509_crl(enrolment.revocations() or b"")
        assert [each.serial_number for each in listed] == [watched.serial]
        assert enrolment.revocations() == enrolment.revocations(), "signed once while nothing changes"

    watched.run(work)


def test_earlier_revocations_are_known_at_the_start(watched: Watched) -> None:
    watched.hub.revoke("hall")

    async def work() -> None:
        assert "enrol it again" in (watched.enrolment.refusal(HALL, watched.serial) or "")
        assert watched.enrolment.refusal(HALL, watched.serial + 1) is None

    watched.run(work)


def test_unreachable_registry_is_a_problem_and_known_revocations_apply(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.hub.revoke("hall")
    enrolment = watched.enrolment

    def away(_registry: Enrolments, _since_us: int = 0) -> list[CertificateRecord]:
        raise RegistryError("the registry cannot be used: away")

    async def work() -> None:
        monkeypatch.setattr(Enrolments, "revoked", away)
        await until(lambda: enrolment.trouble is not None)
        assert enrolment.refusal(HALL, watched.serial) is not None
        monkeypatch.undo()
        await until(lambda: enrolment.trouble is None)

    watched.run(work)


def test_requests_beyond_the_capacity_are_asked_to_retry(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "REQUESTS_MAX", 1)
    certificate = shown(f"{watched.serial:X}")

    async def work() -> None:
        asked = [watched.enrolment.renew(RenewalRequest(signing_request(new_key())), certificate) for _ in range(4)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        refused = [each for each in outcomes if isinstance(each, EnrolmentRefused)]
        assert {each.reason for each in refused} == {RefusalReason.UNAVAILABLE}
        assert len(refused) == 3
        await asyncio.to_thread(watched.hub.revoke, "hall")
        await until(lambda: watched.told == 1)

    watched.run(work)


def test_unusable_registry_is_reported(tmp_path: Path) -> None:
    (tmp_path / "registry.db").write_text("nothing of ours" * 1_000)
    own = OwnAuthority.make("hub", NOW)
    enrolment = Enrolment(own, sa.make_url(f"sqlite:///{tmp_path}/registry.db"), life_s=60.0, revoked=lambda: None)

    async def main() -> None:
        with pytest.raises(RegistryError):
            await enrolment.open()
        await enrolment.close()

    asyncio.run(main())


def test_same_serial_of_another_gateway_gets_no_information(watched: Watched) -> None:
    """Certificates of another trusted authority may have the same serial numbers."""
    serial = f"{watched.serial:X}"
    others = (shown(serial, "other"), shown(serial, tenant="other"), {"serialNumber": serial}, {}, None)

    async def work() -> None:
        for other in others:
            with pytest.raises(EnrolmentRefused) as caught:
                await watched.enrolment.renew(RenewalRequest(signing_request(new_key())), other)
            assert caught.value.reason is RefusalReason.NO_CERTIFICATE
            with pytest.raises(EnrolmentRefused) as caught:
                await watched.enrolment.attest(SAID, other)
            assert caught.value.reason is RefusalReason.NO_CERTIFICATE
        made = await watched.enrolment.renew(RenewalRequest(signing_request(new_key())), shown(serial))
        assert (made.tenant, made.gateway) == ("acme", "hall")

    watched.run(work)


def test_unknown_token_name_is_answered_without_the_registry(watched: Watched) -> None:
    """PostgreSQL refuses a NUL in a text, which once gave the client an error about the registry."""
    asked = EnrolmentRequest("a\0b", "c2VjcmV0", "hall", signing_request(new_key()))

    async def work() -> None:
        with pytest.raises(EnrolmentRefused) as caught:
            await watched.enrolment.enrol(asked)
        assert caught.value.reason is RefusalReason.MALFORMED

    watched.run(work)


class TestOlderCopy:
    """The registry was restored from a copy made before a gateway enrolled, or before one was revoked."""

    def enrolment(self, watched: Watched, folder: Path, signs: list[OlderCopySign]) -> Enrolment:
        return watched.hub.enrolment(record=RevocationRecord(folder / "authority"), older=signs.append)

    def test_unknown_gateway_is_listed_and_can_be_revoked(self, watched: Watched, tmp_path: Path) -> None:
        signs: list[OlderCopySign] = []
        watched.enrolment = enrolment = self.enrolment(watched, tmp_path, signs)
        yard = read_certificate(shown("AB12", "yard"))

        async def work() -> None:
            enrolment.admitted(read_certificate(shown(f"{watched.serial:X}")))
            enrolment.admitted(yard)
            await until(lambda: bool(signs))
            assert signs == [OlderCopySign.CERTIFICATES]
            assert await asyncio.to_thread(watched.hub.revoke, "yard") == 1
            await until(lambda: enrolment.refusal(yard.peer, yard.serial) is not None)
            assert enrolment.refusal(HALL, watched.serial) is None

        watched.run(work)

    def test_unknown_gateway_can_renew(self, watched: Watched, tmp_path: Path) -> None:
        signs: list[OlderCopySign] = []
        watched.enrolment = enrolment = self.enrolment(watched, tmp_path, signs)

        async def work() -> None:
            made = await enrolment.renew(RenewalRequest(signing_request(new_key())), shown("AB12", "yard"))
            assert (made.tenant, made.gateway) == ("acme", "yard")
            assert signs == [OlderCopySign.CERTIFICATES]

        watched.run(work)

    def test_lost_revocation_applies_again(self, watched: Watched, tmp_path: Path) -> None:
        signs: list[OlderCopySign] = []
        registry = tmp_path / "registry.db"
        with sqlite3.connect(registry) as before, sqlite3.connect(tmp_path / "copy.db") as copy:
            before.backup(copy)
        watched.hub.revoke("hall")
        watched.enrolment = self.enrolment(watched, tmp_path, signs)

        async def revoked() -> None:
            assert watched.enrolment.refusal(HALL, watched.serial) is not None

        watched.run(revoked)
        assert signs == []
        for each in tmp_path.glob("registry.db*"):
            each.unlink()
        (tmp_path / "copy.db").rename(registry)
        watched.enrolment = self.enrolment(watched, tmp_path, signs)
        watched.run(revoked)
        assert signs == [OlderCopySign.REVOCATIONS]

    def test_waiting_certificates_are_bounded(
        self, watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service, "ADMITTED_UNCHECKED_MAX", 1)
        signs: list[OlderCopySign] = []
        watched.enrolment = enrolment = self.enrolment(watched, tmp_path, signs)

        async def work() -> None:
            for number in range(3):
                enrolment.admitted(read_certificate(shown(f"AB{number}", f"yard{number}")))
            await until(lambda: bool(signs))
            counts = [await asyncio.to_thread(watched.hub.revoke, f"yard{number}") for number in range(3)]
            assert counts == [1, 0, 0]

        watched.run(work)

    @pytest.mark.parametrize("step", ["serials", "add_certificates"])
    def test_failure_to_list_does_not_block_revocation(
        self, watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        signs: list[OlderCopySign] = []
        watched.enrolment = enrolment = self.enrolment(watched, tmp_path, signs)

        def fail(_registry: Enrolments, *_: object) -> None:
            raise RegistryError("the registry cannot be used: away")

        async def work() -> None:
            monkeypatch.setattr(Enrolments, step, fail)
            enrolment.admitted(read_certificate(shown("AB12", "yard")))
            await until(lambda: enrolment.trouble is not None)
            await asyncio.to_thread(watched.hub.revoke, "hall")
            await until(lambda: enrolment.refusal(HALL, watched.serial) is not None)
            assert signs == [], "every look has failed so far"
            monkeypatch.undo()
            await until(lambda: signs == [OlderCopySign.CERTIFICATES])

        watched.run(work)
