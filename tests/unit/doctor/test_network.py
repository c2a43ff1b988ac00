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

    def test_free(self, tmp_path: Path) -> None:
        [result] = self.results(tmp_path, ListenEndpoint("127.0.0.1", free_port()))
        assert (result.level, "is free" in result.seen) == (Level.OK, True)

    def test_any(self, tmp_path: Path) -> None:
        [result] = self.results(tmp_path, ListenEndpoint("127.0.0.1", 0))
        assert result.level is Level.OK

    def test_taken_by_another_program(self, tmp_path: Path, listener: socket.socket) -> None:
        [result] = bad(self.results(tmp_path, ListenEndpoint("127.0.0.1", port_of(listener))))
        assert result.level is Level.FAIL
        assert f"(process {os.getpid()})" in result.seen

    def test_held_by_the_gateway(self, tmp_path: Path, listener: socket.socket) -> None:
        (tmp_path / "store.lock").write_text(f"{os.getpid()}\n")
        [result] = self.results(tmp_path, ListenEndpoint("127.0.0.1", port_of(listener)), data=tmp_path, running=True)
        assert (result.level, "held by the gateway" in result.seen) == (Level.OK, True)

    def test_the_gateway_runs_and_does_not_listen(self, tmp_path: Path) -> None:
        [result] = bad(self.results(tmp_path, ListenEndpoint("127.0.0.1", free_port()), data=tmp_path, running=True))
        assert result.level is Level.WARN

    @pytest.mark.parametrize("host", ["203.0.113.7", "2001:db8::7", "no host"])
    def test_not_of_this_machine(self, tmp_path: Path, host: str) -> None:
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
    def test_nobody_there(self, tmp_path: Path) -> None:
        [result] = dialled(tmp_path, ListenEndpoint("127.0.0.1", free_port()))
        assert (result.level, "cannot be reached" in result.seen) == (Level.FAIL, True)

    def test_no_such_name(self, tmp_path: Path) -> None:
        [result] = dialled(tmp_path, ListenEndpoint("nowhere.invalid", 5672))
        assert "cannot be resolved" in result.seen

    def test_each_endpoint(self, tmp_path: Path) -> None:
        assert (
            len(dialled(tmp_path, ListenEndpoint("127.0.0.1", free_port()), ListenEndpoint("127.0.0.1", free_port())))
            == 2
        )

    def test_somebody_silent(self, tmp_path: Path, listener: socket.socket) -> None:
        [result] = dialled(tmp_path, ListenEndpoint("127.0.0.1", port_of(listener)))
        assert "no AMQP connection: no answer in 1 s" in result.seen

    def test_somebody_who_speaks_something_else(self, tmp_path: Path, listener: socket.socket) -> None:
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

    def test_tls_with_somebody_who_has_none(self, tmp_path: Path, listener: socket.socket) -> None:
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

    def test_an_authority_that_is_not_there(self, tmp_path: Path) -> None:
        [result] = dialled(tmp_path, ListenEndpoint("127.0.0.1", 1), tls=TlsFiles(ca=str(tmp_path / "none.pem")))
        assert "none.pem" in result.seen

    def test_a_proxy_is_told(self, tmp_path: Path) -> None:
        results = dialled(
            tmp_path, ListenEndpoint("127.0.0.1", free_port()), environment={"https_proxy": "http://user:pw@proxy:3128"}
        )
        assert [result.name for result in results] == ["proxy", "uplink hub"]
        assert "pw" not in results[0].seen
