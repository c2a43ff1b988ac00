"""Bundles at the gateway's own hub: where they are fetched, and with which certificate."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import msgspec
import pytest

from bridge.resources.parse import parse
from edge.appliance.update.fetching import BundleDownload
from edge.appliance.update.following import SLOTS, SystemFollower, wanted_of
from edge.appliance.update.hub_source import NO_HUB
from edge.appliance.update.limits import INDEX_ATTEMPTS_MAX, RETRY_S
from edge.appliance.update.wanted import WantedFiles, WantedSystem
from edge.broker.configuration import TlsFiles
from edge.configuration.kinds import KINDS
from edge.configuration.validate import CHECKS
from tests.support.file_server import FileServer
from tests.support.sleeping_clock import Clock

CONTENT = random.Random(3).randbytes(50_000)
SYSTEM = """
apiVersion: waypost/v1
kind: System
metadata: {{name: gateway}}
spec: {{version: "2", build: {build}, url: "{url}", sha256: {sha256}, size: 1000}}
"""
GATEWAY = """
apiVersion: waypost/v1
kind: Gateway
metadata: {name: hall}
spec: {hub: {HUB}}
"""
TLS = "tls: {caCert: id.pem, clientCert: id.pem, clientKey: id.pem}"


def wanted(hub: str, url: str = "hub:next.raucb") -> WantedSystem:
    """Return the wanted system of a gateway with this hub."""
    text = SYSTEM.format(build="b" * 64, url=url, sha256="c" * 64)
    found = wanted_of(parse(KINDS, GATEWAY.replace("HUB", hub) + "---" + text, "test"))
    assert found is not None
    return found


def test_bundle_is_at_the_ways_of_the_uplink() -> None:
    found = wanted(f'url: "amqps://a.example", failover: ["wss://b.example/waypost", "amqps://[::1]:99"], {TLS}')
    assert found.urls == (
        "https://a.example:5671/bundles/next.raucb?sha256=" + "c" * 64,
        "https://b.example:443/bundles/next.raucb?sha256=" + "c" * 64,
        "https://[::1]:99/bundles/next.raucb?sha256=" + "c" * 64,
    )
    assert found.tls == TlsFiles(ca="id.pem", certificate="id.pem", key="id.pem")
    assert msgspec.json.decode(msgspec.json.encode(found), type=WantedSystem) == found


def test_hub_does_not_send_the_gateway_elsewhere(tmp_path: Path) -> None:
    """Another server would see the certificate."""
    files, clock = WantedFiles(tmp_path), Clock()
    with FileServer(CONTENT) as server:
        server.redirects = [server.url]
        want(files, server.url, tls=TlsFiles())
        assert BundleDownload(files, clock=clock).run() is not None
    assert clock.naps == [RETRY_S[0]], "a redirect is a refusal"


def test_other_servers_do_not_see_the_certificate() -> None:
    found = wanted(f'url: "amqps://a.example", {TLS}', "https://files.example/next.raucb")
    assert (found.urls, found.tls) == (("https://files.example/next.raucb",), None)


@pytest.mark.parametrize("hub", [f'url: "amqp://a.example", {TLS}', 'url: "amqps://a.example"'])
def test_gateway_without_a_certificate_refuses_the_system(tmp_path: Path, hub: str) -> None:
    (tmp_path / SLOTS).parent.mkdir(parents=True)
    (tmp_path / SLOTS).touch()
    text = SYSTEM.format(build="b" * 64, url="hub:next.raucb", sha256="c" * 64)
    resources = parse(KINDS, text, "test")
    follower = SystemFollower(tmp_path / "data", tmp_path)
    assert follower.fault(resources) == NO_HUB
    gateway = parse(KINDS, GATEWAY.replace("HUB", hub), "test")
    assert follower.fault([*gateway, *resources]) == NO_HUB
    enrolled = parse(KINDS, GATEWAY.replace("HUB", f'url: "amqps://a.example", {TLS}'), "test")
    assert follower.fault([*enrolled, *resources]) is None


@pytest.mark.parametrize("url", ["hub:", "hub:../x.raucb", "hub:next.img", "hub://next.raucb"])
def test_invalid_name_is_refused(url: str) -> None:
    text = SYSTEM.format(build="b" * 64, url=url, sha256="c" * 64)
    [error] = [each for check in CHECKS for each in check(parse(KINDS, text, "test"))]
    assert "a bundle's name has" in str(error)


def want(files: WantedFiles, *urls: str, tls: TlsFiles | None = None) -> None:
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    first, *more = urls
    known = WantedSystem(
        version="2", build="b" * 64, url=first, more_urls=tuple(more), sha256=sha256, size=len(CONTENT), tls=tls
    )
    files.set_wanted(known)


def test_next_endpoint_is_tried_after_a_failure(tmp_path: Path) -> None:
    files, clock = WantedFiles(tmp_path), Clock()
    with FileServer(CONTENT) as away, FileServer(CONTENT) as server:
        away.status = [503, 503]
        server.status = [503]
        want(files, away.url, server.url)
        found = BundleDownload(files, clock=clock).run()
    assert found is not None
    assert found.read_bytes() == CONTENT
    assert clock.naps == [RETRY_S[0], RETRY_S[1], RETRY_S[2]]
    assert (len(away.asked), len(server.asked)) == (2, 2)


def test_busy_hub_does_not_spoil_the_index(tmp_path: Path) -> None:
    """A hub at its limit answers 503: the index is requested again."""
    files = WantedFiles(tmp_path / "data")
    with FileServer(CONTENT) as server:
        server.index_status = [503] * (INDEX_ATTEMPTS_MAX + 1)
        want(files, server.url, tls=TlsFiles())
        assert BundleDownload(files, clock=Clock(), system=tmp_path).run() is not None
        assert len(server.index_asked) == INDEX_ATTEMPTS_MAX + 2, "until the hub says that there is none"


def test_hub_without_the_bundle_does_not_end_the_index(tmp_path: Path) -> None:
    """The first hub has neither bundle nor index: the next one is asked for both. Only when none has it, all of the
    bundle is fetched."""
    files = WantedFiles(tmp_path / "data")
    with FileServer(CONTENT) as without, FileServer(CONTENT) as server:
        server.index_status = [503]
        want(files, without.url, server.url, tls=TlsFiles())
        assert BundleDownload(files, clock=Clock(), system=tmp_path).run() is not None
        assert (len(without.index_asked), len(without.asked)) == (2, 0), "again after the other hub was busy"
        assert (len(server.index_asked), len(server.asked)) == (2, 1)


def test_unreadable_certificate_is_named(tmp_path: Path) -> None:
    files = WantedFiles(tmp_path)
    missing = str(tmp_path / "identity.pem")
    want(files, "https://127.0.0.1:1/x.raucb", tls=TlsFiles(ca=missing, certificate=missing, key=missing))
    told: list[str] = []

    class Stopping(Clock):
        def sleep(self, seconds: float, /) -> None:
            told.append(files.fetched().trouble)
            files.set_wanted(None)

    assert BundleDownload(files, clock=Stopping()).run() is None
    assert "No such file" in told[0]
    assert missing in told[0]
