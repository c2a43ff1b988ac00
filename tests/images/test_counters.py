"""Power cuts while U-Boot writes its counters: the slot of the last complete order is chosen, never an older system.

The card has no system, only the boot partition, so one start takes seconds.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from images.card import partition
from images.disk.building import ENVIRONMENT_BYTES
from images.programs import find
from tests.images.boot_card import FAT_BEGIN, PROGRAMS, copied, make_card, started
from tests.images.write_log import Write, WriteLog

pytestmark = [
    pytest.mark.images,
    pytest.mark.timeout(3600),
    *(pytest.mark.skipif(find(name) is None, reason=f"{name} is not installed") for name in PROGRAMS),
]

CUTS_MAX: Final = 24
"""Cuts that are tried, spread over all writes."""
UPDATED: Final = "BOOT_ORDER=B A\nBOOT_A_LEFT=3\nBOOT_B_LEFT=3\n"
"""Counters after an update: slot B is the system, and slot A has an older one."""


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Card with a boot partition alone, and the counters of an updated gateway."""
    return make_card(tmp_path_factory.mktemp("card"), UPDATED)


def cuts(writes: Sequence[Write]) -> Iterator[Sequence[Write]]:
    """Yield what a power cut leaves of writes in order: some complete ones, and the first sectors of the next."""
    for number, write in enumerate(writes):
        sectors = write.size // partition.SECTOR
        for kept in sorted({0, 1, sectors // 2, sectors - 1} - {sectors}):
            yield [*writes[:number], write._replace(size=kept * partition.SECTOR)]
    yield list(writes)


def test_damaged_counters_are_replaced_by_their_copy(card: Path, tmp_path: Path) -> None:
    copy = copied(card, tmp_path)
    for damaged in (b"\xff" * ENVIRONMENT_BYTES, b""):
        partition.write_file(copy, FAT_BEGIN, "rauc.env", damaged)
        told = started(copy, tmp_path)
        assert "rauc.env is damaged" in told
        assert "waypost: slot B (A 3, B 2 tries left)" in told


def test_defaults_apply_without_either(card: Path, tmp_path: Path) -> None:
    copy = copied(card, tmp_path)
    for name in ("rauc.env", "rauc.bak"):
        partition.write_file(copy, FAT_BEGIN, name, b"\xff" * ENVIRONMENT_BYTES)
    told = started(copy, tmp_path)
    assert "the counters are damaged, defaults are taken" in told
    assert "waypost: slot A (A 2, B 3 tries left)" in told


def test_power_cut_in_any_write_of_the_boot_loader_keeps_the_order(card: Path, tmp_path: Path) -> None:
    copy, log = copied(card, tmp_path), WriteLog(tmp_path / "writes")
    told = started(copy, tmp_path, log)
    assert "waypost: slot B (A 3, B 2 tries left)" in told
    writes = log.in_order()
    assert writes, "U-Boot writes the counters"
    left = list(cuts(writes))
    step = max(1, len(left) // CUTS_MAX)
    print(f"{len(writes)} writes of {sum(each.size for each in writes)} bytes, {len(left[::step])} cuts", flush=True)
    for number, each in enumerate(left[::step]):
        folder = tmp_path / f"cut-{number}"
        after = copied(card, folder)
        log.write(each, after)
        told = started(after, folder)
        assert "waypost: slot B (A 3, B " in told, f"cut {number}: {told}"
        assert "defaults are taken" not in told, f"cut {number}: {told}"
        shutil.rmtree(folder)
