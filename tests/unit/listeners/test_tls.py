"""Certificate files: valid ones, errors and their texts, and the effects of a change."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bridge.transport.driver import ConnectionDriver
from edge.broker.configuration import TlsFiles, TlsListener, TlsVersion
from edge.broker.limits import ACCOUNT_SHARE_MAX, TLS_HANDSHAKES_MAX
from edge.broker.listeners import secure
from edge.broker.listeners.tcp import Gone, ListenError, TcpListener
from edge.broker.listeners.tls import Certificates, TlsError, subject_name
from edge.broker.security.peer_tls import PeerTlsError, peer_context
from tests.support.certificates import Authority, Issued
from tests.support.loop_wait import until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
WAIT_S = 20.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Issued:
    return authority.issue("localhost", file="server")


@pytest.fixture(scope="module")
def other(authority: Authority) -> Issued:
    return authority.issue("other")


class TestFiles:
    """Files through `Certificates` and `peer_context`."""

    def test_valid_files_are_accepted(self, authority: Authority, server: Issued) -> None:
        files = TlsListener(certificate=server.certificate, key=server.key, client_ca=authority.certificate)
        context = Certificates(files).context
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert context.verify_mode is ssl.CERT_OPTIONAL

    def test_client_certificates_are_requested_as_configured(self, authority: Authority, server: Issued) -> None:
        files = TlsListener(
            certificate=server.certificate,
            key=server.key,
            client_ca=authority.certificate,
            client_required=True,
            minimum=TlsVersion.TLS_1_3,
        )
        context = Certificates(files).context
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert context.verify_mode is ssl.CERT_REQUIRED

    def test_invalid_files_are_refused(
        self, authority: Authority, server: Issued, other: Issued, tmp_path: Path
    ) -> None:
        nonsense = tmp_path / "nonsense.pem"
        nonsense.write_text("no certificate")
        missing = str(tmp_path / "missing.pem")
        for certificate, key, authority_file, words in (
            (server.certificate, other.key, None, "the key does not belong to the certificate"),
            (str(nonsense), server.key, None, "not a certificate or key in PEM"),
            (missing, server.key, None, "No such file"),
            (server.certificate, server.key, missing, "client authority .*No such file"),
            (server.certificate, server.key, str(nonsense), "client authority .*not a certificate"),
        ):
            with pytest.raises(TlsError, match=words):
                Certificates(TlsListener(certificate=certificate, key=key, client_ca=authority_file))

    def test_peer_context_is_created(self, authority: Authority, server: Issued, other: Issued, tmp_path: Path) -> None:
        context = peer_context(TlsFiles(ca=authority.certificate, certificate=server.certificate, key=server.key))
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert context.options & ssl.OP_NO_RENEGOTIATION
        with pytest.raises(PeerTlsError, match=os.strerror(errno.ENOENT)):
            peer_context(TlsFiles(ca=str(tmp_path / "missing.pem")))
        with pytest.raises(PeerTlsError, match="does not belong"):
            peer_context(TlsFiles(certificate=server.certificate, key=other.key))

    def test_changed_files_are_reloaded(
        self, authority: Authority, other: Issued, caplog: pytest.LogCaptureFixture
    ) -> None:
        issued = authority.issue("changing")
        certificates = Certificates(TlsListener(certificate=issued.certificate, key=issued.key))
        first = certificates.context
        assert not certificates.check()
        shutil.copy(other.certificate, issued.certificate)  # a renewal between its two files
        with caplog.at_level(logging.WARNING):
            assert not certificates.check()
            assert not certificates.check()
        assert [record.levelname for record in caplog.records] == ["WARNING"], "said once"
        assert certificates.context is first
        shutil.copy(other.key, issued.key)
        assert certificates.check()
        assert certificates.context is not first
        Path(issued.key).unlink()
        assert not certificates.check()


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (None, None),
        ({}, None),
        ({"subject": ((("organizationName", "plant"),), (("commonName", "device-7"),))}, "device-7"),
        ({"subject": ((("commonName", "group"),), (("commonName", "device-7"),))}, "device-7"),
        ({"subject": ((("organizationName", "plant"), ("commonName", "together")),)}, "together"),
        ({"subject": ((("commonName", ""),),)}, None),
    ],
)
def test_subject_name_is_read(certificate: dict[str, Any] | None, name: str | None) -> None:
    assert subject_name(certificate) == name


class Echo:
    """Connection that echoes its input."""

    closed = False
    more = False
    deadline = None
    held_bytes = 0

    def __init__(self) -> None:
        self.out: list[bytes] = []

    def receive_data(self, data: bytes, now: float) -> Sequence[Any]:
        self.out.append(data)
        return ()

    def receive_eof(self, now: float) -> Sequence[Any]:
        return ()

    def handle_timeout(self, now: float, *, listening: bool = True) -> Sequence[Any]:
        return ()

    def shed(self) -> Sequence[object]:
        return ()

    @property
    def spoken(self) -> str:
        return ""

    @property
    def has_output(self) -> bool:
        return True

    def data_to_send(self) -> bytes:
        data, self.out = b"".join(self.out), []
        return data


class Owner:
    """Owner that does nothing."""

    def handle(self, events: Sequence[Any]) -> None:
        pass

    def writable(self) -> None:
        pass


class Rig:
    """A TLS listener with echoing connections inside a test's loop."""

    def __init__(
        self,
        issued: Issued,
        *,
        client_ca: str | None = None,
        handshake_s: float = 10.0,
        rate: secure.HandshakeRate | None = None,
    ) -> None:
        self.identities: list[str | None] = []
        self.room = True
        self.listener = TcpListener("mqtts", self._driver)
        self.certificates = Certificates(
            TlsListener(certificate=issued.certificate, key=issued.key, client_ca=client_ca)
        )
        self._rate = rate
        self._handshake_s = handshake_s
        self.port = 0

    async def __aenter__(self) -> Rig:
        _, self.port = await self.listener.start(
            "127.0.0.1", 0, self.certificates, handshake_s=self._handshake_s, rate=self._rate
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.listener.stop()

    def _driver(self, gone: Gone, identity: str | None) -> ConnectionDriver | None:
        self.identities.append(identity)
        if not self.room:
            return None
        return ConnectionDriver(Echo(), lambda driver: Owner(), write_bytes_max=65_536, gone=gone, identity=identity)

    async def open(self, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname="localhost")


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


class TestListener:
    """Handshakes."""

    def test_identity_and_bytes_reach_the_driver(self, authority: Authority, server: Issued, other: Issued) -> None:
        async def main() -> None:
            async with Rig(server, client_ca=authority.certificate) as rig:
                for issued, name in ((other, "other"), (None, None)):
                    reader, writer = await rig.open(authority.context(issued))
                    body = bytes(range(256)) * 2000
                    writer.write(body)
                    assert await reader.readexactly(len(body)) == body
                    [driver] = rig.listener.drivers
                    assert (rig.identities[-1], driver.identity) == (name, name)
                    await closed(writer)
                    await until(lambda: not rig.listener.drivers)

        asyncio.run(main())

    def test_strangers_and_silent_peers_get_no_driver(
        self, authority: Authority, server: Issued, other: Issued, tmp_path: Path
    ) -> None:
        stranger = Authority(tmp_path, "somebody else").issue("other")

        async def main() -> None:
            async with Rig(server, client_ca=authority.certificate, handshake_s=0.2) as rig:
                with contextlib.suppress(OSError):
                    reader, writer = await rig.open(authority.context(stranger))
                    assert await reader.read() == b""
                    await closed(writer)
                reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
                async with asyncio.timeout(WAIT_S):
                    assert await reader.read() == b"", "who is silent is closed"
                await closed(writer)
                reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                async with asyncio.timeout(WAIT_S):
                    with contextlib.suppress(OSError):
                        assert b"HTTP" not in await reader.read()
                await closed(writer)
                assert rig.identities == []

        asyncio.run(main())

    def test_full_listener_refuses(self, authority: Authority, server: Issued) -> None:
        async def main() -> None:
            async with Rig(server) as rig:
                rig.room = False
                reader, writer = await rig.open(authority.context())
                assert await reader.read() == b""
                await closed(writer)
                assert rig.listener.refused == 1

        asyncio.run(main())

    def test_handshakes_are_bounded(self, authority: Authority, server: Issued) -> None:
        """One address may use half of them; its further handshakes wait, and those of others do not."""

        async def main() -> None:
            async with Rig(server, handshake_s=1.0) as rig:
                handshakes = rig.listener._handshakes
                assert handshakes is not None
                each_max = TLS_HANDSHAKES_MAX // ACCOUNT_SHARE_MAX
                silent = [socket.create_connection(("127.0.0.1", rig.port)) for _ in range(each_max + 20)]
                await until(lambda: handshakes.parked.count == 20)
                assert len(handshakes.in_progress) == each_max
                other = asyncio.open_connection(
                    "127.0.0.1", rig.port, ssl=authority.context(), server_hostname="localhost",
                    local_addr=("127.0.0.2", 0),
                )  # fmt: skip
                async with asyncio.timeout(0.5):
                    _, elsewhere = await other
                reader, writer = await rig.open(authority.context())  # served after the silent ones were dropped
                writer.write(b"x")
                assert await reader.readexactly(1) == b"x"
                assert len(handshakes.in_progress) <= TLS_HANDSHAKES_MAX
                for one in (elsewhere, writer):
                    await closed(one)
                for connection in silent:
                    connection.close()
            assert not handshakes.in_progress
            assert not handshakes.parked.count

        asyncio.run(main())

    def test_waiting_handshakes_are_bounded(
        self, authority: Authority, server: Issued, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Above the bound the newest connection of the busiest address is closed, and stalled ones end sooner while
        others wait."""
        monkeypatch.setattr(secure, "TLS_HANDSHAKES_MAX", 4)
        monkeypatch.setattr(secure, "TLS_PARKED_MAX", 5)
        monkeypatch.setattr(secure, "TLS_STALLED_S", 0.2)

        async def main() -> None:
            async with Rig(server, handshake_s=60.0) as rig:
                silent = [socket.create_connection(("127.0.0.1", rig.port)) for _ in range(9)]
                for connection in silent:
                    connection.setblocking(False)
                first, last = silent[0], silent[-1]
                loop = asyncio.get_running_loop()
                async with asyncio.timeout(WAIT_S):
                    assert await loop.sock_recv(last, 1) == b""
                    handshakes = rig.listener._handshakes
                    assert handshakes is not None
                    begun = min(since for _, since in handshakes.in_progress.values())
                    await until(lambda: loop.time() > begun + 0.2)
                    _, writer = await asyncio.open_connection(
                        "127.0.0.1", rig.port, ssl=authority.context(), server_hostname="localhost",
                        local_addr=("127.0.0.2", 0),
                    )  # fmt: skip
                    assert await loop.sock_recv(first, 1) == b""
                await closed(writer)
                for connection in silent:
                    connection.close()

        asyncio.run(main())

    def test_handshakes_begin_at_a_rate(self, authority: Authority, server: Issued) -> None:
        """After the burst each waits for its turn; none is refused."""

        async def main() -> None:
            per_second, burst = 20.0, 2
            async with Rig(server, rate=secure.HandshakeRate(per_second, burst)) as rig:
                began = asyncio.get_running_loop().time()
                opened = await asyncio.gather(*(rig.open(authority.context()) for _ in range(8)))
                assert asyncio.get_running_loop().time() - began >= (8 - burst - 1) / per_second
                for _, writer in opened:
                    await closed(writer)
                assert rig.listener.refused == 0

        asyncio.run(main())

    def test_rate_is_that_of_the_bucket(self) -> None:
        rate = secure.HandshakeRate(200.0, burst=2)
        for _ in range(2):
            assert rate.wait_s(10.0) == 0.0
            rate.begin()
        assert rate.wait_s(10.0) == pytest.approx(1 / 200)
        assert rate.wait_s(10.005) == 0.0
        rate.begin()
        assert rate.wait_s(10.005) > 0.0
        assert rate.wait_s(1_000.0) == 0.0
        for _ in range(2):
            rate.begin()
        assert rate.wait_s(1_000.0) > 0.0, "it saves the burst at most"

    def test_occupied_port_is_reported(self, server: Issued) -> None:
        async def main() -> None:
            async with Rig(server) as rig:
                again = TcpListener("amqps", rig._driver)
                with pytest.raises(ListenError, match=r"amqps: .*in use"):
                    await again.start("127.0.0.1", rig.port, rig.certificates)

        asyncio.run(main())
