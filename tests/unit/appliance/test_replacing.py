"""A gateway moves to another directory whole or not at all, and never runs in both."""

from __future__ import annotations

import io
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import zstandard

from edge.appliance.first_boot.journal import FirstBootJournal, FirstBootSettings
from edge.appliance.main import run
from edge.appliance.replacing import moving
from edge.appliance.replacing.archive import HEAD, SUMS, ArchiveDamaged, ArchiveHead, read_head, unpack_archive
from edge.appliance.replacing.moving import UNPACKED, MoveRefused, give_up, move_in, move_out
from edge.appliance.store.offline import offline
from edge.broker.store.errors import StoreBusy, StoreMoved
from edge.broker.store.lock import LOCK_NAME, DirectoryLock
from edge.broker.store.moved import ARRIVING_NAME, MOVED_NAME, require_unmoved
from edge.broker.store.sqlite import FILE_NAME, open_store
from tests.support.power_cut import cut
from tests.support.simulated_kill import SimulatedKill
from tests.support.stores import make

__all__ = ["cut"]

FILES = {
    FILE_NAME: b"store",
    f"{FILE_NAME}-wal": b"log",
    "identity.pem": b"key",
    "configuration/1.yaml": b"kind: Gateway",
    "users.json": b"{}",
}
OWN = {
    LOCK_NAME: b"1\n", "endpoints.json": b"{}", f"{FILE_NAME}-shm": b"memory", "first-boot/state.json": b"{}",
    "x.new": b"",
}  # fmt: skip
"""Files that do not go with the gateway."""


def old(folder: Path) -> Path:
    """Return the data directory of a stopped gateway."""
    for name, content in {**FILES, **OWN}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def fresh(folder: Path) -> Path:
    """Return the data directory of a new card, which has a gateway already."""
    for name in (FILE_NAME, "identity.pem", "configuration/9.yaml", "first-boot/state.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"of the new card")
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    left = (LOCK_NAME, MOVED_NAME)
    found = (path for path in folder.rglob("*") if path.is_file() and path.name not in left)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


ARRIVED = {**FILES, "first-boot/state.json": b"of the new card"}


def moved_out(data: Path, target: Path) -> ArchiveHead:
    return move_out(data, target, gateway="hall", epoch="e1", created="2026-11-29T12:00:00+00:00")


def test_gateway_arrives_with_all_that_is_its_own(tmp_path: Path) -> None:
    left, archive, data = old(tmp_path / "old"), tmp_path / "hall.gateway", fresh(tmp_path / "new")
    head = moved_out(left, archive)
    assert (head.gateway, head.bytes) == ("hall", sum(map(len, FILES.values())))
    assert archive.stat().st_mode & 0o777 == 0o600
    begun: list[str] = []
    mark = move_in(data, archive, lambda: begun.append("epoch"))
    assert (mark.id, begun) == (head.id, ["epoch"])
    assert tree(data) == ARRIVED
    require_unmoved(data)
    with pytest.raises(StoreMoved, match="was moved to"):
        require_unmoved(left)
    with pytest.raises(StoreMoved):
        open_store(left, post=lambda _: None)


def test_move_may_be_given_up_under_a_new_epoch(tmp_path: Path) -> None:
    left = old(tmp_path / "old")
    with pytest.raises(MoveRefused, match="was not moved"):
        give_up(left, lambda: None)
    moved_out(left, tmp_path / "hall.gateway")
    begun: list[str] = []
    give_up(left, lambda: begun.append("epoch"))
    assert begun == ["epoch"]
    require_unmoved(left)


def test_repeated_export_is_the_same_move(tmp_path: Path) -> None:
    left = old(tmp_path / "old")
    first = moved_out(left, tmp_path / "one")
    assert moved_out(left, tmp_path / "two").id == first.id
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_export_replaces_no_other_file(tmp_path: Path) -> None:
    """Also not the file of another gateway, which may be the only one."""
    left, other = old(tmp_path / "old"), old(tmp_path / "other")
    moved_out(other, tmp_path / "other.gateway")
    (tmp_path / "notes.txt").write_bytes(b"years")
    for name in ("other.gateway", "notes.txt"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(MoveRefused, match="of this move"):
            moved_out(left, tmp_path / name)
        assert (tmp_path / name).read_bytes() == before
    require_unmoved(left)
    moved_out(left, tmp_path / "hall.gateway")
    moved_out(left, tmp_path / "hall.gateway")


def test_interrupted_import_is_not_continued_with_another_file(tmp_path: Path) -> None:
    one, two, data = tmp_path / "one.gateway", tmp_path / "two.gateway", fresh(tmp_path / "new")
    moved_out(old(tmp_path / "old"), one)
    moved_out(old(tmp_path / "other"), two)

    def fail() -> None:
        raise SimulatedKill

    with pytest.raises(SimulatedKill):
        move_in(data, one, fail)
    with pytest.raises(MoveRefused, match="another move"):
        move_in(data, two, lambda: None)
    move_in(data, one, lambda: None)
    move_in(data, two, lambda: None)


def test_token_of_the_new_card_does_not_replace_the_identity(tmp_path: Path) -> None:
    """The set-up of the new card was running, and waits for a network."""
    archive, data = tmp_path / "hall.gateway", fresh(tmp_path / "new")
    moved_out(old(tmp_path / "old"), archive)
    wanted = FirstBootSettings(
        settings="digest", name="pi5", url="amqps://hub.example", token="one use", forward=(), keep_free=None
    )
    (data / "first-boot/wanted.json").write_bytes(msgspec.json.encode(wanted))
    running = FirstBootJournal(data)
    running.begin(wanted)
    running.note(trouble="no network", next_step="look at the cable")
    move_in(data, archive, lambda: None)
    for journal in (FirstBootJournal(data), running):
        journal.read()
        journal.begin(wanted)
        assert (journal.state.configured, journal.state.trouble) == (True, "")
    journal.begin(msgspec.structs.replace(wanted, settings="of another day"))
    assert not journal.state.configured, "settings that are given later apply"


def test_running_gateway_is_left_alone(tmp_path: Path) -> None:
    left = old(tmp_path / "old")
    lock = DirectoryLock(left)
    with pytest.raises(StoreBusy):
        moved_out(left, tmp_path / "hall.gateway")
    lock.release()
    assert not (tmp_path / "hall.gateway").exists()


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", MOVED_NAME, LOCK_NAME, "first-boot/wanted.json", "."])
def test_hostile_archive_writes_nothing_outside(tmp_path: Path, name: str) -> None:
    head = ArchiveHead(format=1, id="1", gateway="x", epoch="", version="", created="", bytes=1)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for member, content in ((HEAD, msgspec.json.encode(head)), (name, b"x"), (SUMS, b"{}")):
            info = tarfile.TarInfo(member)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    source, data = tmp_path / "file", fresh(tmp_path / "new")
    source.write_bytes(zstandard.compress(packed.getvalue()))
    before = tree(tmp_path)
    with pytest.raises(ArchiveDamaged):
        move_in(data, source, lambda: None)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE])
def test_archive_holds_files_only(tmp_path: Path, kind: bytes) -> None:
    head = ArchiveHead(format=1, id="1", gateway="x", epoch="", version="", created="", bytes=1)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        info = tarfile.TarInfo(HEAD)
        info.size = len(msgspec.json.encode(head))
        archive.addfile(info, io.BytesIO(msgspec.json.encode(head)))
        link = tarfile.TarInfo("identity.pem")
        link.type, link.linkname = kind, "/etc/shadow"
        archive.addfile(link)
    (tmp_path / "file").write_bytes(zstandard.compress(packed.getvalue()))
    with pytest.raises(ArchiveDamaged, match="is not a file"):
        unpack_archive(tmp_path / "file", tmp_path / "out")


def test_truncated_or_changed_archive_changes_nothing(tmp_path: Path) -> None:
    archive, data = tmp_path / "hall.gateway", fresh(tmp_path / "new")
    moved_out(old(tmp_path / "old"), archive)
    whole, before = archive.read_bytes(), tree(data)
    damaged = [whole[:length] for length in range(0, len(whole) - 1, 61)]
    damaged += [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in range(20, len(whole), 53)]
    for content in damaged:
        archive.write_bytes(content)
        try:
            move_in(data, archive, lambda: None)
        except ArchiveDamaged:
            assert tree(data) == before
        else:  # a bit without a meaning, such as one of the compressed frame's header
            assert tree(data) == ARRIVED
            before = tree(data)
    archive.write_bytes(whole)
    assert read_head(archive).gateway == "hall"


def test_archive_of_real_size_is_damaged_in_a_files_content(tmp_path: Path) -> None:
    """Not only in the first block, which holds the description."""
    archive, left, data = tmp_path / "hall.gateway", old(tmp_path / "old"), fresh(tmp_path / "new")
    (left / FILE_NAME).write_bytes(random.Random(1).randbytes(300_000))
    moved_out(left, archive)
    whole, before = archive.read_bytes(), tree(data)
    place = whole.index(zstandard.MAGIC_NUMBER.to_bytes(4, "little")) + 4
    damaged = [whole[:length] for length in range(0, len(whole) - 1, 29_989)]
    damaged += [
        whole[:place] + b"\xff" * 40_000 + whole[place + 40_000 :] for place in range(place, len(whole), 50_021)
    ]
    for content in damaged:
        archive.write_bytes(content)
        with pytest.raises(ArchiveDamaged):
            move_in(data, archive, lambda: None)
        assert tree(data) == before


def test_archive_without_members_is_no_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = io.BytesIO()
    tarfile.open(fileobj=packed, mode="w").close()
    (tmp_path / "file").write_bytes(zstandard.compress(packed.getvalue()))
    assert run(["replace", "import", str(tmp_path / "file"), "--data", str(tmp_path / "new"), "--yes"]) == 4
    assert "the file cannot be used: it is empty" in capsys.readouterr().err


def test_other_folder_keeps_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, home = tmp_path / "hall.gateway", tmp_path / "home"
    moved_out(old(tmp_path / "old"), archive)
    (home / "photos").mkdir(parents=True)
    (home / "thesis.txt").write_bytes(b"years")
    assert run(["replace", "import", str(archive), "--data", str(home), "--yes"]) == 1
    assert "is not a gateway's data directory" in capsys.readouterr().err
    with pytest.raises(MoveRefused, match="such as photos"):
        move_in(home, archive, lambda: None)
    assert sorted(os.listdir(home)) == ["photos", "thesis.txt"]


def test_empty_folder_becomes_the_gateways(tmp_path: Path, cut: Callable[[int], None]) -> None:
    """Also after an interruption before the mark, which leaves unpacked files."""
    archive = tmp_path / "hall.gateway"
    moved_out(old(tmp_path / "old"), archive)
    cuts = 0
    for count in range(1, 400):
        data = tmp_path / str(count)
        cut(count)
        try:
            move_in(data, archive, lambda: None)
        except SimulatedKill:
            cuts += 1
        else:
            break
        finally:
            cut(1 << 30)
        if not (data / ARRIVING_NAME).exists():
            move_in(data, archive, lambda: None)
    assert cuts > 20


def test_archive_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    head = {"format": 2, "id": "", "gateway": "", "epoch": "", "version": "", "created": "", "bytes": 0}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        info = tarfile.TarInfo(HEAD)
        info.size = len(msgspec.json.encode(head))
        archive.addfile(info, io.BytesIO(msgspec.json.encode(head)))
    (tmp_path / "file").write_bytes(zstandard.compress(packed.getvalue()))
    with pytest.raises(ArchiveDamaged, match="needs a newer program"):
        read_head(tmp_path / "file")


def test_power_cut_during_the_export_leaves_one_place_to_run(tmp_path: Path, cut: Callable[[int], None]) -> None:
    """The archive has its name only when the old directory is marked."""
    cuts = 0
    for count in range(1, 200):
        left, archive = old(tmp_path / str(count) / "old"), tmp_path / str(count) / "hall.gateway"
        cut(count)
        try:
            moved_out(left, archive)
        except SimulatedKill:
            cuts += 1
        else:
            break
        finally:
            cut(1 << 30)
        assert not archive.exists() or (left / MOVED_NAME).exists()
        moved_out(left, archive)
        data = fresh(tmp_path / str(count) / "new")
        move_in(data, archive, lambda: None)
        assert tree(data) == ARRIVED
    assert cuts > 5


def test_power_cut_during_the_import_is_continued(tmp_path: Path, cut: Callable[[int], None]) -> None:
    archive = tmp_path / "hall.gateway"
    moved_out(old(tmp_path / "old"), archive)
    cuts = 0
    for count in range(1, 400):
        data = fresh(tmp_path / str(count))
        before, begun = tree(data), list[int]()

        def begin(number: int = count, into: list[int] = begun) -> None:
            into.append(number)

        cut(count)
        try:
            move_in(data, archive, begin)
        except SimulatedKill:
            cuts += 1
        else:
            break
        finally:
            cut(1 << 30)
        if (data / ARRIVING_NAME).exists():
            with pytest.raises(StoreMoved, match="was interrupted"):
                require_unmoved(data)
            move_in(data, None, begin)
            assert begun
        else:
            content = {name: each for name, each in tree(data).items() if UNPACKED not in name}
            assert {name: each for name, each in content.items() if not name.endswith(".new")} == before or begun
            if not begun:
                move_in(data, archive, begin)
        found = {name: each for name, each in tree(data).items() if not name.endswith(".new")}
        assert found == ARRIVED, f"before change {count}"
    assert cuts > 20


def test_power_cut_after_the_store_was_opened_keeps_its_log(tmp_path: Path) -> None:
    """The new epoch is in the store's log, which a repeated import must not remove."""
    archive, data = tmp_path / "hall.gateway", fresh(tmp_path / "new")
    left = old(tmp_path / "old")
    (left / f"{FILE_NAME}-wal").unlink()
    moved_out(left, archive)

    def begin() -> None:
        (data / f"{FILE_NAME}-wal").write_bytes(b"new epoch")
        raise SimulatedKill

    with pytest.raises(SimulatedKill):
        move_in(data, archive, begin)
    move_in(data, None, lambda: None)
    assert (data / f"{FILE_NAME}-wal").read_bytes() == b"new epoch"
    assert not (data / ARRIVING_NAME).exists()


def test_too_many_files_are_refused_before_the_gateway_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = old(tmp_path / "old")
    monkeypatch.setattr(moving, "DESCRIPTION_BYTES_MAX", 500)
    with pytest.raises(MoveRefused, match="too many files"):
        moved_out(left, tmp_path / "hall.gateway")
    require_unmoved(left)
    assert not list(tmp_path.glob("hall*"))


def test_command_refuses_to_discard_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left, data = tmp_path / "old", tmp_path / "new"
    for each in (left, data):
        open_store(each, post=lambda _: None).close()
    archive = tmp_path / "hall.gateway"
    assert run(["replace", "export", str(left / "x"), "--data", str(left), "--yes"]) == 1
    assert "is in the data directory" in capsys.readouterr().err
    assert run(["replace", "export", str(archive), "--data", str(left), "--yes"]) == 0
    assert run(["store", "new-epoch", "--data", str(left), "--yes"]) == 1
    assert "must not run here too" in capsys.readouterr().err
    assert run(["replace", "import", str(tmp_path / "nowhere"), "--data", str(data), "--yes"]) == 2
    assert run(["replace", "import", "--data", str(data), "--yes"]) == 2
    assert run(["replace", "import", str(archive), "--data", str(data), "--yes"]) == 0
    with offline(data) as opened:
        assert opened.store.lineage.epochs.current
    assert run(["replace", "cancel", "--data", str(left), "--yes"]) == 0
    assert run(["replace", "cancel", "--data", str(left), "--yes"]) == 1
    assert os.listdir(tmp_path / "new")


def test_messages_of_a_tenant_are_not_discarded_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The own store is empty, and a further space has acknowledged messages."""
    left, data, archive = tmp_path / "old", tmp_path / "new", tmp_path / "hall.gateway"
    for each in (left, data):
        open_store(each, post=lambda _: None).close()
    make(data / "spaces" / "acme")
    before = (data / "spaces" / "acme" / FILE_NAME).read_bytes()
    assert run(["replace", "export", str(archive), "--data", str(left), "--yes"]) == 0
    assert run(["replace", "import", str(archive), "--data", str(data), "--yes"]) == 1
    assert "messages, which would be lost" in capsys.readouterr().err
    assert (data / "spaces" / "acme" / FILE_NAME).read_bytes() == before
    assert run(["replace", "import", str(archive), "--data", str(data), "--discard", "--yes"]) == 0
    assert not (data / "spaces").exists()
