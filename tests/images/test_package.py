"""The Debian package on a system without Python: it serves, keeps its data when removed, and asks before a purge."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from images.debian import OLDEST
from images.frozen import freezing
from images.package import deb
from images.programs import run_for_output
from images.steps import BuildSteps, default_cache

pytestmark = [
    pytest.mark.images,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="not root"),
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed"),
    pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed"),
]

DATA = "var/lib/waypost"

SERVE = """
ip link set lo up
chroot "$1" setpriv --reuid=waypost --regid=waypost --init-groups waypost run --data /var/lib/waypost > "$2" &
gateway=$!
for _ in $(seq 600); do grep -q ^ready "$2" && break; sleep 0.2; done
timeout 60 mosquitto_pub -q 1 -u pump7 -P "$3" -t plant/pump7/temp -m 21.5 && echo acknowledged
kill $gateway
wait $gateway && echo drained
"""
"""Runs in its own network namespace with the package's ports."""


@pytest.fixture(scope="module")
def package() -> Path:
    steps = BuildSteps(default_cache())
    return deb.build_package(steps, freezing.freeze(steps), "x86_64")


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Debian with only the package's dependencies."""
    root = tmp_path_factory.mktemp("debian") / "root"
    addresses = run_for_output("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Origin: Debian")
    lines = {f"deb {line} main\n" for line in addresses.splitlines() if line.split()[-1] == OLDEST.suite}
    command = ["mmdebstrap", "--variant=apt", "--mode=root", "--include=adduser,debconf", OLDEST.suite, str(root), "-"]
    subprocess.run(command, input="".join(lines), text=True, check=True, capture_output=True, timeout=1200)
    return root


def inside(root: Path, *words: str, check: bool = True) -> str:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/"}
    done = subprocess.run(
        ["chroot", str(root), *words], capture_output=True, text=True, timeout=600, check=False, env=environment
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_package_serves_and_its_removal_keeps_the_data(debian: Path, package: Path, tmp_path: Path) -> None:
    assert not list((debian / "usr" / "bin").glob("python3*"))
    shutil.copy(package, debian / "waypost.deb")
    inside(debian, "apt-get", "install", "-y", "/waypost.deb")
    assert (debian / "etc/systemd/system/multi-user.target.wants/waypost.service").is_symlink()
    # Do the work of systemd before a start.
    inside(debian, "install", "-d", "-m", "0700", "-o", "waypost", "-g", "waypost", f"/{DATA}")
    for _ in range(2):
        inside(debian, "runuser", "-u", "waypost", "--", "/usr/lib/waypost/prepare")
    device = ("waypost", "user", "add", "pump7", "--data", f"/{DATA}", "--profile", "sensor")
    added = inside(debian, "runuser", "-u", "waypost", "--", *device)
    password = added.partition("password: ")[2].split()[0]
    served = subprocess.run(
        ["unshare", "--net", "bash", "-c", SERVE, "-", str(debian), str(tmp_path / "said"), password],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert served.stdout.split() == ["acknowledged", "drained"], served.stderr
    inside(debian, "apt-get", "remove", "-y", "waypost")
    assert not (debian / "usr/bin/waypost").exists()
    assert (debian / DATA / "store.sqlite").exists()


def test_purge_asks_and_keeps_the_data_without_an_answer(debian: Path, package: Path) -> None:
    shutil.copy(package, debian / "waypost.deb")
    inside(debian, "apt-get", "install", "-y", "/waypost.deb")
    (debian / DATA).mkdir(exist_ok=True)
    assert f"kept /{DATA}" in inside(debian, "apt-get", "purge", "-y", "waypost")
    assert (debian / DATA).is_dir()
    inside(debian, "apt-get", "install", "-y", "/waypost.deb")
    yes = "echo waypost waypost/remove-data boolean true | debconf-set-selections"
    inside(debian, "sh", "-c", yes)
    assert f"removed /{DATA}" in inside(debian, "apt-get", "purge", "-y", "waypost")
    assert not (debian / DATA).exists()
