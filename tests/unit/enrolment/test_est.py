"""Another authority issues the certificates: requests to it, its answers, and faults in between."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bridge.enrolment import RefusalReason, enrolment_request
from bridge.resources.endpoint import ListenEndpoint
from cloud.hub.enrolment import service
from cloud.hub.enrolment.est import EstClient, EstError, EstServer, EstUnavailable, EstUrl
from cloud.hub.enrolment.files import AuthorityFileError, connect_registration, load_own_authority
from cloud.hub.enrolment.limits import EST_ANSWER_BYTES_MAX
from cloud.hub.enrolment.registration import CLIENTS, Registration
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.peers import HubPeer, PeerKind
from cloud.hub.registry.enrolments import EnrolmentRefused, NamelessRequest
from edge.appliance.identity.enrolling import enrol
from edge.appliance.identity.files import GatewayIdentity
from edge.appliance.identity.request import gateway_uri_in, new_key, signing_request
from tests.support.est import Answer, EstStub
from tests.unit.enrolment.hub import Hub

URI = "waypost://acme/hall%207"
NAME = "hall 7"


@pytest.fixture
def est(tmp_path: Path) -> Iterator[EstStub]:
    with EstStub(tmp_path / "company") as stub:
        yield stub


class Behind(Hub):
    """A hub with certificates of the stub's authority, on the clock of this machine."""

    def __init__(self, folder: Path, est: EstStub) -> None:
        super().__init__(folder)
        self.now = time.time()
        self.own = load_own_authority(folder, self.now, "hub")
        self.shown = self.own.pem
        self._folder, self._est = folder, est

    def enrolment(self, **more: Any) -> Enrolment:
        return super().enrolment(registration=connect_registration(self._folder, self.own, self._est.server()), **more)


def request(uri: str = URI, key: Any = None) -> str:
    return signing_request(key or new_key(), uri)


def registered(folder: Path, est: EstStub) -> Registration:
    return connect_registration(folder, load_own_authority(folder, time.time(), "hub"), est.server())


def certificate(registration: Registration, text: str) -> Any:
    async def main() -> Any:
        try:
            return await registration.certificate(text, "acme", NAME)
        finally:
            await registration.stop()

    return asyncio.run(main())


def _unnamed(est: EstStub) -> None:
    """Let the authority issue certificates of a second authority that it does not list."""
    est.names_itself = False
    est.new_authority(Path(est.authority.certificate).parent / "next")


class TestGateways:
    def test_gateway_is_enrolled_and_renewed(self, tmp_path: Path, est: EstStub) -> None:
        """The hub answers with the name that the request must have, and the token stays valid."""
        hub, data = Behind(tmp_path, est), tmp_path / "gw"
        data.mkdir()
        done = enrol(data, hub, hub.token(), NAME, now=time.time)
        own = GatewayIdentity(data)
        first = own.certificate()
        first.verify_directly_issued_by(x509.load_pem_x509_certificate(Path(est.authority.certificate).read_bytes()))
        assert gateway_uri_in(first) == URI
        assert first.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == NAME
        assert own.authority() == hub.own.pem, "the hub itself is known by its own authority, as the token says"
        assert (done.issued.tenant, est.asked, hub.asked) == ("acme", 1, 2)

    def test_certificate_that_the_hub_did_not_request_is_refused(self, tmp_path: Path, est: EstStub) -> None:
        """The authority issues certificates for others as well, and the request chooses their name."""
        hub, data = Behind(tmp_path, est), tmp_path / "gw"
        data.mkdir()
        gateway = HubPeer("acme", NAME, PeerKind.GATEWAY)

        async def main() -> None:
            made = hub.enrolment()
            await made.open()
            try:
                serial = EstClient(est.server()).enrol(x509.load_pem_x509_csr(request().encode())).serial_number
                assert "did not request this certificate" in (made.refusal(gateway, serial) or "")
                issued = await made.enrol(enrolment_request(hub.token(), NAME, request()))
                mine = x509.load_pem_x509_certificate(issued.certificate.encode()).serial_number
                assert made.refusal(gateway, mine) is None
                assert made.refusal(replace(gateway, name="other"), mine) is not None
                beside = hub.enrolment()
                await beside.open()  # a process that starts later accepts it as well
                try:
                    assert beside.refusal(gateway, mine) is None
                    assert beside.refusal(gateway, serial) is not None
                finally:
                    await beside.close()
            finally:
                await made.close()

        asyncio.run(main())

    def test_certificate_requested_by_another_hub_is_accepted_soon(
        self, tmp_path: Path, est: EstStub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service, "REVOCATIONS_CHECK_INTERVAL_S", 0.01)
        hub, gateway = Behind(tmp_path, est), HubPeer("acme", NAME, PeerKind.GATEWAY)

        async def main() -> None:
            one, other = hub.enrolment(), hub.enrolment()
            await one.open()
            await other.open()
            try:
                issued = await one.enrol(enrolment_request(hub.token(), NAME, request()))
                serial = x509.load_pem_x509_certificate(issued.certificate.encode()).serial_number
                async with asyncio.timeout(60):
                    while other.refusal(gateway, serial) is not None:
                        await asyncio.sleep(0.01)
            finally:
                await other.close()
                await one.close()

        asyncio.run(main())

    def test_expired_certificate_is_forgotten(
        self, tmp_path: Path, est: EstStub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A hub that runs for years must not remember every certificate it ever requested."""
        monkeypatch.setattr(service, "REVOCATIONS_CHECK_INTERVAL_S", 0.01)
        hub, gateway = Behind(tmp_path, est), HubPeer("acme", NAME, PeerKind.GATEWAY)

        async def main() -> None:
            made = hub.enrolment()
            await made.open()
            try:
                issued = await made.enrol(enrolment_request(hub.token(), NAME, request()))
                found = x509.load_pem_x509_certificate(issued.certificate.encode())
                assert made.refusal(gateway, found.serial_number) is None
                hub.now = found.not_valid_after_utc.timestamp() + service.KNOWN_DROPPED_S
                async with asyncio.timeout(60):
                    while made.refusal(gateway, found.serial_number) is None:
                        await asyncio.sleep(0.01)
            finally:
                await made.close()

        asyncio.run(main())

    def test_lost_answer_is_repeated(self, tmp_path: Path, est: EstStub) -> None:
        hub, data = Behind(tmp_path, est), tmp_path / "gw"
        data.mkdir()
        hub.lost = 1
        enrol(data, hub, hub.token(), NAME, now=time.time, pause=lambda _s: None)
        assert est.asked == 1, "the registry has it: nobody makes another"

    def test_unreachable_authority_uses_no_token(self, tmp_path: Path, est: EstStub) -> None:
        hub, data = Behind(tmp_path, est), tmp_path / "gw"
        data.mkdir()
        hub.enrolment()  # the hub knows the authority from before
        token = hub.token()
        est.refuses = Answer(503)
        made = hub.enrolment()
        assert "HTTP status 503" in (made.registration_trouble or ""), "it starts, and says what is wrong"

        async def main() -> None:
            await made.open()
            try:
                with pytest.raises(EnrolmentRefused) as refused:
                    await made.enrol(enrolment_request(token, NAME, request()))
                assert refused.value.reason is RefusalReason.UNAVAILABLE
            finally:
                await made.close()

        asyncio.run(main())
        est.refuses = None
        enrol(data, hub, token, NAME, now=time.time)
        assert gateway_uri_in(GatewayIdentity(data).certificate()) == URI


class TestRequests:
    @pytest.mark.parametrize(
        "kind", ["no name", "another", "another tenant's", "two", "a host", "an authority", "subject"]
    )
    def test_request_with_other_names_is_not_forwarded(self, tmp_path: Path, est: EstStub, kind: str) -> None:
        uri = x509.UniformResourceIdentifier
        subject, names, more = "", [uri(URI)], []
        match kind:
            case "no name":
                names = []
            case "another":
                names = [uri("waypost://acme/other")]
            case "another tenant's":
                names = [uri("waypost://other/hall%207")]
            case "two":
                names = [uri(URI), uri("waypost://acme/other")]
            case "a host":
                names = [uri(URI), x509.DNSName("hub.example")]  # type: ignore[list-item]
            case "an authority":
                more = [x509.BasicConstraints(ca=True, path_length=None)]
            case _:
                subject = "hub.example"
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, subject)] if subject else []
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(attributes))
        for each in [*([x509.SubjectAlternativeName(names)] if names else []), *more]:
            builder = builder.add_extension(each, critical=False)
        text = builder.sign(new_key(), hashes.SHA256()).public_bytes(Encoding.PEM).decode()
        with pytest.raises(NamelessRequest) as refused:
            certificate(registered(tmp_path, est), text)
        assert refused.value.gateway_uri == URI
        assert est.asked == 0


class TestCertificates:
    """A gateway gets no certificate that the hub would refuse or did not request."""

    @pytest.mark.parametrize(
        ("spoilt", "words"),
        [
            (lambda est: setattr(est, "copies_names", False), "URI"),
            (lambda est: setattr(est, "profile", _for_a_server), "clientAuth"),
            (lambda est: setattr(est, "profile", _an_authority), "certificate of an authority"),
            (lambda est: setattr(est, "profile", _later), "not valid now"),
            (lambda est: setattr(est, "profile", _another_key), "no certificate for the requested key"),
            (_unnamed, "is not in the list of its server"),
        ],
        ids=["name", "purpose", "authority", "time", "key", "issuer"],
    )
    def test_unusable_certificates_are_refused(
        self, tmp_path: Path, est: EstStub, spoilt: Callable[[EstStub], None], words: str
    ) -> None:
        spoilt(est)
        registration = registered(tmp_path, est)
        with pytest.raises(EnrolmentRefused, match=words) as refused:
            certificate(registration, request())
        assert refused.value.reason is RefusalReason.UNAVAILABLE
        assert words in (registration.trouble or "")

    def test_changed_key_of_the_authority_is_refused(self, tmp_path: Path, est: EstStub) -> None:
        registration = registered(tmp_path, est)
        before = (tmp_path / "authority" / CLIENTS).read_text()
        est.new_authority(tmp_path / "next")
        made = certificate(registration, request())
        assert registration.issuer_of(made.pem) == Path(est.authority.certificate).read_text()
        after = (tmp_path / "authority" / CLIENTS).read_text()
        assert after != before
        assert registration.issuer_of(made.pem) in after, "listeners let in who it certifies"


class TestUrls:
    @pytest.mark.parametrize(
        ("text", "host", "port", "path"),
        [
            ("https://pki.example/.well-known/est", "pki.example", 443, "/.well-known/est"),
            ("https://[::1]:8443/.well-known/est/gateways/", "::1", 8443, "/.well-known/est/gateways"),
            ("https://pki.example:65535", "pki.example", 65535, ""),
        ],
    )
    def test_url_is_parsed(self, text: str, host: str, port: int, path: str) -> None:
        assert EstUrl.parse(text) == (ListenEndpoint(host, port), path)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "http://pki.example/",
            "https://",
            "https://a@b/",
            "https://a/?b",
            "https://a/#b",
            "https://a:65536/",
            "https://[a/",
        ],
    )
    def test_invalid_urls_are_refused(self, text: str) -> None:
        """A port out of range raised a traceback in the hub and in its check."""
        with pytest.raises(ValueError, match=f'^"{re.escape(text)}"'):
            EstUrl.parse(text)


class TestServers:
    def test_name_and_password_are_sent(self, est: EstStub) -> None:
        csr = x509.load_pem_x509_csr(request().encode())
        assert EstClient(est.server(certificate=False)).enrol(csr).public_key() == csr.public_key()

    def test_unknown_server_is_refused(self, est: EstStub) -> None:
        with pytest.raises(EstError, match="401: who are you") as refused:
            EstClient(est.server(certificate=False)._replace(password="guessed")).enrol(
                x509.load_pem_x509_csr(request().encode())
            )
        assert not isinstance(refused.value, EstUnavailable)

    @pytest.mark.parametrize(
        ("answer", "later", "words"),
        [
            (Answer(202, headers={"Retry-After": "600"}), True, "retry after 600 s"),
            (Answer(500), True, "500"),
            (Answer(429), True, "429"),
            (Answer(404), False, "404"),
            (Answer(400, b"bad\x1b[2J\nprofile", {"Content-Type": "text/plain"}), False, "bad"),
            (
                Answer(200, b"AAAA", {"Content-Type": "application/pkcs7-mime"}),
                False,
                "did not answer with certificates",
            ),
            (
                Answer(200, b"-----", {"Content-Type": "application/pkcs7-mime"}),
                False,
                "did not answer with certificates",
            ),
            (Answer(200, b"A" * (EST_ANSWER_BYTES_MAX + 1)), False, "more than"),
        ],
    )
    def test_other_answers_are_errors(self, est: EstStub, answer: Answer, later: bool, words: str) -> None:
        est.refuses = answer
        with pytest.raises(EstError, match=words) as refused:
            EstClient(est.server()).authorities()
        assert isinstance(refused.value, EstUnavailable) is later
        assert str(refused.value).isprintable()

    def test_unreachable_server_is_reported(self, tmp_path: Path, est: EstStub) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = EstUrl.parse(f"https://localhost:{silent.getsockname()[1]}/.well-known/est")
            with pytest.raises(EstUnavailable):
                EstClient(est.server()._replace(url=url), timeout_s=0.2).authorities()
        with pytest.raises(EstUnavailable, match="refused"):
            EstClient(est.server()._replace(url=url)).authorities()
        away, own = EstServer(url, est.server().tls), load_own_authority(tmp_path, time.time(), "hub")
        with pytest.raises(AuthorityFileError, match="once"):
            connect_registration(tmp_path, own, away)

    def test_server_of_another_authority_is_refused(self, tmp_path: Path, est: EstStub) -> None:
        with EstStub(tmp_path / "other") as other:
            stranger = est.server()._replace(tls=other.server().tls)
            with pytest.raises(EstUnavailable, match="certificate"):
                EstClient(stranger).authorities()


def _for_a_server(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
    return _but(builder, x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]))


def _an_authority(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
    return builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)


def _later(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
    builder._not_valid_before = builder._not_valid_after  # type: ignore[attr-defined]
    builder._not_valid_after = builder._not_valid_after.replace(year=2100)  # type: ignore[attr-defined, union-attr]
    return builder


def _another_key(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
    builder._public_key = new_key().public_key()  # type: ignore[attr-defined]
    return builder


def _but(builder: x509.CertificateBuilder, value: x509.ExtensionType) -> x509.CertificateBuilder:
    kept = [each for each in builder._extensions if each.oid != value.oid]  # type: ignore[attr-defined]
    builder._extensions = [*kept, x509.Extension(value.oid, False, value)]  # type: ignore[attr-defined]
    return builder
