"""A bundle that is put together from the running system and the network: every download ends with the right bytes."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.block_index import BLOCK_BYTES, INDEX_BYTES_MAX, PIECE_BYTES, SUFFIX, BlockIndex, BlockIndexError
from edge.appliance.update import copy_plan
from edge.appliance.update.bundle_server import REDIRECTS_MAX
from edge.appliance.update.copy_plan import GAP_BYTES_MIN, WRONG_COPIES_MAX
from edge.appliance.update.fetching import QUIET, BundleDownload, index_url
from edge.appliance.update.limits import INDEX_ATTEMPTS_MAX, RETRY_S
from edge.appliance.update.own_pieces import OwnPieces
from edge.appliance.update.wanted import WantedFiles, WantedSystem
from images.disk import bundle as bundles
from images.disk.block_index import write_index
from images.errors import ImageError
from tests.support.blocks import TAIL, make_bundle, make_index
from tests.support.file_server import FileServer

NOON = 12 * 3600.0
_SOURCE = random.Random(40)
PART_BYTES = 24 * BLOCK_BYTES
KERNEL, LIBRARIES, GATEWAY, NEW_GATEWAY = (_SOURCE.randbytes(PART_BYTES) for _ in range(4))
OLD = KERNEL + LIBRARIES + GATEWAY
NEW = KERNEL + bytes(2 * BLOCK_BYTES) + LIBRARIES + NEW_GATEWAY


class Killed(Exception):
    """End of the process."""


class Clock:
    """Clock that only sleeping advances."""

    def __init__(self, at: float = NOON) -> None:
        self.at = at
        self.naps: list[float] = []

    def time(self) -> float:
        return self.at

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.at += seconds
        self.naps.append(seconds)
        assert len(self.naps) < 2_000


class Gateway:
    """Gateway that wants a system with the root NEW, and runs one with the root OLD."""

    def __init__(self, folder: Path, server: FileServer, root: bytes = NEW) -> None:
        self.system, self.files, self.server = folder / "system", WantedFiles(folder), server
        (self.system / "usr").mkdir(parents=True)
        self.has("usr/kernel", KERNEL)
        self.has("usr/libraries", LIBRARIES)
        self.has("usr/gateway", GATEWAY)
        self.content = server.content = make_bundle(root)
        server.index = make_index(folder, root).encode()
        self.wanted = self.want()

    def has(self, name: str, content: bytes) -> None:
        (self.system / name).write_bytes(content)

    def want(self, **more: object) -> WantedSystem:
        known = {"version": "2", "build": "b" * 64, "url": self.server.url, "gateway": "hall"}
        told = {"sha256": hashlib.sha256(self.content).hexdigest(), "size": len(self.content)}
        self.wanted = msgspec.convert({**known, **told, **more}, WantedSystem)
        self.files.set_wanted(self.wanted)
        return self.wanted

    def fetch(self, clock: Clock | None = None) -> Path | None:
        """Download in a process that has just started."""
        return BundleDownload(self.files, clock=clock or Clock(), system=self.system).run()

    def fetch_whole(self, clock: Clock | None = None) -> None:
        found = self.fetch(clock)
        assert found is not None
        assert found.read_bytes() == self.content

    @property
    def copied(self) -> int:
        return self.files.fetched().copied


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer(b"") as made:
        yield made


@pytest.fixture
def gateway(tmp_path: Path, server: FileServer) -> Gateway:
    return Gateway(tmp_path, server)


def test_only_the_changed_part_is_fetched(gateway: Gateway, server: FileServer) -> None:
    gateway.fetch_whole()
    changed = len(make_bundle(NEW_GATEWAY))
    assert gateway.copied == len(gateway.content) - changed
    assert server.sent == changed + len(server.index or b"")
    assert [each.partition("=")[2].partition("-")[0] for each in server.asked] == ["0", str(96 + 2 * PART_BYTES)]
    gateway.fetch_whole()
    assert len(server.asked) == 2, "nothing is fetched after another start"


def test_connection_is_kept_for_all_ranges(tmp_path: Path, server: FileServer) -> None:
    server.keeps = True
    gateway = Gateway(tmp_path, server, NEW_GATEWAY + KERNEL + NEW_GATEWAY + LIBRARIES)
    gateway.fetch_whole()
    assert len(server.asked) == 3
    assert server.connections == 1


def test_closed_connection_is_opened_again(tmp_path: Path, server: FileServer) -> None:
    """The server closes each connection after its answer, without saying so before."""
    server.keeps = True
    server.while_sending = lambda: setattr(server, "keeps", False)
    gateway = Gateway(tmp_path, server, NEW_GATEWAY + KERNEL + NEW_GATEWAY + LIBRARIES)
    clock = Clock()
    gateway.fetch_whole(clock)
    assert server.connections > 1
    assert clock.naps == []


def test_redirects_are_followed(gateway: Gateway, server: FileServer) -> None:
    server.redirects = ["/elsewhere.raucb.blocks"]
    gateway.fetch_whole()
    assert gateway.copied > 0
    gateway.files.set_wanted(None)
    gateway.want()
    server.redirects = [f"{server.url}{SUFFIX}"] * (REDIRECTS_MAX + 1)
    clock = Clock()
    gateway.fetch_whole(clock)
    assert len(clock.naps) <= 1, "it gives up on too many, and tries again"


@pytest.mark.parametrize("place", ["file:///etc/passwd", "http://127.0.0.1:99999/", "http://[::1", "/\xe4"])
def test_redirect_to_another_protocol_or_no_url_is_refused(gateway: Gateway, server: FileServer, place: str) -> None:
    server.redirects = [place]
    clock = Clock()
    gateway.fetch_whole(clock)
    assert clock.naps == [RETRY_S[0]]


def test_server_without_an_index_sends_all(gateway: Gateway, server: FileServer) -> None:
    server.index = None
    gateway.fetch_whole()
    assert server.asked == [""]
    assert len(server.index_asked) == 1
    assert gateway.copied == 0


def test_index_of_a_gateway_without_slots_is_not_asked_for(gateway: Gateway, server: FileServer) -> None:
    assert BundleDownload(gateway.files, clock=Clock()).run() is not None
    assert server.index_asked == []


def test_server_without_ranges_sends_all(gateway: Gateway, server: FileServer) -> None:
    server.ranges = False
    gateway.fetch_whole()
    assert gateway.copied == 0


def test_interrupted_index_is_continued(gateway: Gateway, server: FileServer) -> None:
    server.index_cuts = [100, 200]
    clock = Clock()
    gateway.fetch_whole(clock)
    assert server.index_asked == ["", "bytes=100-", "bytes=300-"]
    assert clock.naps == [RETRY_S[0], RETRY_S[1]]
    assert gateway.copied > 0


def test_index_that_is_complete_but_not_renamed_is_fetched_again(gateway: Gateway, server: FileServer) -> None:
    assert server.index is not None
    gateway.files.index_part(gateway.wanted).write_bytes(server.index)
    gateway.fetch_whole()
    assert server.index_asked == [f"bytes={len(server.index)}-", ""]
    assert gateway.copied > 0


@pytest.mark.parametrize("status", [404, 403, 410])
def test_refused_index_is_asked_for_once(gateway: Gateway, server: FileServer, status: int) -> None:
    server.index_status = [status]
    clock = Clock()
    gateway.fetch_whole(clock)
    assert (len(server.index_asked), server.asked, clock.naps) == (1, [""], [])


@pytest.mark.parametrize("status", [503, 429])
def test_busy_server_is_asked_for_the_index_again(gateway: Gateway, server: FileServer, status: int) -> None:
    server.index_status = [status] * (INDEX_ATTEMPTS_MAX - 1)
    gateway.fetch_whole()
    assert len(server.index_asked) == INDEX_ATTEMPTS_MAX
    assert gateway.copied > 0


def test_server_that_cannot_send_the_index_sends_all(gateway: Gateway, server: FileServer) -> None:
    server.index_status = [500] * INDEX_ATTEMPTS_MAX
    gateway.fetch_whole()
    assert (len(server.index_asked), server.asked, gateway.copied) == (INDEX_ATTEMPTS_MAX, [""], 0)


@pytest.mark.parametrize("damage", [
    lambda index: b"",
    lambda index: b"<html>404</html>",
    lambda index: index[:-3],
    lambda index: index[:50] + b"\0" * 40 + index[90:],
    lambda index: index + b"\0",
    lambda index: bytes(INDEX_BYTES_MAX + 1),
])  # fmt: skip
def test_damaged_index_leads_to_the_whole_bundle(
    gateway: Gateway, server: FileServer, damage: Callable[[bytes], bytes]
) -> None:
    assert server.index is not None
    server.index = damage(server.index)
    gateway.fetch_whole()
    assert gateway.copied == 0
    assert gateway.files.fetched().wrong == 0


def test_index_of_another_bundle_is_not_used(gateway: Gateway, server: FileServer, tmp_path: Path) -> None:
    server.index = make_index(tmp_path, OLD).encode()
    gateway.fetch_whole()
    assert (len(server.index_asked), gateway.copied) == (INDEX_ATTEMPTS_MAX, 0)


def test_index_replaced_meanwhile_is_fetched_again(gateway: Gateway, server: FileServer, tmp_path: Path) -> None:
    right, server.index = server.index, make_index(tmp_path, OLD).encode()

    def replace() -> None:
        server.index = right

    server.while_sending = replace
    gateway.fetch_whole()
    assert gateway.copied > 0


def test_lying_index_costs_one_whole_fetch(gateway: Gateway, server: FileServer) -> None:
    """Its blocks are valid, but at other places than in the bundle."""
    index = BlockIndex.decode(server.index or b"")
    first, second, *rest = index.blocks
    assert first.size == second.size
    swapped = (
        msgspec.structs.replace(second, offset=first.offset),
        msgspec.structs.replace(first, offset=second.offset),
    )
    server.index = msgspec.structs.replace(index, blocks=(*swapped, *rest)).encode()
    gateway.fetch_whole()
    assert server.asked[-1] == ""
    assert gateway.files.fetched().wrong == 0, "the server's bundle is right"
    assert gateway.copied == 0


def test_wrong_bundle_is_refused_as_without_an_index(gateway: Gateway, server: FileServer) -> None:
    server.content = server.content[:-1] + b"!"
    assert gateway.fetch() is None
    assert "has the SHA-256" in gateway.files.fetched().refused
    assert not gateway.files.bundle(gateway.wanted).exists()


def test_other_zlib_copies_nothing(gateway: Gateway, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that comes out different is fetched; after a few the rest is fetched in one piece."""
    monkeypatch.setattr("bridge.block_index.compress", lambda content: content[:-1])
    gateway.fetch_whole()
    assert gateway.copied == 0
    assert len(server.asked) <= WRONG_COPIES_MAX + 1


def test_changed_files_are_noticed(gateway: Gateway, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that changes after it was read gives other bytes, or none."""
    plain = OwnPieces.__getitem__
    monkeypatch.setattr(OwnPieces, "__getitem__", lambda own, digest: plain(own, digest)[::-1])
    gateway.fetch_whole()
    assert gateway.copied == 0


def test_vanished_file_is_fetched(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = OwnPieces.__init__

    def read(own: OwnPieces, root: Path, wanted: set[bytes]) -> None:
        plain(own, root, wanted)
        (root / "usr/libraries").unlink()

    monkeypatch.setattr(OwnPieces, "__init__", read)
    gateway.fetch_whole()
    assert gateway.copied == len(make_bundle(KERNEL)) - 96 - len(TAIL)


def test_few_equal_bytes_are_not_worth_a_request(tmp_path: Path, server: FileServer) -> None:
    text = b"the same text in both " * 1_000
    root = NEW_GATEWAY + text[:BLOCK_BYTES] + NEW_GATEWAY
    gateway = Gateway(tmp_path, server, root)
    gateway.has("usr/text", text)
    gateway.fetch_whole()
    assert len(make_bundle(text[:BLOCK_BYTES])) - 96 - len(TAIL) < GAP_BYTES_MIN
    assert (server.asked, gateway.copied) == ([""], 0)


def test_part_of_a_download_without_index_is_continued(gateway: Gateway, server: FileServer) -> None:
    middle = 96 + BLOCK_BYTES + 1_000
    gateway.files.part(gateway.wanted).write_bytes(gateway.content[:middle])
    gateway.fetch_whole()
    assert gateway.copied == 2 * PART_BYTES - BLOCK_BYTES - 1_000
    assert len(server.asked) == 1


def test_quiet_hours_interrupt_copying_and_fetching(gateway: Gateway, server: FileServer) -> None:
    gateway.want(quiet_hours="22:00-06:00")
    clock = Clock(22 * 3600 - 1.0)
    server.while_sending = lambda: setattr(clock, "at", max(clock.at, 22 * 3600.0))
    gateway.fetch_whole(clock)
    assert clock.at >= 30 * 3600
    assert gateway.copied > 0
    assert gateway.files.fetched().trouble in ("", QUIET)


def test_rate_limits_only_what_is_fetched(gateway: Gateway, server: FileServer) -> None:
    gateway.want(rate=100_000)
    clock = Clock()
    gateway.fetch_whole(clock)
    assert abs(clock.at - NOON - server.sent / 100_000) <= 3


def test_query_of_the_url_is_kept() -> None:
    assert index_url("https://files.example/a.raucb?key=1") == "https://files.example/a.raucb.blocks?key=1"


def test_other_file_systems_and_links_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(KERNEL)
    (tmp_path / "link").symlink_to("/proc/self/maps")
    os.mkfifo(tmp_path / "pipe")
    os.link(tmp_path / "file", tmp_path / "same")
    everything = type("Everything", (), {"__contains__": lambda *_: True})()
    own = OwnPieces(tmp_path, everything)
    assert len(own) == len(KERNEL) // PIECE_BYTES
    assert set(own.values()) == {KERNEL[at : at + PIECE_BYTES] for at in range(0, len(KERNEL), PIECE_BYTES)}


def test_block_beyond_the_end_or_overlapping_is_refused(tmp_path: Path) -> None:
    index = make_index(tmp_path, NEW)
    first, *rest = index.blocks
    for wrong in (
        msgspec.structs.replace(index, size=1),
        msgspec.structs.replace(index, blocks=(*rest, first)),
        msgspec.structs.replace(index, blocks=(msgspec.structs.replace(first, digests=first.digests[1:]),)),
    ):
        with pytest.raises(BlockIndexError):
            BlockIndex.decode(wrong.encode())


def test_build_refuses_a_bundle_with_other_blocks(tmp_path: Path) -> None:
    (tmp_path / "root").write_bytes(NEW)
    (tmp_path / "other.raucb").write_bytes(make_bundle(OLD))
    with pytest.raises(ImageError, match="as zlib compresses"):
        write_index(tmp_path / "other.raucb", tmp_path / "root")
    assert not (tmp_path / "other.raucb.blocks").exists()


@pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="squashfs-tools is not installed")
def test_mksquashfs_writes_the_blocks_of_the_index(tmp_path: Path) -> None:
    content = tmp_path / "content"
    content.mkdir()
    (content / "manifest.raucm").write_text("[update]\n")
    text = Path(__file__).read_bytes()[: BLOCK_BYTES - 100]
    (content / "rootfs.ext4").write_bytes(NEW + text.ljust(BLOCK_BYTES, b"\0"))
    target = tmp_path / "made.raucb"
    words = ["mksquashfs", content, target, "-quiet", "-no-progress", *bundles.PACKING.split()]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    index = BlockIndex.decode(write_index(target, content / "rootfs.ext4").read_bytes())
    assert len(index.blocks) == len(NEW) // BLOCK_BYTES - 2 + 1
    assert index.sha256 == hashlib.sha256(target.read_bytes()).hexdigest()


# --- any two systems, any damage, any cut ---------------------------------------------------------------------------

PIECES = [bytes([number]) * 40 + _SOURCE.randbytes(PIECE_BYTES - 40) for number in range(5)] + [bytes(PIECE_BYTES)]
roots = st.lists(st.integers(0, 5), min_size=1, max_size=160).map(
    lambda numbers: b"".join(PIECES[number] for number in numbers).ljust(
        -(-len(numbers) * PIECE_BYTES // BLOCK_BYTES) * BLOCK_BYTES, b"\0"
    )
)


@given(
    root=roots,
    own=st.lists(st.lists(st.integers(0, 5), max_size=40), max_size=4),
    flips=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), max_size=2),
    kills=st.lists(st.integers(1, 12), max_size=3),
    lost=st.floats(0, 1),
    cuts=st.lists(st.integers(0, 200_000), max_size=3),
    ranges=st.booleans(),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_download_ends_with_the_bundle(
    tmp_path_factory: pytest.TempPathFactory,
    root: bytes,
    own: list[list[int]],
    flips: list[tuple[float, int]],
    kills: list[int],
    lost: float,
    cuts: list[int],
    ranges: bool,
) -> None:
    with FileServer(b"") as server, pytest.MonkeyPatch.context() as patched:
        patched.setattr(copy_plan, "GAP_BYTES_MIN", PIECE_BYTES)
        gateway = Gateway(tmp_path_factory.mktemp("gateway"), server, root)
        for number, pieces in enumerate(own):
            gateway.has(f"usr/{number}", b"".join(PIECES[each] for each in pieces))
        index = bytearray(server.index or b"")
        for where, flip in flips:
            index[min(int(where * len(index)), len(index) - 1)] ^= flip
        server.index, server.cuts, server.ranges = bytes(index), cuts, ranges
        for steps in kills:
            kill_after(gateway, steps)
            part = gateway.files.part(gateway.wanted)
            if part.exists():  # the medium has what was synced, and some of what came after
                synced = gateway.files.fetched().bytes
                os.truncate(part, max(synced, int(part.stat().st_size * lost)))
        gateway.fetch_whole()
        assert gateway.files.fetched().wrong == 0


def kill_after(gateway: Gateway, steps: int) -> None:
    """Start a download, and kill it after this many looks at the wanted system."""
    left = [steps]
    plain = gateway.files.wanted

    def wanted() -> WantedSystem | None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return plain()

    gateway.files.wanted = wanted  # type: ignore[method-assign]
    try:
        gateway.fetch()
    except Killed:
        pass
    finally:
        del gateway.files.wanted  # type: ignore[method-assign]
