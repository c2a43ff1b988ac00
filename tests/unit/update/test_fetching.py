"""The bundle of a wanted system over a link that breaks: each byte is transferred once, and an unwanted bundle is
deleted."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from edge.appliance.update.fetching import QUIET, BundleDownload
from edge.appliance.update.limits import RETRY_S, SYNC_BYTES, WRONG_DOWNLOADS_MAX
from edge.appliance.update.wanted import DownloadProgress, WantedFiles, WantedSystem
from tests.support.file_server import FileServer
from tests.support.http_proxy import HttpProxy
from tests.support.sleeping_clock import NOON, Clock

CONTENT = random.Random(5).randbytes(SYNC_BYTES + 300_000)
HOUR = 3600.0


class Stopped(Exception):
    """End of the download, raised by the test."""


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer(CONTENT) as made:
        yield made


@pytest.fixture
def files(tmp_path: Path) -> WantedFiles:
    return WantedFiles(tmp_path)


def want(files: WantedFiles, server: FileServer, **more: object) -> WantedSystem:
    known = {"version": "2", "build": "b" * 64, "url": server.url, "gateway": "hall"}
    told = {"sha256": hashlib.sha256(CONTENT).hexdigest(), "size": len(CONTENT)}
    wanted = msgspec.convert({**known, **told, **more}, WantedSystem)
    files.set_wanted(wanted)
    return wanted


def fetch(files: WantedFiles, clock: Clock | None = None) -> Path | None:
    """Download in a process that has just started."""
    return BundleDownload(files, clock=clock or Clock()).run()


def test_bundle_is_fetched_in_one_request(files: WantedFiles, server: FileServer) -> None:
    wanted = want(files, server)
    found = fetch(files)
    assert found == files.bundle(wanted)
    assert found.read_bytes() == CONTENT
    assert files.fetched() == DownloadProgress(sha256=wanted.sha256, bytes=len(CONTENT))
    assert fetch(files) == found, "after another start"
    assert server.asked == [""], "it is not fetched twice"


def test_fetch_resumes_after_a_break(files: WantedFiles, server: FileServer) -> None:
    want(files, server)
    server.cuts = [SYNC_BYTES + 100, 0, 1_000]
    clock = Clock()
    found = fetch(files, clock)
    assert found is not None
    assert found.read_bytes() == CONTENT
    begins = [int(each.removeprefix("bytes=").rstrip("-") or 0) for each in server.asked]
    assert begins == [0, SYNC_BYTES + 100, SYNC_BYTES + 100, SYNC_BYTES + 1_100]
    assert clock.naps == [RETRY_S[0], RETRY_S[1], RETRY_S[0]], "progress is no failure"


def test_part_from_before_a_power_cut_counts(files: WantedFiles, server: FileServer) -> None:
    wanted = want(files, server)
    files.part(wanted).write_bytes(CONTENT[:123_456])
    assert fetch(files) is not None
    assert server.asked == ["bytes=123456-"]


@pytest.mark.parametrize("there", [CONTENT + b"more", CONTENT])
def test_part_of_full_or_excess_length_is_handled(files: WantedFiles, server: FileServer, there: bytes) -> None:
    wanted = want(files, server)
    files.part(wanted).write_bytes(there)
    found = fetch(files)
    assert found is not None
    assert found.read_bytes() == CONTENT
    assert server.asked == ([""] if there != CONTENT else [])


def test_server_without_ranges_restarts_the_fetch(files: WantedFiles, server: FileServer) -> None:
    server.ranges = False
    server.cuts = [1_000]
    want(files, server)
    found = fetch(files)
    assert found is not None
    assert found.read_bytes() == CONTENT


def test_different_file_is_refused_after_a_second_attempt(files: WantedFiles, server: FileServer) -> None:
    wanted = want(files, server)
    server.content = bytes(len(CONTENT))
    assert fetch(files) is None
    assert len(server.asked) == WRONG_DOWNLOADS_MAX
    assert "has the SHA-256" in files.fetched().refused
    assert not files.part(wanted).exists()
    assert fetch(files) is None
    assert len(server.asked) == WRONG_DOWNLOADS_MAX, "not again after a start"
    server.content = CONTENT
    want(files, server, sha256=hashlib.sha256(b"x").hexdigest(), size=1)
    server.content = b"x"
    assert fetch(files) is not None, "another one that is wanted is fetched"


def test_file_changed_during_the_fetch_is_fetched_completely(files: WantedFiles, server: FileServer) -> None:
    wanted = want(files, server)
    files.part(wanted).write_bytes(bytes(1_000))
    found = fetch(files)
    assert found is not None
    assert server.asked == ["bytes=1000-", ""]
    assert files.fetched().wrong == 1


def test_reason_for_waiting_is_reported(files: WantedFiles, server: FileServer) -> None:
    want(files, server)
    server.status = [404, 503]
    clock, said = Clock(), []
    clock.slept = lambda: said.append(files.fetched().trouble)
    assert fetch(files, clock) is not None
    assert [each.rpartition(": ")[2] for each in said] == [
        "the server answers 404 Not Found",
        "the server answers 503 Service Unavailable",
    ]
    assert clock.naps == list(RETRY_S[:2])
    assert files.fetched().trouble == ""


def test_unreachable_server_is_retried(files: WantedFiles, server: FileServer) -> None:
    want(files, server, url="http://127.0.0.1:9/waypost.raucb")
    clock = Clock()

    def seen() -> None:
        if len(clock.naps) == 6:
            raise Stopped

    clock.slept = seen
    with pytest.raises(Stopped):
        fetch(files, clock)
    assert clock.naps == [*RETRY_S, RETRY_S[-1], RETRY_S[-1]]
    assert "refused" in files.fetched().trouble


def test_quiet_hours_delay_fetch_and_installation(files: WantedFiles, server: FileServer) -> None:
    want(files, server, quiet_hours="06:00-22:00")
    clock, said = Clock(), set()
    clock.slept = lambda: said.add(files.fetched().trouble)
    assert fetch(files, clock) is not None
    assert 22 * HOUR <= clock.at <= 22 * HOUR + 60
    assert said == {QUIET}
    assert server.asked == [""]
    clock.at = 30 * HOUR
    assert fetch(files, clock) is not None
    assert clock.at >= 46 * HOUR, "it is there, and starts nothing anew before the evening"


def test_start_of_quiet_hours_interrupts_the_fetch(files: WantedFiles, server: FileServer) -> None:
    want(files, server, quiet_hours="22:00-06:00")
    clock = Clock(22 * HOUR - 1)
    server.while_sending = lambda: setattr(clock, "at", max(clock.at, 22 * HOUR))
    assert fetch(files, clock) is not None
    assert clock.at >= 30 * HOUR
    assert len(server.asked) == 2
    assert server.asked[1] != ""


def test_rate_limit_is_respected(files: WantedFiles, server: FileServer) -> None:
    want(files, server, rate=100_000)
    clock = Clock()
    assert fetch(files, clock) is not None
    passed = clock.at - NOON
    assert len(CONTENT) / 100_000 - 2 <= passed <= len(CONTENT) / 100_000 + 2


def test_gateways_of_a_fleet_start_at_different_times(files: WantedFiles, server: FileServer) -> None:
    began = []
    for name in ("a", "b", "c"):
        want(files, server, gateway=name, start_jitter_s=3600.0)
        clock = Clock(files.wanted_since())
        assert fetch(files, clock) is not None
        began.append(sum(clock.naps))
        files.set_wanted(None)
    assert len(set(began)) == 3
    assert max(began) <= 3600


def test_reserve_for_messages_stays_free(files: WantedFiles, server: FileServer) -> None:
    want(files, server, keep_free=1 << 30)
    room = [(1 << 30) + len(CONTENT) - 1, (1 << 30) + len(CONTENT)]
    clock = Clock()
    assert BundleDownload(files, clock=clock, free=lambda _: room.pop(0)).run() is not None
    assert len(clock.naps) == 1
    assert room == []


def test_another_bundle_may_be_wanted_meanwhile(files: WantedFiles, server: FileServer) -> None:
    want(files, server)
    server.while_sending = lambda: files.set_wanted(None)
    assert fetch(files) is None
    first = want(files, server)
    other = msgspec.structs.replace(first, sha256=hashlib.sha256(b"x").hexdigest(), size=1)

    def changed() -> None:
        files.set_wanted(other)
        server.content = b"x"
        server.while_sending = lambda: None

    server.while_sending = changed
    found = fetch(files)
    assert found == files.bundle(other)
    assert not files.part(first).exists()


def test_nothing_is_fetched_unless_wanted(files: WantedFiles) -> None:
    assert fetch(files) is None


def test_proxy_of_the_hub_is_used(files: WantedFiles, server: FileServer) -> None:
    with HttpProxy([int(server.url.split(":")[2].split("/")[0])], "plant:hidden") as proxy:
        own = {"host": "127.0.0.1", "port": proxy.port, "username": "plant", "password": "hidden"}
        wanted = want(files, server, url=server.url.replace("http:", "https:"), proxy=own)
        clock = Clock()
        clock.slept = lambda: files.set_wanted(None)
        assert fetch(files, clock) is None, "nobody speaks TLS there"
        assert proxy.asked[-1].startswith("CONNECT 127.0.0.1:")
    assert "hidden" not in repr(wanted)
