"""Update from Debian 12 to Debian 13 and back, while the hub is away: no acknowledged message is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from images.building import build_bundle, build_image
from images.debian import DEBIAN_12, DEBIAN_13, DebianRelease, Mirror
from images.steps import BuildSteps, default_cache
from tests.images.emulated import BOOT_S, MARKS
from tests.images.test_updates import NEXT, Updated, Variant, made
from tests.support.enrolled import EnrolledFleet
from tests.support.processes import wait_until

pytestmark = [*MARKS, pytest.mark.skipif(shutil.which("rauc") is None, reason="rauc is not installed")]

BACK = Variant("0.4.0", NEXT.change.replace(NEXT.version, "0.4.0"))
BACKLOG = 100


def bundle_of(release: DebianRelease) -> Path:
    cache = default_cache()
    return build_bundle(BuildSteps(cache), cache, Mirror(release=release), (None, None)).file


def test_update_to_debian_13_and_back_keeps_the_backlog(tmp_path: Path, fleet: EnrolledFleet) -> None:
    cache = default_cache()
    image = build_image(BuildSteps(cache), cache, "qemu", Mirror(release=DEBIAN_12), (None, None))
    gateway = Updated(tmp_path, image, fleet)
    try:
        gateway.serve()
        wait_until(lambda: gateway.acknowledged >= BACKLOG, timeout_s=BOOT_S, what="messages before the hub goes away")
        fleet.hub.stop()
        for variant, release, letter in ((NEXT, DEBIAN_13, "B"), (BACK, DEBIAN_12, "A")):
            more = gateway.acknowledged + BACKLOG
            wait_until(lambda n=more: gateway.acknowledged >= n, timeout_s=BOOT_S, what="a backlog")  # type: ignore[misc]
            gateway.install(made(variant, bundle_of(release), tmp_path / variant.version).file)
            found = gateway.wait_until_decided(variant.version)
            assert (found["last"]["state"], found["booted"]["letter"]) == ("kept", letter)
            assert gateway.shell("cat", "/etc/debian_version").startswith(f"{release.number}.")
            gateway.wait_until_served()
            gateway.say(f"Debian {release.number} serves")
        fleet.hub.start()
        gateway.drain()
    finally:
        gateway.end()
