"""Hub without the authority's key, and the process that has it: requests, revocations, and the time without it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp

from bridge.desired import DesiredReport
from bridge.device_pages import DevicePage, read_page
from bridge.enrolment import EnrolmentRequest, EnrolmentToken, RefusalReason, RenewalRequest, enrolment_request
from cloud.hub.desired.service import make_signer
from cloud.hub.devices.page_signer import DevicePageSigner
from cloud.hub.devices.pages import sign_page
from cloud.hub.enrolment import authority_service, remote_authority
from cloud.hub.enrolment.authority import KnownAuthority, OwnAuthority
from cloud.hub.enrolment.authority_service import AuthorityService, SigningTurn
from cloud.hub.enrolment.certificate_renewal import CertificateRenewal
from cloud.hub.enrolment.delegated_key import DelegatedKey
from cloud.hub.enrolment.device_page_request import AnsweredPage, DevicePageRequest
from cloud.hub.enrolment.files import ServerCertificate
from cloud.hub.enrolment.limits import (
    SIGNATURE_ANSWERS_KEPT_S,
    SIGNATURE_FIRST_CHECK_S,
    SIGNATURE_REQUESTS_KEPT_S,
)
from cloud.hub.enrolment.remote_authority import NotSigned, RemoteAuthority, SignatureDenied, TooManyWaiting
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.enrolment.signature_request import (
    UNKNOWN_REQUEST,
    ServerSignature,
    SignatureRequest,
    SignerPurpose,
    SignerSignature,
    SigningRules,
    public_pem,
)
from cloud.hub.registry.configurations import Configurations, WantedConfiguration
from cloud.hub.registry.database import Database
from cloud.hub.registry.enrolments import EnrolmentRefused, Enrolments, TokenRecord
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import configurations, hubs, signature_requests
from cloud.hub.registry.signatures import SignatureAnswer, Signatures, WaitingRequest
from cloud.lake.faults import RegistryError
from edge.appliance.identity.request import new_key, signing_request
from tests.support.loop_wait import until
from tests.support.registered_devices import RegisteredRows
from tests.unit.enrolment.hub import shown

DEADLINE_S = 20.0
REQUESTS = 40
RULES = SigningRules({"hub.example"}, 3_600.0)
PAGE = DevicePageRequest("acme", "gw1", "")


class Fleet:
    """Registry, hub without a key, and the authority's process, which a test starts."""

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self.url = sqlite_url(folder / "registry.db")
        self.own = OwnAuthority.make("hub", time.time())
        known = KnownAuthority(self.own.certificate)
        (folder / "authority").mkdir()
        self.remote = RemoteAuthority(known, self.url, timeout_s=timeout_s)
        key = DelegatedKey(folder / "authority" / "ocsp.pem", lambda: known, self.remote.certifier(SignerPurpose.OCSP))
        self.enrolment = Enrolment(self.remote, self.url, life_s=60.0, revoked=lambda: None, ocsp_key=key)
        self.server = ServerCertificate(folder, known, ["hub.example", "localhost"])

    def authority(self) -> AuthorityService:
        return AuthorityService(self.own, self.url, RULES, DevicePageSigner)

    @contextlib.asynccontextmanager
    async def signing(self):  # type: ignore[no-untyped-def]
        """Run the authority's process in the body."""
        service = self.authority()
        await service.open()
        try:
            yield service
        finally:
            await service.close()

    def token(self) -> EnrolmentToken:
        made, now_us = EnrolmentToken.make(self.own.fingerprint), time.time_ns() // 1_000
        with contextlib.closing(Enrolments(self.url)) as registry:
            registry.add([TokenRecord(made.id, made.digest, "acme", None, now_us, now_us + 60_000_000)])
        return made

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            await self.remote.open()
            await self.enrolment.open()
            try:
                await asyncio.wait_for(work(), DEADLINE_S)
            finally:
                await self.enrolment.close()
                await self.remote.close()

        asyncio.run(main())


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setattr(remote_authority, "SIGNATURE_CHECK_S", 0.01)
    monkeypatch.setattr(remote_authority, "AUTHORITY_PUBLISHED_S", 0.02)
    monkeypatch.setattr(authority_service, "REVOCATIONS_CHECK_INTERVAL_S", 0.01)
    return Fleet(tmp_path, 10.0)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Return a fleet without its authority; the hub waits for it for 0.1 s."""
    monkeypatch.setattr(remote_authority, "SIGNATURE_CHECK_S", 0.01)
    monkeypatch.setattr(remote_authority, "AUTHORITY_PUBLISHED_S", 0.02)
    monkeypatch.setattr(authority_service, "REVOCATIONS_CHECK_INTERVAL_S", 0.01)
    return Fleet(tmp_path, 0.1)


def enrolling(token: EnrolmentToken, csr: str) -> EnrolmentRequest:
    return enrolment_request(token, "hall", csr)


def test_gateway_enrols_renews_and_is_revoked(fleet: Fleet) -> None:
    token, csr = fleet.token(), signing_request(new_key())

    async def work() -> None:
        async with fleet.signing():
            made = await fleet.enrolment.enrol(enrolling(token, csr))
            assert made.authority == fleet.own.pem
            certificate = x509.load_pem_x509_certificate(made.certificate.encode())
            certificate.verify_directly_issued_by(fleet.own.certificate)
            again = await fleet.enrolment.enrol(enrolling(token, csr))
            assert again.certificate == made.certificate, "a repetition gets the same"
            showing = shown(f"{certificate.serial_number:X}")
            renewed = await fleet.enrolment.renew(RenewalRequest(signing_request(new_key())), showing)
            assert renewed.certificate != made.certificate
            await fleet.enrolment.ask(lambda registry: registry.revoke("acme", "hall", fleet.enrolment.now_us()))
            await until(lambda: len(listed(fleet)) == 2)

    fleet.run(work)


def listed(fleet: Fleet) -> list[int]:
    found = fleet.enrolment.revocations()
    if found is None:
        return []
    revoked = x509.load_der_x509_crl(found)
    assert revoked.is_signature_valid(fleet.own.certificate.public_key())  # type: ignore[arg-type]
    return [each.serial_number for each in revoked]


def test_enrolment_waits_for_an_authority_that_is_away(alone: Fleet) -> None:
    token, csr = alone.token(), signing_request(new_key())

    async def work() -> None:
        with pytest.raises(EnrolmentRefused) as refused:
            await alone.enrolment.enrol(enrolling(token, csr))
        assert refused.value.reason is RefusalReason.UNAVAILABLE
        assert alone.enrolment.revocations() is None
        async with alone.signing():
            await until(lambda: alone.enrolment.revocations() is not None)
        alone.remote._timeout_s = 10.0
        async with alone.signing():
            assert (await alone.enrolment.enrol(enrolling(token, csr))).gateway == "hall", "the token is not spent"

    alone.run(work)


def test_request_without_a_waiting_hub_is_withdrawn(alone: Fleet) -> None:
    async def work() -> None:
        with pytest.raises(NotSigned):
            await alone.remote.sign(SignerSignature("", SignerPurpose.OCSP))
        await until(lambda: waiting(alone) == 0)

    alone.run(work)


def waiting(fleet: Fleet) -> int:
    with contextlib.closing(open_registry(fleet.url).database) as database:
        return len(database.transaction(lambda tx: tx.execute(signature_requests.select()).all()))


def test_refusal_of_the_authority_reaches_the_hub(fleet: Fleet) -> None:
    async def work() -> None:
        async with fleet.signing():
            key = public_pem(new_key().public_key())
            with pytest.raises(NotSigned, match=r"bank\.example"):
                await fleet.remote.sign(ServerSignature(key, ["bank.example"]))
            await until(lambda: waiting(fleet) == 0)

    fleet.run(work)


def test_requests_beyond_the_limit_are_refused(alone: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_authority, "SIGNATURES_WAITED_MAX", 1)

    async def work() -> None:
        asked = [alone.remote.sign(SignerSignature("", SignerPurpose.OCSP)) for _ in range(3)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in outcomes] == [NotSigned, TooManyWaiting, TooManyWaiting]

    alone.run(work)


def test_certificate_of_another_authority_is_refused(fleet: Fleet) -> None:
    """Another process answers with another key, as after a mistake in its configuration."""
    foreign = OwnAuthority.make("other", time.time())
    foreign_turn_name = fleet.own.fingerprint.hex()

    async def work() -> None:
        service = AuthorityService(foreign, fleet.url, RULES, DevicePageSigner)
        service._make_turn = lambda: named(SigningTurn(foreign, fleet.url, RULES, DevicePageSigner), foreign_turn_name)
        await service.open()
        try:
            with pytest.raises(NotSigned, match="without a certificate"):
                await fleet.remote.server_certificate(new_key().public_key(), ["hub.example"])
        finally:
            await service.close()

    fleet.run(work)


def named(turn: SigningTurn, name: str) -> SigningTurn:
    turn._name = name
    return turn


def test_absent_authority_is_reported(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_authority, "AUTHORITY_ABSENT_S", 0.0)

    async def work() -> None:
        assert "has used this registry" in (fleet.enrolment.authority_trouble or "")
        async with fleet.signing():
            await until(lambda: "sign of life" in (fleet.remote.trouble or ""))
        monkeypatch.setattr(remote_authority, "AUTHORITY_ABSENT_S", 60.0)
        assert fleet.remote.trouble is None

    fleet.run(work)


def test_hub_waits_for_its_first_certificate(alone: Fleet) -> None:
    renewal = CertificateRenewal(alone.server, alone.remote, alone.enrolment)

    async def work() -> None:
        stop = asyncio.Event()
        with pytest.raises(NotSigned):
            await renewal.obtain(stop, awaited_s=0.0)
        obtaining = asyncio.ensure_future(renewal.obtain(stop))
        alone.remote._timeout_s = 10.0
        async with alone.signing():
            await obtaining
        assert alone.server.is_usable(time.time())
        await renewal.obtain(stop, awaited_s=0.0)  # a restart in the same place needs no authority
        await renewal.store()

    alone.run(work)


def test_due_certificate_is_renewed_in_the_background(fleet: Fleet) -> None:
    now = time.time()
    renewal = CertificateRenewal(fleet.server, fleet.remote, fleet.enrolment, now=lambda: now)

    async def work() -> None:
        nonlocal now
        async with fleet.signing():
            await renewal.obtain(asyncio.Event())
            first = fleet.server.shown()
            await renewal.keep()
            assert fleet.server.shown() == first
            now += 70 * 86_400.0
            await renewal.keep()
            await until(lambda: fleet.server.shown() != first)
            await renewal.close()

    fleet.run(work)


def test_ocsp_is_answered_with_a_key_of_the_hub(fleet: Fleet) -> None:
    made = fleet.own.gateway_certificate(new_key().public_key(), "acme", "hall", time.time(), 60.0)
    certificate = x509.load_pem_x509_certificate(made.pem.encode())
    asked = ocsp.OCSPRequestBuilder().add_certificate(certificate, fleet.own.certificate, hashes.SHA256()).build()
    question = asked.public_bytes(Encoding.DER)

    async def work() -> None:
        async with fleet.signing():
            answer = ocsp.load_der_ocsp_response(await fleet.enrolment.status_of(question))
        [responder] = answer.certificates
        responder.verify_directly_issued_by(fleet.own.certificate)
        assert answer.certificate_status is ocsp.OCSPCertStatus.UNKNOWN
        ocsp.load_der_ocsp_response(await fleet.enrolment.status_of(question))  # the key is valid without the authority

    fleet.run(work)


def test_ocsp_without_the_authority_asks_to_retry(alone: Fleet) -> None:
    certificate = alone.own.certificate
    asked = ocsp.OCSPRequestBuilder().add_certificate(certificate, certificate, hashes.SHA256()).build()

    async def work() -> None:
        answer = await alone.enrolment.status_of(asked.public_bytes(Encoding.DER))
        assert ocsp.load_der_ocsp_response(answer).response_status is ocsp.OCSPResponseStatus.TRY_LATER

    alone.run(work)


def test_configuration_is_offered_once_it_is_signed(fleet: Fleet) -> None:
    token = fleet.token()
    report = DesiredReport()

    async def work() -> None:
        async with fleet.signing():
            await fleet.enrolment.enrol(enrolling(token, signing_request(new_key())))
        with contextlib.closing(open_registry(fleet.url).database) as database:
            known = Configurations(database)
            wanted = WantedConfiguration("acme", "hall", [], 300.0, False, "ops", "")
            [made] = known.set_wanted([wanted], 1, make_signer(fleet.remote.known))
            assert made.signature == ""
            assert known.due(("acme", "hall"), report) is None
            before = known.last_change()
            with contextlib.closing(SigningTurn(fleet.own, fleet.url, RULES, DevicePageSigner)) as turn:
                turn.run()
            offer = known.due(("acme", "hall"), report)
            assert offer is not None
            assert (offer.version, bool(offer.signed.signature)) == (1, True)
            assert known.last_change() > before, "hubs look at it again"

    fleet.run(work)


def test_newer_configuration_without_a_signature_holds_back_the_older_one(fleet: Fleet) -> None:
    token = fleet.token()

    async def work() -> None:
        async with fleet.signing():
            await fleet.enrolment.enrol(enrolling(token, signing_request(new_key())))
        with contextlib.closing(open_registry(fleet.url).database) as database:
            known = Configurations(database)
            wanted = WantedConfiguration("acme", "hall", [], 300.0, False, "ops", "")
            known.set_wanted([wanted], 1, make_signer(fleet.own))
            known.set_wanted([wanted], 2, make_signer(fleet.remote.known))
            assert known.due(("acme", "hall"), DesiredReport()) is None

    fleet.run(work)


def test_configuration_waits_for_the_end_of_an_older_hub(fleet: Fleet) -> None:
    """An older hub would send it without its signature."""
    token = fleet.token()
    row = {"id": "old", "name": "old:5671", "version": "0", "state": "serving", "started_at": 0, "connections": 0}

    async def work() -> None:
        async with fleet.signing():
            await fleet.enrolment.enrol(enrolling(token, signing_request(new_key())))
        with contextlib.closing(open_registry(fleet.url).database) as database:
            known = Configurations(database)
            wanted = WantedConfiguration("acme", "hall", [], 300.0, False, "ops", "")
            database.transaction(lambda tx: tx.execute(hubs.insert(), [{**row, "seen_at": 1}]))
            with pytest.raises(RegistryError, match="older version"):
                known.set_wanted([wanted], 2, make_signer(fleet.remote.known))
            known.set_wanted([wanted], 2, make_signer(fleet.own))
            known.set_wanted([wanted], 1_000_000_000, make_signer(fleet.remote.known))  # it has ended without a word

    fleet.run(work)


def test_many_requests_do_not_wait_for_an_authority_that_is_away(alone: Fleet) -> None:
    certificate = alone.own.certificate
    asked = ocsp.OCSPRequestBuilder().add_certificate(certificate, certificate, hashes.SHA256()).build()
    question = asked.public_bytes(Encoding.DER)
    requests = []

    async def work() -> None:
        sign = alone.remote.sign

        async def counted(request: SignerSignature) -> str:
            requests.append(request)
            return await sign(request)

        alone.remote.sign = counted  # type: ignore[method-assign,assignment]
        await asyncio.gather(*(alone.enrolment.status_of(question) for _ in range(50)))
        assert len(requests) == 1

    alone.run(work)


class TestDevicePages:
    def test_page_is_made_by_the_process_and_verified_by_the_hub(self, fleet: Fleet) -> None:
        RegisteredRows(fleet.url).add("pump")

        async def work() -> None:
            async with fleet.signing():
                signed = await fleet.remote.device_page(PAGE)
                assert signed is not None
                page = read_page(signed.content)
                assert [each.device for each in page.entries] == ["pump"]
                assert await fleet.remote.device_page(DevicePageRequest("acme", "gw1", page.cursor)) is None
                await until(lambda: waiting(fleet) == 0)

        fleet.run(work)

    def test_requests_of_one_moment_are_one_transaction(self, alone: Fleet) -> None:
        async def work() -> None:
            asked = [
                asyncio.create_task(alone.remote.device_page(DevicePageRequest("acme", f"gw{number}", "")))
                for number in range(REQUESTS)
            ]
            await until(lambda: waiting(alone) == REQUESTS)
            with contextlib.closing(open_registry(alone.url).database) as database:
                query = sa.select(signature_requests.c.made_at).distinct()
                times = database.transaction(lambda tx: tx.execute(query).scalars().all())
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            assert len(times) <= 2, "the first one, and all others"

        alone.run(work)

    def test_request_that_cannot_be_stored_stops_no_other(self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        RegisteredRows(fleet.url).add("pump")
        add = Signatures.add

        def fail(*_: object) -> None:
            monkeypatch.setattr(Signatures, "add", add)
            raise RegistryError("the registry is away")

        async def work() -> None:
            monkeypatch.setattr(Signatures, "add", fail)
            with pytest.raises(RegistryError, match="away"):
                await fleet.remote.device_page(PAGE)
            async with fleet.signing():
                assert await fleet.remote.device_page(PAGE) is not None

        fleet.run(work)

    def test_process_looks_again_at_once_after_a_request(self, fleet: Fleet) -> None:
        """A registry in SQLite sends no notices."""
        with contextlib.closing(SigningTurn(fleet.own, fleet.url, RULES, DevicePageSigner)) as turn:
            idle_s = turn.run()
            with contextlib.closing(open_registry(fleet.url).database) as database:
                Signatures(database).add(fleet.own.fingerprint.hex(), [WaitingRequest("p", encoded(PAGE))])
            assert turn.run() == SIGNATURE_FIRST_CHECK_S
            assert turn.run() == idle_s

    def test_process_that_is_away_signs_later(self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        RegisteredRows(fleet.url).add("pump")
        monkeypatch.setattr(remote_authority, "PAGE_TIMEOUT_S", 0.1)

        async def work() -> None:
            with pytest.raises(NotSigned, match="waypost hub authority") as away:
                await fleet.remote.device_page(PAGE)
            assert not isinstance(away.value, SignatureDenied)
            await until(lambda: waiting(fleet) == 0)
            monkeypatch.setattr(remote_authority, "PAGE_TIMEOUT_S", 10.0)
            async with fleet.signing():
                assert await fleet.remote.device_page(PAGE) is not None

        fleet.run(work)

    def test_refusal_is_that_of_one_gateway(self, fleet: Fleet) -> None:
        async def work() -> None:
            async with fleet.signing():
                with pytest.raises(SignatureDenied):
                    await fleet.remote.device_page(DevicePageRequest("acme", "two\nlines", ""))

        fleet.run(work)

    def test_older_process_is_reported_for_all(self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        refusal = SignatureAnswer(None, f"{UNKNOWN_REQUEST}: Invalid value 'devices'")
        monkeypatch.setattr(SigningTurn, "_answer_page", lambda _turn, _request: refusal)

        async def work() -> None:
            async with fleet.signing():
                with pytest.raises(NotSigned, match="update it") as older:
                    await fleet.remote.device_page(PAGE)
                assert not isinstance(older.value, SignatureDenied)

        fleet.run(work)

    @pytest.mark.parametrize("wrong", ["text", "key", "gateway", "cursor"])
    def test_wrong_page_is_not_sent(self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
        """A process with another key answers, or the row of another request."""
        signer = OwnAuthority.make("other", time.time()) if wrong == "key" else fleet.own
        gateway, base = "gw2" if wrong == "gateway" else "gw1", "f" * 64 if wrong == "cursor" else ""
        page = DevicePage(tenant="acme", gateway=gateway, base=base, cursor="c", devices_of="acme")
        text = "{}" if wrong == "text" else sign_page(page, signer.sign).decode()
        monkeypatch.setattr(SigningTurn, "_answer_page", lambda _turn, _request: SignatureAnswer(text, None))

        async def work() -> None:
            async with fleet.signing():
                with pytest.raises(SignatureDenied, match="without a page"):
                    await fleet.remote.device_page(PAGE)

        fleet.run(work)

    def test_certificates_come_before_pages(self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        """A turn makes some pages only, and ends when they take too long."""
        monkeypatch.setattr(authority_service, "PAGES_A_TURN_MAX", 2)
        key = public_pem(new_key().public_key())
        certificate = SignerSignature(key, SignerPurpose.OCSP)
        asked = {name: encoded(PAGE) for name in ("p1", "p2", "p3")} | {"c": encoded(certificate)}
        with contextlib.closing(open_registry(fleet.url).database) as database:
            for name, text in asked.items():
                Signatures(database).add(fleet.own.fingerprint.hex(), [WaitingRequest(name, text)])
            with contextlib.closing(SigningTurn(fleet.own, fleet.url, RULES, DevicePageSigner)) as turn:
                assert turn.run() == 0.0
                assert answered(fleet) == {"p1", "p2", "c"}
                Signatures(database).add(fleet.own.fingerprint.hex(), [WaitingRequest("p4", encoded(PAGE))])
                monkeypatch.setattr(authority_service, "PAGES_TURN_S", 0.0)
                assert turn.run() == 0.0
                assert answered(fleet) == {"p1", "p2", "c", "p3"}
                monkeypatch.setattr(authority_service, "PAGES_A_TURN_MAX", 9)
                assert turn.run() > 0.0
                assert answered(fleet) == {*asked, "p4"}

    @pytest.mark.parametrize("pages", [True, False])
    def test_request_of_any_length_is_refused(self, fleet: Fleet, pages: bool) -> None:
        """The process reads its beginning only."""
        text = encoded(DevicePageRequest("acme", "gw1", "x" * 300_000)) if pages else "x" * 300_000
        with contextlib.closing(open_registry(fleet.url).database) as database:
            Signatures(database).add(fleet.own.fingerprint.hex(), [WaitingRequest("long", text)])
            (read,) = Signatures(database).waiting(fleet.own.fingerprint.hex(), 9, 1_000, pages=pages)
            assert len(read.request) == 1_001
            with contextlib.closing(SigningTurn(fleet.own, fleet.url, RULES, DevicePageSigner)) as turn:
                turn.run()
            answer = Signatures(database).take_answers(["long"])["long"]
        assert answer.answer is None
        assert "characters" in (answer.refusal or "")

    def test_page_that_cannot_be_read_stops_nothing_else(self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        """A row of one gateway is damaged: the others get their pages, and the revocation list is new."""
        answer = DevicePageSigner.answer

        def fail(signer: DevicePageSigner, request: DevicePageRequest) -> AnsweredPage:
            if request.gateway == "gw1":
                raise RegistryError("a damaged page")
            return answer(signer, request)

        monkeypatch.setattr(DevicePageSigner, "answer", fail)
        asked = {"p1": encoded(PAGE), "p2": encoded(DevicePageRequest("acme", "gw2", ""))}
        with contextlib.closing(open_registry(fleet.url).database) as database:
            signatures, name = Signatures(database), fleet.own.fingerprint.hex()
            for each, text in asked.items():
                signatures.add(name, [WaitingRequest(each, text)])
            with contextlib.closing(SigningTurn(fleet.own, fleet.url, RULES, DevicePageSigner)) as turn:
                assert turn.run() == 0.0
                assert turn.run() > 0.0
            found = signatures.take_answers(asked)
            published = signatures.published(name)
        assert "damaged" in (found["p1"].refusal or "")
        assert found["p2"].answer is not None
        assert published is not None
        assert published.revocations is not None

    def test_clock_of_another_process_deletes_no_answer(self, fleet: Fleet) -> None:
        with contextlib.closing(open_registry(fleet.url).database) as database:
            signatures = Signatures(database)
            signatures.add("another", [WaitingRequest("new", "{}")])
            signatures.answer({"new": SignatureAnswer("page", None)})
        for ahead_s in (2 * SIGNATURE_REQUESTS_KEPT_S, -2 * SIGNATURE_REQUESTS_KEPT_S):
            parts, now = (fleet.own, fleet.url, RULES, DevicePageSigner), time.time() + ahead_s
            with contextlib.closing(SigningTurn(*parts, lambda now=now: now)) as turn:  # type: ignore[misc]
                turn.run()
        assert answered(fleet) == {"new"}

    def test_hub_that_waits_for_many_signatures_says_so(self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote_authority, "SIGNATURES_WAITED_MAX", 0)

        async def work() -> None:
            with pytest.raises(TooManyWaiting):
                await fleet.remote.device_page(PAGE)

        fleet.run(work)

    def test_answer_of_a_killed_hub_is_deleted(self, fleet: Fleet) -> None:
        with contextlib.closing(open_registry(fleet.url).database) as database:
            signatures = Signatures(database)
            for name, age_s in (("old", SIGNATURE_ANSWERS_KEPT_S + 1), ("new", 1.0)):
                signatures.add("another", [WaitingRequest(name, "{}")])
                signatures.answer({name: SignatureAnswer("page", None)})
                age(database, name, "answered_at", age_s)
        with contextlib.closing(SigningTurn(fleet.own, fleet.url, RULES, DevicePageSigner)) as turn:
            turn.run()
        assert answered(fleet) == {"new"}


def age(database: Database, request: str, column: str, age_s: float) -> None:
    """Let a request be older."""
    columns = signature_requests.c
    older = signature_requests.update().where(columns.id == request)
    older = older.values({column: columns[column] - int(age_s * 1e6)})
    database.transaction(lambda tx: tx.execute(older))


def encoded(request: SignatureRequest | DevicePageRequest) -> str:
    return msgspec.json.encode(request).decode()


def answered(fleet: Fleet) -> set[str]:
    columns = signature_requests.c
    query = sa.select(columns.id).where(columns.answered_at.is_not(None))
    with contextlib.closing(open_registry(fleet.url).database) as database:
        return set(database.transaction(lambda tx: tx.execute(query).scalars().all()))


class TestTurn:
    def test_number_of_the_list_never_decreases(self, fleet: Fleet) -> None:
        """The clock of the process, or of the next one, steps back."""
        numbers = []
        for now in (time.time(), time.time() - 86_400.0):
            with contextlib.closing(
                SigningTurn(fleet.own, fleet.url, RULES, DevicePageSigner, lambda now=now: now)
            ) as turn:  # type: ignore[misc]
                turn.run()
            with contextlib.closing(open_registry(fleet.url).database) as database:
                published = Signatures(database).published(fleet.own.fingerprint.hex())
            assert published is not None
            assert published.revocations is not None
            found = x509.load_der_x509_crl(published.revocations)
            number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
            assert number == published.number
            numbers.append(number)
        assert numbers[1] > numbers[0]

    def test_list_of_a_slower_process_is_left_out(self, fleet: Fleet) -> None:
        with contextlib.closing(open_registry(fleet.url).database) as database:
            signatures = Signatures(database)
            signatures.publish("a", 1, (b"newer", 7))
            signatures.publish("a", 2, (b"older", 6))
            published = signatures.published("a")
        assert published is not None
        assert (published.seen_at, published.revocations) == (2, b"newer")

    def test_old_requests_are_deleted(self, fleet: Fleet) -> None:
        with contextlib.closing(open_registry(fleet.url).database) as database:
            for name, age_s in (("old", SIGNATURE_REQUESTS_KEPT_S + 1), ("new", 1.0)):
                Signatures(database).add("another", [WaitingRequest(name, "{}")])
                age(database, name, "made_at", age_s)
        with contextlib.closing(SigningTurn(fleet.own, fleet.url, RULES, DevicePageSigner)) as turn:
            turn.run()
        assert waiting(fleet) == 1

    def test_configuration_of_another_authority_is_left_alone(self, fleet: Fleet) -> None:
        row = {"tenant": "acme", "made_at": 1, "made_by": "", "note": "", "content": "{}", "signature": ""}
        row |= {"gateway": "a", "version": 1, "signer": "f" * 64}
        with contextlib.closing(open_registry(fleet.url).database) as database:
            database.transaction(lambda tx: tx.execute(configurations.insert(), [row]))
            with contextlib.closing(SigningTurn(fleet.own, fleet.url, RULES, DevicePageSigner)) as turn:
                turn.run()
            found = database.transaction(lambda tx: tx.execute(configurations.select()).one())
        assert (found.signature, found.signer) == ("", "f" * 64)

    def test_tampered_configuration_holds_back_no_other(self, fleet: Fleet) -> None:
        row = {"tenant": "acme", "made_at": 1, "made_by": "", "note": "", "content": "{}", "signature": ""}
        with contextlib.closing(open_registry(fleet.url).database) as database:
            database.transaction(
                lambda tx: tx.execute(
                    configurations.insert(),
                    [{**row, "gateway": "a", "version": 1, "signer": fleet.own.fingerprint.hex()}],
                )
            )
            with contextlib.closing(SigningTurn(fleet.own, fleet.url, RULES, DevicePageSigner)) as turn:
                assert turn.run() > 0.0
            found = database.transaction(lambda tx: tx.execute(configurations.select()).one())
        assert found.signature == authority_service.NO_SIGNATURE
