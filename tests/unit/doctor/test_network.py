"""Ports and peers: free or taken, and by which process; reachable, refused, silent."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.resources.endpoint import ListenEndpoint
from edge.appliance.doctor.check import CheckResult, Level
from edge.appliance.doctor.network import ports, uplinks
from edge.broker.configuration import BrokerConfiguration, Connector, EndpointHost, Listener, Protocol, TlsFiles
from tests.support.certificates import Authority
from tests.support.processes import free_port
from tests.unit.doctor.check_context import bad, machine


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def port_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


class TestPorts:
    def results(self, tmp_path: Path, endpoint: ListenEndpoint, **fields: object) -> list[CheckResult]:
        return list(
            ports(
                machine(
                    tmp_path,
                    configuration=BrokerConfiguration(listeners=(Listener(Protocol.MQTT, endpoint),)),
                    **fields,
                )
            )
        )

    def test_free_port_passes(self, tmp_path: Path) -> None:
        [result] = self.results(tmp_path, ListenEndpoint("127.0.0.1", free_port()))
        assert (result.level, "is free" in result.seen) == (Level.OK, True)

    def test_any_port_passes(self, tmp_path: Path) -> None:
        [result] = self.results(tmp_path, ListenEndpoint("127.0.0.1", 0))
        assert result.level is Level.OK

    def test_port_of_another_program_is_a_failure(self, tmp_path: Path, listener: socket.socket) -> None:
        [result] = bad(self.results(tmp_path, ListenEndpoint("127.0.0.1", port_of(listener))))
        assert result.level is Level.FAIL
        assert f"(process {os.getpid()})" in result.seen

    def test_port_of_the_gateway_passes(self, tmp_path: Path, listener: socket.socket) -> None:
        (tmp_path / "store.lock").write_text(f"{os.getpid()}\n")
        [result] = self.results(tmp_path, ListenEndpoint("127.0.0.1", port_of(listener)), data=tmp_path, running=True)
        assert (result.level, "held by the gateway" in result.seen) == (Level.OK, True)

    def test_running_gateway_that_does_not_listen_is_a_failure(self, tmp_path: Path) -> None:
        [result] = bad(self.results(tmp_path, ListenEndpoint("127.0.0.1", free_port()), data=tmp_path, running=True))
        assert result.level is Level.WARN

    @pytest.mark.parametrize("host", ["203.0.113.7", "2001:db8::7", "no host"])
    def test_address_of_another_machine_is_a_failure(self, tmp_path: Path, host: str) -> None:
        [result] = bad(self.results(tmp_path, ListenEndpoint(host, 1883)))
        assert result.level is Level.FAIL


def dialled(
    tmp_path: Path, *endpoints: ListenEndpoint, tls: TlsFiles | None = None, **fields: object
) -> list[CheckResult]:
    hosts = tuple(EndpointHost(host=each.host, port=each.port) for each in endpoints)
    connector = Connector(name="hub", hosts=hosts, tls=tls)
    around = machine(tmp_path, configuration=BrokerConfiguration(connectors=(connector,)), timeout_s=1.0, **fields)
    results = list(uplinks(around))
    assert all(result.next_step for result in results if result.level is not Level.OK)
    return results


class TestUplinks:
    def test_unreachable_hub_is_a_failure(self, tmp_path: Path) -> None:
        [result] = dialled(tmp_path, ListenEndpoint("127.0.0.1", free_port()))
        assert (result.level, "cannot be reached" in result.seen) == (Level.FAIL, True)

    def test_unknown_name_is_a_failure(self, tmp_path: Path) -> None:
        [result] = dialled(tmp_path, ListenEndpoint("nowhere.invalid", 5672))
        assert "cannot be resolved" in result.seen

    def test_each_endpoint_is_checked(self, tmp_path: Path) -> None:
        assert (
            len(dialled(tmp_path, ListenEndpoint("127.0.0.1", free_port()), ListenEndpoint("127.0.0.1", free_port())))
            == 2
        )

    def test_silent_server_is_a_failure(self, tmp_path: Path, listener: socket.socket) -> None:
        [result] = dialled(tmp_path, ListenEndpoint("127.0.0.1", port_of(listener)))
        assert "no AMQP connection: no answer in 1 s" in result.seen

    def test_server_of_another_protocol_is_a_failure(self, tmp_path: Path, listener: socket.socket) -> None:
        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(100)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        [result] = dialled(tmp_path, ListenEndpoint("127.0.0.1", port_of(listener)))
        thread.join(5)
        assert result.level is Level.FAIL

    def test_server_without_tls_is_a_failure(self, tmp_path: Path, listener: socket.socket) -> None:
        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(b"AMQP\x00\x01\x00\x00")

        authority = Authority(tmp_path / "pki")
        thread = threading.Thread(target=answer)
        thread.start()
        [result] = dialled(
            tmp_path, ListenEndpoint("127.0.0.1", port_of(listener)), tls=TlsFiles(ca=authority.certificate)
        )
        thread.join(5)
        assert "TLS failed" in result.seen

    def test_missing_authority_is_a_failure(self, tmp_path: Path) -> None:
        [result] = dialled(tmp_path, ListenEndpoint("127.0.0.1", 1), tls=TlsFiles(ca=str(tmp_path / "none.pem")))
        assert "none.pem" in result.seen

    def test_proxy_is_named(self, tmp_path: Path) -> None:
        results = dialled(
            tmp_path, ListenEndpoint("127.0.0.1", free_port()), environment={"https_proxy": "http://user:pw@proxy:3128"}
        )
        assert [result.name for result in results] == ["proxy", "uplink hub"]
        assert "pw" not in results[0].seen
