"""OCSP of client certificates: which responses count (RFC 6960), and when a responder is asked."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import ocsp
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edge.broker.configuration import ClientOcsp, OcspMode
from edge.broker.listeners.ocsp import certificate_status, known_answers
from edge.broker.listeners.ocsp.answer import (
    OcspError,
    StatusAnswer,
    StatusQuestion,
    StatusVerdict,
    question_about,
    read_answer,
)
from edge.broker.listeners.ocsp.certificate_status import ENDED, REVOKED, CertificateStatus
from edge.broker.listeners.ocsp.held_connection import HeldConnection
from edge.broker.listeners.ocsp.known_answers import FILE, KnownAnswers
from edge.broker.listeners.ocsp.responder import ask_responder
from edge.broker.listeners.revocations import ClientRevocations
from edge.broker.listeners.secure import Handshakes
from edge.broker.security.certified_devices import UNRECOGNIZED
from tests.support.loop_wait import until

NOW: Final = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)
HOUR: Final = datetime.timedelta(hours=1)
MINUTE: Final = datetime.timedelta(minutes=1)
DAY: Final = datetime.timedelta(days=1)
INTERVAL_S: Final = 3_600.0
WAIT_S: Final = 20.0
PUMP: Final = "ab12"
FAN: Final = "cd34"


class Holder(NamedTuple):
    """Certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)


def issued(
    name: str, by: Holder | None = None, *purposes: x509.ObjectIdentifier, ends: datetime.datetime = NOW + DAY
) -> Holder:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(
        by.certificate.subject if by else subject, subject, key.public_key(), x509.random_serial_number()
    )
    builder = builder.not_valid_before(NOW - 30 * DAY).not_valid_after(ends)
    if purposes:
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    return Holder(builder.sign(by.key if by else key, hashes.SHA256()), key)


AUTHORITY: Final = issued("authority")
DEVICE: Final = issued("pump", AUTHORITY)
OTHER_DEVICE: Final = issued("fan", AUTHORITY)
OTHER_AUTHORITY: Final = issued("authority")
RESPONDER: Final = issued("responder", AUTHORITY, ExtendedKeyUsageOID.OCSP_SIGNING)
ENDED_RESPONDER: Final = issued("old", AUTHORITY, ExtendedKeyUsageOID.OCSP_SIGNING, ends=NOW - HOUR)
STRANGER: Final = issued("responder", OTHER_AUTHORITY, ExtendedKeyUsageOID.OCSP_SIGNING)
SERVER: Final = issued("server", AUTHORITY, ExtendedKeyUsageOID.SERVER_AUTH)


def question() -> StatusQuestion:
    return question_about(DEVICE.der, [AUTHORITY.certificate])


def response(
    signer: Holder = AUTHORITY,
    *,
    about: Holder = DEVICE,
    status: ocsp.OCSPCertStatus = ocsp.OCSPCertStatus.GOOD,
    updated: datetime.datetime = NOW - HOUR,
    until: datetime.datetime | None = NOW + HOUR,
) -> bytes:
    revoked = status is ocsp.OCSPCertStatus.REVOKED
    builder = ocsp.OCSPResponseBuilder().add_response(
        about.certificate, AUTHORITY.certificate, hashes.SHA1(), status, updated, until,
        NOW - DAY if revoked else None, x509.ReasonFlags.key_compromise if revoked else None,
    )  # fmt: skip
    builder = builder.responder_id(ocsp.OCSPResponderEncoding.HASH, signer.certificate)
    if signer is not AUTHORITY:
        builder = builder.certificates([signer.certificate])
    return builder.sign(signer.key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


class TestResponse:
    """RFC 6960 section 4.2.2."""

    @pytest.mark.parametrize("signer", [AUTHORITY, RESPONDER])
    def test_answer_of_the_issuer_or_of_its_responder_counts(self, signer: Holder) -> None:
        answer = read_answer(response(signer), question(), NOW.timestamp(), INTERVAL_S)
        assert answer.verdict is StatusVerdict.GOOD
        assert answer.until == (NOW + HOUR).timestamp()

    def test_revoked(self) -> None:
        answer = read_answer(response(status=ocsp.OCSPCertStatus.REVOKED), question(), NOW.timestamp(), INTERVAL_S)
        assert answer.verdict is StatusVerdict.REVOKED

    @pytest.mark.parametrize(
        "wrong",
        [
            {"signer": STRANGER},
            {"signer": SERVER},
            {"signer": ENDED_RESPONDER},
            {"about": OTHER_DEVICE},
            {"status": ocsp.OCSPCertStatus.UNKNOWN},
            {"updated": NOW + HOUR, "until": NOW + 2 * HOUR},
            {"updated": NOW - DAY, "until": NOW - HOUR},
            {"updated": NOW - 700 * DAY, "until": None},
            {"updated": NOW - HOUR - 6 * MINUTE, "until": None},
        ],
        ids=[
            "other authority",
            "no purpose",
            "ended responder",
            "other device",
            "unknown",
            "future",
            "ended",
            "replayed",
            "older than the interval",
        ],
    )
    def test_other_responses_are_no_answer(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(OcspError):
            read_answer(response(**wrong), question(), NOW.timestamp(), INTERVAL_S)

    def test_response_without_a_next_update_counts_for_the_interval_and_the_tolerance(self) -> None:
        recent = response(updated=NOW - HOUR - 4 * MINUTE, until=None)
        answer = read_answer(recent, question(), NOW.timestamp(), INTERVAL_S)
        assert answer.this_update == (NOW - HOUR - 4 * MINUTE).timestamp()
        assert answer.until is None

    def test_every_truncation_and_each_flipped_byte_of_the_signature_is_no_answer(self) -> None:
        whole = response()
        asked = question()
        for end in range(len(whole)):
            with pytest.raises(OcspError):
                read_answer(whole[:end], asked, NOW.timestamp(), INTERVAL_S)
        torn = bytearray(whole)
        torn[-3] ^= 1
        with pytest.raises(OcspError):
            read_answer(bytes(torn), asked, NOW.timestamp(), INTERVAL_S)

    def test_certificate_of_an_unknown_issuer_is_not_asked_about(self) -> None:
        with pytest.raises(OcspError, match="clientCa"):
            question_about(DEVICE.der, [OTHER_AUTHORITY.certificate])


def status(
    folder: Path,
    ask: Callable[[str, bytes], bytes],
    on_revoked: Callable[[str], None] = lambda _: None,
    later: datetime.timedelta = datetime.timedelta(),
    **settings: Any,
) -> CertificateStatus:
    file = folder / "ca.pem"
    file.write_bytes(AUTHORITY.certificate.public_bytes(serialization.Encoding.PEM))
    wanted = ClientOcsp(responder="http://responder.example/", **settings)
    return CertificateStatus(wanted, str(file), folder, (NOW + later).timestamp, on_revoked, ask)


async def decided(asked: CertificateStatus, clients: int = 1) -> list[str | None]:
    """Return the decisions about connections of one certificate that come at the same time."""
    loop = asyncio.get_running_loop()
    waiting = [loop.create_future() for _ in range(clients)]
    for each in waiting:
        asked.decide(PUMP, DEVICE.der, each.set_result)
    return list(await asyncio.gather(*waiting))


class TestStatus:
    def test_connections_that_come_together_share_one_request(self, tmp_path: Path) -> None:
        asked: list[str] = []

        def ask(url: str, _: bytes) -> bytes:
            asked.append(url)
            return response()

        async def check() -> None:
            made = status(tmp_path, ask)
            assert await decided(made, 20) == [None] * 20
            assert await decided(made) == [None]
            made.close()

        asyncio.run(check())
        assert asked == ["http://responder.example/"]

    def test_revocation_is_told_and_kept_over_a_restart(self, tmp_path: Path) -> None:
        told: list[str] = []

        def away(_url: str, _request: bytes) -> bytes:
            raise OcspError("away")

        async def check() -> None:
            made = status(tmp_path, lambda _u, _r: response(status=ocsp.OCSPCertStatus.REVOKED), told.append)
            assert await decided(made) == [REVOKED]
            made.close()
            later = status(tmp_path, away, later=DAY, mode=OcspMode.SOFT)
            assert await decided(later) == [REVOKED]
            later.close()

        asyncio.run(check())
        assert told == [PUMP]

    @pytest.mark.parametrize(("mode", "accepted"), [(OcspMode.SOFT, True), (OcspMode.HARD, False)])
    def test_without_an_answer_the_mode_decides(self, tmp_path: Path, mode: OcspMode, accepted: bool) -> None:
        def away(_url: str, _request: bytes) -> bytes:
            raise OcspError("away")

        async def check() -> None:
            made = status(tmp_path, away, mode=mode)
            [why] = await decided(made)
            assert (why is None) == accepted
            assert made.trouble == "away"
            made.close()

        asyncio.run(check())

    @pytest.mark.parametrize(("grace_s", "accepted"), [(7_200.0, True), (60.0, False)], ids=["within", "after"])
    def test_positive_answer_counts_for_the_grace(self, tmp_path: Path, grace_s: float, accepted: bool) -> None:
        def away(_url: str, _request: bytes) -> bytes:
            raise OcspError("away")

        async def check() -> None:
            made = status(tmp_path, lambda _u, _r: response())
            assert await decided(made) == [None]
            made.close()
            later = status(tmp_path, away, later=2 * HOUR, mode=OcspMode.HARD, interval=3_600.0, grace_s=grace_s)
            [why] = await decided(later)
            assert (why is None) == accepted
            later.close()

        asyncio.run(check())


class SilentResponder:
    """Responder that answers once it is released."""

    def __init__(self, answer: Callable[[], bytes] = response) -> None:
        self.asked = 0
        self.go = threading.Event()
        self._answer = answer

    def __call__(self, _url: str, _request: bytes) -> bytes:
        self.asked += 1
        assert self.go.wait(WAIT_S)
        return self._answer()


@pytest.fixture
def silent() -> Iterator[SilentResponder]:
    made = SilentResponder()
    yield made
    made.go.set()


class TestSilentResponder:
    """Clients wait for a limited time, in a limited number."""

    def test_client_that_comes_after_the_patience_is_decided_about_at_once(
        self, tmp_path: Path, silent: SilentResponder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(certificate_status, "RESPONSE_S_MAX", 0.01)

        async def check() -> None:
            made = status(tmp_path, silent, mode=OcspMode.HARD)
            [first] = await decided(made)
            late: list[str | None] = []
            assert made.decide(PUMP, DEVICE.der, late.append)
            assert late == [first]
            assert first is not None
            made.close()

        asyncio.run(check())

    @pytest.mark.parametrize(("mode", "accepted"), [(OcspMode.SOFT, True), (OcspMode.HARD, False)])
    def test_connections_beyond_the_limit_do_not_wait(
        self, tmp_path: Path, silent: SilentResponder, monkeypatch: pytest.MonkeyPatch, mode: OcspMode, accepted: bool
    ) -> None:
        monkeypatch.setattr(certificate_status, "HELD_CONNECTIONS_MAX", 3)

        async def check() -> None:
            made = status(tmp_path, silent, mode=mode)
            held: list[str | None] = []
            assert not any(made.decide(PUMP, DEVICE.der, held.append) for _ in range(3))
            [beyond] = await decided(made)
            assert (beyond is None) == accepted
            silent.go.set()
            await until(lambda: held == [None] * 3)
            later: list[str | None] = []
            assert not made.decide(FAN, OTHER_DEVICE.der, later.append)
            made.close()

        asyncio.run(check())

    def test_close_refuses_the_connections_that_wait(self, tmp_path: Path, silent: SilentResponder) -> None:
        async def check() -> None:
            made = status(tmp_path, silent)
            held: list[str | None] = []
            made.decide(PUMP, DEVICE.der, held.append)
            made.close()
            assert held == [ENDED]

        asyncio.run(check())

    def test_error_of_one_connection_leaves_the_others_their_answer(
        self, tmp_path: Path, silent: SilentResponder
    ) -> None:
        def fails(_: str | None) -> None:
            raise ValueError("the protocol of one connection")

        async def check() -> None:
            made = status(tmp_path, silent)
            held: list[str | None] = []
            made.decide(PUMP, DEVICE.der, fails)
            made.decide(PUMP, DEVICE.der, held.append)
            silent.go.set()
            await until(lambda: held == [None])
            made.close()

        asyncio.run(check())

    def test_refreshes_leave_places_to_devices_that_connect(
        self, tmp_path: Path, silent: SilentResponder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(certificate_status, "OCSP_REFRESHES_MAX", 2)
        monkeypatch.setattr(certificate_status, "OCSP_WAITING_MAX", 4)

        async def check() -> None:
            made = status(tmp_path, silent, mode=OcspMode.HARD)
            read: list[str] = []
            for each in ("a", "b", "c"):
                made.refresh(each, lambda each=each: read.append(each) or DEVICE.der)  # type: ignore[misc]
            assert read == ["a", "b"]
            held: list[str | None] = []
            assert not made.decide(PUMP, DEVICE.der, held.append)
            made.close()

        asyncio.run(check())


class TestOrder:
    """An older answer does not replace a newer one that it contradicts."""

    @pytest.mark.parametrize("mode", list(OcspMode))
    def test_older_positive_response_does_not_lift_a_revocation(self, tmp_path: Path, mode: OcspMode) -> None:
        answers = [
            response(status=ocsp.OCSPCertStatus.REVOKED, updated=NOW - 10 * MINUTE),
            response(updated=NOW - HOUR, until=NOW + DAY),
        ]

        async def check() -> None:
            made = status(tmp_path, lambda _u, _r: answers.pop(0), mode=mode)
            assert await decided(made) == [REVOKED]
            made.close()
            later = status(tmp_path, lambda _u, _r: answers.pop(0), later=2 * HOUR, mode=mode)
            assert await decided(later) == [REVOKED]
            assert later.is_revoked(PUMP)
            later.close()
            assert not answers

        asyncio.run(check())

    def test_newer_answer_counts_either_way(self) -> None:
        known = KnownAnswers(None)
        assert known.add("a", answer(StatusVerdict.REVOKED, 10.0))
        assert not known.add("a", answer(StatusVerdict.GOOD, 10.0))
        assert known.add("a", answer(StatusVerdict.GOOD, 11.0))
        assert not known.add("a", answer(StatusVerdict.REVOKED, 10.0))
        assert known.add("a", answer(StatusVerdict.REVOKED, 11.0))

    def test_older_positive_answer_does_not_make_a_replay_possible(self) -> None:
        known = KnownAnswers(None)
        known.add("a", answer(StatusVerdict.GOOD, 10.0))
        known.add("a", answer(StatusVerdict.GOOD, 5.0))
        assert not known.add("a", answer(StatusVerdict.REVOKED, 7.0))


def answer(verdict: StatusVerdict, this_update: float = 0.0) -> StatusAnswer:
    return StatusAnswer(verdict, read_at=20.0, this_update=this_update, until=None)


class TestFile:
    def test_positive_answers_are_forgotten_before_revocations(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(known_answers, "OCSP_ANSWERS_MAX", 2)
        known = KnownAnswers(None)
        known.add("revoked", answer(StatusVerdict.REVOKED))
        known.add("good", answer(StatusVerdict.GOOD))
        known.add("later", answer(StatusVerdict.REVOKED))
        assert known.find("revoked")
        assert known.find("later")
        assert not known.find("good")
        known.add("new", answer(StatusVerdict.GOOD))
        assert known.find("revoked")
        assert known.find("later")
        assert not known.find("new")
        known.add("last", answer(StatusVerdict.REVOKED))
        assert known.find("later")
        assert known.find("last")
        assert not known.find("revoked")

    def test_revocation_is_written_while_all_requests_are_silent(self, tmp_path: Path, silent: SilentResponder) -> None:
        async def check() -> None:
            made = status(tmp_path, silent)
            for each in ("a", "b", "c", "d", "e"):
                made.decide(each, DEVICE.der, lambda _: None)
            made._known.add(PUMP, answer(StatusVerdict.REVOKED))
            made.write_if_due()
            await until(lambda: not made._known.changed)
            assert KnownAnswers(tmp_path / FILE).find(PUMP) == answer(StatusVerdict.REVOKED)
            made.close()

        asyncio.run(check())

    def test_failed_write_is_repeated_also_at_the_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(certificate_status, "OCSP_WRITE_S", 0.0)
        blocked = tmp_path / f"{FILE}.new"
        blocked.mkdir()
        (blocked / "file").touch()

        def unblock() -> None:
            (blocked / "file").unlink()
            blocked.rmdir()

        async def check() -> None:
            made = status(tmp_path, lambda _u, _r: response(status=ocsp.OCSPCertStatus.REVOKED))
            await decided(made)
            await until(lambda: made._write_failed)
            assert made._known.urgent
            unblock()
            made.write_if_due()
            await until(lambda: not made._known.changed)
            (tmp_path / FILE).unlink()
            made._known.add(FAN, answer(StatusVerdict.REVOKED))
            made.close()

        asyncio.run(check())
        known = KnownAnswers(tmp_path / FILE)
        assert known.find(PUMP)
        assert known.find(FAN)


def test_answer_read_while_the_clock_was_ahead_is_asked_for_again(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(url: str, _: bytes) -> bytes:
        asked.append(url)
        return response(until=None, updated=NOW + (400 * DAY if len(asked) == 1 else -MINUTE))

    async def check() -> None:
        ahead = status(tmp_path, ask, later=400 * DAY)
        assert await decided(ahead) == [None]
        ahead.close()
        made = status(tmp_path, ask)
        assert await decided(made) == [None]
        made.close()

    asyncio.run(check())
    assert len(asked) == 2


class CertifiedTransport:
    """Connection with a client certificate, which counts how often it is read."""

    def __init__(self, holder: Holder) -> None:
        self.reads = 0
        self.closed = False
        self._holder = holder

    def get_extra_info(self, name: str) -> Any:
        return {"ssl_object": self, "peername": ("192.0.2.1", 1)}.get(name)

    def getpeercert(self, *, binary_form: bool) -> bytes:
        assert binary_form
        self.reads += 1
        return self._holder.der

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


class AskedOnce:
    """Status of certificates of which none has to be asked about again."""

    def __init__(self) -> None:
        self.digests: list[str] = []
        self.refreshed: list[str] = []

    def decide(self, digest: str, _: bytes, decided: Callable[[str | None], None]) -> bool:
        self.digests.append(digest)
        decided(None)
        return True

    def is_revoked(self, _: str) -> bool:
        return False

    def refresh(self, digest: str, _: Callable[[], bytes | None]) -> None:
        self.refreshed.append(digest)


def test_open_connections_are_reviewed_by_the_digest_of_their_certificate() -> None:
    pump, other = CertifiedTransport(DEVICE), CertifiedTransport(OTHER_DEVICE)
    asked = AskedOnce()

    async def check() -> None:
        certificates: Any = SimpleNamespace(
            revocations=ClientRevocations(None, None, time.time),
            status=asked,
            reviewers=[],
            context=None,
            recognize=lambda _: UNRECOGNIZED,
        )
        handshakes = Handshakes("mqtts", certificates, lambda _: asyncio.Protocol(), handshake_s=1.0)
        for each in (pump, other):
            handshakes.secured(each)  # type: ignore[arg-type]
        for _ in range(3):
            handshakes.refresh(asked)  # type: ignore[arg-type]
        assert asked.refreshed == asked.digests * 3
        assert [pump.reads, other.reads] == [1, 1]
        handshakes.close_revoked(asked.digests[0])
        assert [pump.closed, other.closed] == [True, False]

    asyncio.run(check())


def test_without_a_list_no_certificate_is_parsed() -> None:
    assert not ClientRevocations(None, None, time.time).is_revoked(b"no certificate")


class PausingTransport:
    """Transport that notes whether it reads."""

    reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return False

    def set_protocol(self, _: asyncio.BaseProtocol) -> None: ...


class PausingProtocol(asyncio.Protocol):
    """Protocol that pauses at the first bytes."""

    def __init__(self, transport: PausingTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.pause_reading()


@pytest.mark.parametrize("received", [b"", b"CONNECT"])
def test_released_connection_reads_unless_its_protocol_pauses(received: bytes) -> None:
    held, transport = HeldConnection(), PausingTransport()
    held.connection_made(transport)  # type: ignore[arg-type]
    if received:
        held.data_received(received)
    held.release(lambda _: PausingProtocol(transport))
    assert transport.reads == (not received)


@pytest.mark.parametrize("sent", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["header", "body"])
def test_response_that_comes_byte_by_byte_ends_at_the_deadline(sent: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            peer, _ = server.accept()
            with peer, contextlib.suppress(OSError):
                peer.sendall(sent)
                while True:
                    peer.sendall(b"a")
                    threading.Event().wait(0.02)

        dripping = threading.Thread(target=drip)
        dripping.start()
        began = time.monotonic()
        with pytest.raises(OcspError, match="timed out"):
            ask_responder(f"http://127.0.0.1:{server.getsockname()[1]}/", b"", 0.3)
        assert time.monotonic() - began < WAIT_S / 4
        dripping.join()


def test_damaged_file_is_no_answer(tmp_path: Path) -> None:
    file = tmp_path / "ocsp.json"
    file.write_bytes(b'{"a": [1')
    assert KnownAnswers(file).find("a") is None
