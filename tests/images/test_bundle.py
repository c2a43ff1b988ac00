"""A locally built bundle, and RAUC itself with a card's system.conf: verification and installation in the other slot.

The local kernel may lack dm-verity, so a bundle of the format `plain` is installed; of `verity` only the signature is
checked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.appliance.update.record import UpdateRecord
from edge.appliance.update.slots import BundleInfo, SlotsError
from edge.appliance.update.updating import Updater
from images.disk import bundle, filesystem, signing
from images.disk.block_index import write_index
from images.disk.release_signing import ReleaseSigner
from tests.images.slotted import Slotted, make_system, packed

pytestmark = [
    pytest.mark.images,
    pytest.mark.skipif(os.geteuid() != 0, reason="not root"),
    pytest.mark.skipif(shutil.which("rauc") is None, reason="rauc is not installed"),
    pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="dbus is not installed"),
]


@pytest.fixture
def keys(tmp_path: Path) -> signing.SigningKeys:
    return signing.load_keys(tmp_path / "keys", None, None)


@pytest.fixture
def slotted(tmp_path: Path, keys: signing.SigningKeys, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slotted]:
    made = Slotted(tmp_path, keys, monkeypatch)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def system(tmp_path: Path) -> Path:
    return make_system(tmp_path / "system")


def test_bundle_is_written_completely_and_starts_next(
    slotted: Slotted, system: Path, keys: signing.SigningKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = packed(system, keys, "0.2.0")
    build_id = (system / "root.sha256").read_text().strip()
    assert slotted.rauc.inspect(str(signed)) == BundleInfo("0.2.0", build_id)
    monkeypatch.setattr(bundle, "MANIFEST", bundle.MANIFEST.replace("verity", "plain"))
    updating = Updater(slotted.rauc, UpdateRecord(tmp_path / "machine"), lambda: None)
    updating.install(str(packed(system, keys, "0.3.0")))
    found = slotted.rauc.slots()
    assert (found.other.version, found.other.build, found.first) == ("0.3.0", build_id, "rootfs.1")
    assert filesystem.compute_sha256(slotted.slot["B"]) == build_id
    assert not any(slotted.slot["A"].read_bytes())
    assert "BOOT_ORDER=B A" in slotted.environment.read_text()
    assert f"sha256={build_id}" in (tmp_path / "data/central.raucs").read_text()
    slotted.rauc.start_first("booted")
    slotted.rauc.mark_bad("other")
    assert (slotted.rauc.slots().other.good, slotted.rauc.slots().first) == (False, "rootfs.0")


def test_foreign_or_changed_bundle_is_refused(
    slotted: Slotted, system: Path, keys: signing.SigningKeys, tmp_path: Path
) -> None:
    forged = packed(system, signing.load_keys(tmp_path / "others", None, None), "6.6.6")
    changed = packed(system, keys, "0.2.0")
    with changed.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(bytes(20))
    for each in (forged, changed):
        with pytest.raises(SlotsError, match=r"(?i)signature|verif|parse|manifest"):
            slotted.rauc.inspect(str(each))
        with pytest.raises(SlotsError):
            slotted.rauc.install(str(each))
    assert not any(slotted.slot["B"].read_bytes())
    assert "BOOT_ORDER=A B" in slotted.environment.read_text()


def test_old_key_introduces_the_new_one(
    slotted: Slotted, system: Path, keys: signing.SigningKeys, tmp_path: Path
) -> None:
    """A gateway of each release meets bundles of both keys."""
    fresh = signing.load_keys(tmp_path / "fresh", None, None)
    both = signing.load_keys(tmp_path / "keys", None, None, [fresh.certificate])
    by_old, by_new = packed(system, both, "0.2.0"), packed(system, fresh, "0.3.0")
    accepted = {}
    for release, trusted in (("before", keys), ("between", both), ("after", fresh)):
        slotted.trust(trusted)
        accepted[release] = [each for each in (by_old, by_new) if is_accepted(slotted, each)]
    assert accepted == {"before": [by_old], "between": [by_old, by_new], "after": [by_new]}


def test_bundle_of_a_key_that_is_elsewhere_is_accepted_once_it_is_signed(slotted: Slotted, tmp_path: Path) -> None:
    """The building machine has the certificate of the release only; gateways refuse its own key."""
    release = signing.load_keys(tmp_path / "release", None, None)
    builder = signing.load_keys(tmp_path / "builder", None, release.certificate)
    system = make_system(tmp_path / "trusting", builder.keyring)
    made = packed(system, builder, "0.2.0")
    write_index(made, system / "root.ext4")
    slotted.trust(builder)
    assert not is_accepted(slotted, made)
    (tmp_path / "work").mkdir()
    signed = ReleaseSigner(release, builder.certificate, tmp_path / "work").sign_bundle(made)
    assert slotted.rauc.inspect(str(signed.file)) == BundleInfo("0.2.0", signed.build)


def is_accepted(slotted: Slotted, file: Path) -> bool:
    try:
        slotted.rauc.inspect(str(file))
    except SlotsError:
        return False
    return True
