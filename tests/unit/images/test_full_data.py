"""Root applies a card's settings and records an update although the gateway's user filled the data partition."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.appliance.first_boot.places import CardPaths
from edge.appliance.first_boot.settings import apply_settings
from edge.appliance.update.record import Update, UpdateRecord
from edge.card.text import document, text_of
from images.disk import building, filesystem
from images.programs import find

USER = 65534
FILL = "head -c 1G /dev/zero > fill; for number in $(seq 2000); do echo x > $number || exit 0; done"
SSH = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ3cQ2p2d0pXyJfYf0W2l1X9c1u2kq8YwJ3gq0Y2m7aB ann"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="not root"),
    pytest.mark.skipif(find("mke2fs") is None or find("setpriv") is None, reason="e2fsprogs is not installed"),
]


@contextlib.contextmanager
def filled(root: Path, *, journal: bool) -> Iterator[None]:
    """Mount the partition of a fresh card, without free space for a user."""
    tree, image = root / "tree", root / "data.ext4"
    (tree / "waypost").mkdir(parents=True)
    os.chown(tree / "waypost", USER, USER)
    filesystem.make(
        image, tree, mebibytes=building.DATA_MIB, label="waypost-data", date=0, journal=journal, log=root / "log"
    )
    data, own = root / "data", root / "var/lib/waypost"
    for place in (data, own):
        place.mkdir(parents=True)
    with contextlib.ExitStack() as mounted:
        for words in (("-o", "loop", str(image), str(data)), ("--bind", str(data / "waypost"), str(own))):
            if subprocess.run(["mount", *words], capture_output=True, check=False).returncode:
                pytest.skip("no right to mount, or no loop devices")
            mounted.callback(subprocess.run, ["umount", words[-1]], check=True)
        as_user = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "sh", "-c", FILL)
        said = subprocess.run(as_user, cwd=own, capture_output=True, text=True, check=False).stderr
        assert "No space left" in said
        yield


def started(root: Path) -> None:
    """Apply new settings and record an update, as a start does."""
    places = CardPaths(root)
    places.card.mkdir(parents=True, exist_ok=True)
    places.file.write_text(text_of(document("hall", {"hostname": "hall-1", "sshKeys": [SSH]})))
    found = apply_settings(places)
    assert (found.new, found.trouble, found.unread) == (True, None, None)
    UpdateRecord(root).write(Update(slot="B", version="0.2.0", build="0" * 64, before="0.1.0", state="trial"))


def test_root_has_room_for_its_files(tmp_path: Path) -> None:
    with filled(tmp_path, journal=True):
        started(tmp_path)
        assert "ann" in (tmp_path / "data/ssh/authorized_keys").read_text()
        last = UpdateRecord(tmp_path).last()
        assert last is not None
        assert last.version == "0.2.0"


def test_write_fails_without_the_reserve(tmp_path: Path) -> None:
    with filled(tmp_path, journal=False), pytest.raises(OSError) as failed:  # noqa: PT011 - its number is looked at
        started(tmp_path)
    assert failed.value.errno == errno.ENOSPC
