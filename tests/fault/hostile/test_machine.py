"""Problems of the machine and attacks through it: read-only media, no descriptors, floods of log lines."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.broker.mqtt import packets
from edge.output.limits import REPETITION_OF_ALL_MAX, REPETITION_S
from tests.fault.hostile.web import gateway_of
from tests.support.certificates import Authority
from tests.support.configured_gateway import gateway_with, user
from tests.support.hostile import Raw
from tests.support.http_client import document
from tests.support.problems import await_problem, await_recovery, find_problem, health
from tests.support.processes import Waypost, cpu_s, edge, wait_until
from tests.support.publisher import Publisher

WAIT_S = 30.0
MS_RDONLY, MS_REMOUNT = 1, 32


def mount(source: str, target: Path, kind: str, flags: int, options: str = "") -> None:
    """Call mount(2). Raise OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(source.encode(), bytes(target), kind.encode(), flags, options.encode()) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(target))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a separate file system that can be remounted."""
    folder = tmp_path / "gw"
    folder.mkdir(mode=0o700)
    try:
        mount("tmpfs", folder, "tmpfs", 0, "size=400m,mode=0700")
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            pytest.skip("mounting needs a privilege that these tests do not have")
        raise
    yield folder
    ctypes.CDLL(None).umount2(bytes(folder), 2)  # MNT_DETACH


def test_read_only_disk_ends_acknowledgements_until_writable(tmp_path: Path, disk: Path) -> None:
    """A gateway on a disk that becomes read-only acknowledges nothing, and resumes when it is writable.

    The kernel may return EBUSY while files are open for writing; the test is then skipped.
    """
    with edge(tmp_path, "gw") as gateway:
        publisher = Publisher("sender", gateway.port("mqtt"), "queue/jobs", window=5)
        publisher.start()
        wait_until(lambda: len(publisher.acked) > 50, timeout_s=WAIT_S, what="messages are acked")
        try:
            mount("tmpfs", disk, "tmpfs", MS_REMOUNT | MS_RDONLY)
        except OSError as error:
            publisher.end()
            if error.errno != errno.EBUSY:
                raise
            pytest.skip("this kernel remounts nothing that is open for writing: see EROFS in test_gateway_media")
        await_problem(gateway.port("http"), "store", "read-only")
        publisher.wait_for_more(1)  # acknowledgements that were under way have been counted
        before = len(publisher.acked)
        publisher.wait_for_more(1)
        assert len(publisher.acked) == before
        mount("tmpfs", disk, "tmpfs", MS_REMOUNT)
        wait_until(lambda: len(publisher.acked) > before + 50, timeout_s=WAIT_S, what="service resumes by itself")
        await_recovery(gateway.port("http"), "store")
        publisher.end()


FILES = 120
"""Limit of descriptors of the process, which needs some 40 itself."""


@pytest.mark.parametrize("listener", ["mqtt", "mqtts"])
def test_connected_clients_are_served_without_free_descriptors(tmp_path: Path, listener: str) -> None:
    """Without free descriptors, connected clients are served, the problem is reported, and the CPU stays idle.

    New clients get in when descriptors are free again.
    """
    authority = Authority(tmp_path / "ca")
    server = authority.issue("gw1")
    tls = f'{{certificate: "{server.certificate}", key: "{server.key}"}}'
    resources = gateway_of(listeners=f', mqtts: "127.0.0.1:0", tls: {tls}', extra=user("joe", "send, recv, view"))
    (tmp_path / "resources.yaml").write_text(resources)
    command = [sys.executable, "-m", "edge.appliance.main", "run", "--data", str(tmp_path / "gw")]
    gateway = Waypost(tmp_path / "gw.log")
    gateway.arguments = ["prlimit", f"--nofile={FILES}:{FILES}", *command, "--config", str(tmp_path / "resources.yaml")]
    with (
        gateway,
        Raw(gateway, 5).connect("first", username="joe", password=b"joe") as first,
        contextlib.ExitStack() as stack,
    ):
        http = gateway.port("http")
        assert health(http)[0] == 200
        waiting = [socket.socket() for _ in range(2 * FILES)]
        for peer in waiting:
            stack.enter_context(peer)
            peer.settimeout(WAIT_S)
            peer.connect(("127.0.0.1", gateway.port(listener)))
        first.send(packets.PingReq())
        assert isinstance(first.receive(), packets.PingResp), "who is connected is served"
        began, cpu = time.monotonic(), cpu_s(gateway.pid)
        wait_until(lambda: "open files" in gateway.log.read_text(), timeout_s=WAIT_S, what="it is said in the log")
        first.send(packets.PingReq())
        assert isinstance(first.receive(), packets.PingResp)
        took = time.monotonic() - began
        assert cpu_s(gateway.pid) - cpu < max(2.0, 0.5 * took), "nobody spins"
        stack.close()
        wait_until(lambda: let_in(gateway), timeout_s=WAIT_S, what="there is room again")
        wait_until(lambda: find_problem(http, "open files") is None, timeout_s=WAIT_S, what="it is over")


def let_in(gateway: Waypost) -> bool:
    with contextlib.suppress(OSError, AssertionError), Raw(gateway, 5) as peer:
        peer.connect("late", username="joe", password=b"joe")
        return True
    return False


def test_prlimit_sets_the_limit_of_files() -> None:
    done = subprocess.run(
        ["prlimit", f"--nofile={FILES}:{FILES}", sys.executable, "-c",
         "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout) == FILES
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > FILES


def test_a_peer_cannot_flood_the_log(tmp_path: Path) -> None:
    """2 000 refused logins within a second or two give a few log lines and a count."""
    with gateway_with(tmp_path, gateway_of(extra=user("joe", "view, send, recv"))) as gateway:
        tries = 2_000
        for number in range(tries):
            with contextlib.suppress(OSError, AssertionError), Raw(gateway, 4) as peer:
                peer.send(packets.Connect(f"guess-{number}", 4, username=f"user\n{number}", password=b"x"))
                if number % 100 == 0:
                    peer.receive()
        took = time.monotonic()
        wait_until(lambda: "more in" in gateway.log.read_text() or quiet(gateway), timeout_s=WAIT_S, what="a count")
        lines = gateway.log.read_text().splitlines()
        turns = (time.monotonic() - took) / REPETITION_S + 10
        assert len(lines) < 4 * REPETITION_OF_ALL_MAX * turns
        assert len(gateway.log.read_bytes()) < tries * 100
        assert document(gateway, "/healthz")["ok"] is True


def quiet(gateway: Waypost) -> bool:
    """Return whether the log is so short that no line was suppressed."""
    return len(gateway.log.read_text().splitlines()) < REPETITION_OF_ALL_MAX
