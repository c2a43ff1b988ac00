"""Crowds over TLS after their handshakes: half requests, silence, records of a byte, requests for new keys."""

from __future__ import annotations

import contextlib
import functools
import http.client
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from edge.broker.mqtt import packets
from tests.bench.idle import SPARE_FILES, raise_file_limit
from tests.fault.hostile.figures import Figures
from tests.fault.hostile.neighbours import FULL_SIZE_FLOOR_S
from tests.fault.hostile.slow_crowd import CLOSED_S, GROWTH_MIB_MAX, HEALTH_S_MAX, OPENINGS, sockets_of
from tests.fault.hostile.watch import watched
from tests.fault.hostile.web import gateway_of
from tests.support.certificates import Authority
from tests.support.configured_gateway import gateway_with
from tests.support.processes import Waypost, wait_until
from tests.support.tls_peer import TlsPeer, TrafficKeys

FLOOR_S: Final = 0.5
"""Floor for the small attacks of each run, with two busy cores and one attempt."""
CROWD_FLOOR_S: Final = 0.1
"""Floor for the arrival of a crowd.

A handshake takes 2 ms of a processor at each end, for 3 000 in sequence. Next to 10 other programs 21 to 70 ms were
measured in the only round.
"""
WAIT_S: Final = 20.0
HEALTH_TRIES: Final = 5
FLOODS: Final = 40
FLOOD_BYTES: Final = 256 * 1024


class Site:
    """Gateway with TLS, and its clients."""

    def __init__(self, gateway: Waypost, authority: Authority, folder: Path) -> None:
        self.gateway = gateway
        self.keys = folder / "keys"
        """Key log of a client's context."""
        self._authority = authority

    @functools.cached_property
    def context(self) -> ssl.SSLContext:
        return self._authority.context()

    @functools.cached_property
    def logging(self) -> ssl.SSLContext:
        made = self._authority.context()
        made.keylog_filename = str(self.keys)
        return made

    def connect(self, listener: str, context: ssl.SSLContext | None = None) -> TlsPeer:
        raw = socket.create_connection(("127.0.0.1", self.gateway.port(listener)), timeout=WAIT_S)
        try:
            return TlsPeer(raw, context or self.context)
        except BaseException:
            raw.close()
            raise

    def health_s(self) -> float:
        """Return the seconds until a new client has its health answer."""
        begin = time.monotonic()
        client = http.client.HTTPSConnection(
            "127.0.0.1", self.gateway.port("https"), timeout=WAIT_S, context=self.context
        )
        with contextlib.closing(client):
            client.request("GET", "/healthz")
            assert client.getresponse().status == 200
        return time.monotonic() - begin


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder: Path = tmp_path_factory.mktemp("https")
    authority = Authority(folder / "ca")
    server = authority.issue("gw1")
    tls = f'{{certificate: "{server.certificate}", key: "{server.key}"}}'
    listeners = f', mqtts: "127.0.0.1:0", https: "127.0.0.1:0", tls: {tls}'
    with gateway_with(folder, gateway_of(authentication="{name: none}", listeners=listeners)) as running:
        made = Site(running, authority, folder)
        made.health_s()  # the first request loads code
        yield made


@contextlib.contextmanager
def crowd(site: Site, opening: bytes, size: int) -> Iterator[None]:
    """Open this many connections that have sent this after their handshake, and send nothing else."""
    with contextlib.ExitStack() as stack:
        for _ in range(size):
            peer = site.connect("https")
            stack.callback(peer.socket.close)
            with contextlib.suppress(OSError):
                peer.send(opening)
        yield


def sizes(name: str) -> list[object]:
    """Return the sizes of an attack: the full one for slow runs, and a small one of the most usual attack."""
    slow = pytest.param(name, 3_000, CROWD_FLOOR_S, marks=[pytest.mark.slow, pytest.mark.timeout(300)])
    return [slow, (name, 200, FLOOR_S)] if name == "half a head" else [slow]


@pytest.mark.parametrize(("name", "size", "floor_s"), [one for name in OPENINGS for one in sizes(name)])
def test_slow_tls_crowd_does_not_delay_others(
    site: Site, control: Waypost, figures: Callable[[Figures], None], name: str, size: int, floor_s: float
) -> None:
    raise_file_limit(size + SPARE_FILES)
    pid = site.gateway.pid
    sockets = sockets_of(pid)
    attack = f"slow HTTPS: {name}, {size}"
    with watched(site.gateway, control, attack, figures, floor_s=floor_s, grown_mib=GROWTH_MIB_MAX):
        with crowd(site, OPENINGS[name], size):
            tries = [site.health_s() for _ in range(HEALTH_TRIES)]
        assert max(tries) < HEALTH_S_MAX
        wait_until(lambda: sockets_of(pid) <= sockets + 5, timeout_s=CLOSED_S, what="its sockets are closed")


def bytes_each(peer: TlsPeer, site: Site) -> bytes:
    """Send an MQTT client's ping requests, with a byte in each record."""
    connect = packets.Connect("bytes", 4).encode(4)
    pings = packets.PingReq().encode(4) * (FLOOD_BYTES // 60)
    return peer.encrypted(connect) + peer.encrypted(*(bytes([each]) for each in pings))


def new_keys(peer: TlsPeer, site: Site) -> bytes:
    return TrafficKeys(site.keys).key_updates(FLOOD_BYTES // 27)


@pytest.mark.parametrize("flood", [bytes_each, new_keys])
@pytest.mark.parametrize(
    ("size", "floor_s"),
    [
        (2, FLOOR_S),
        pytest.param(FLOODS, FULL_SIZE_FLOOR_S, marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
)
def test_tls_flood_does_not_delay_others(
    site: Site,
    control: Waypost,
    figures: Callable[[Figures], None],
    flood: Callable[[TlsPeer, Site], bytes],
    size: int,
    floor_s: float,
) -> None:
    """A peer that does not read its answers is disconnected or held back; others have their turns."""
    attack = f"TLS flood: {flood.__name__}, {size}"
    with contextlib.ExitStack() as stack:
        peers = []
        for _ in range(size):
            peer = site.connect("mqtts", site.logging)
            stack.callback(peer.socket.close)
            peers.append((peer, flood(peer, site)))
        with watched(site.gateway, control, attack, figures, floor_s=floor_s, grown_mib=GROWTH_MIB_MAX):
            for peer, data in peers:
                peer.socket.settimeout(0.2)
                with contextlib.suppress(OSError):
                    peer.socket.sendall(data)
            assert site.health_s() < HEALTH_S_MAX
            stack.close()
