"""The README's two commands on a fresh Debian: `./waypost demo` and `./waypost test`.

Each release is built with debootstrap in a folder and entered with chroot. It gets a git clone of the checkout, and
from this machine only the access to packages: apt's and pip's configuration, and the certificate authorities. Takes ten
minutes and more for each release: `./waypost test tests/system/test_fresh_debian.py -m slow`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

TRUSTED = Path("etc/ssl/certs/ca-certificates.crt")
OWN_AUTHORITIES = Path("usr/local/share/ca-certificates")
CONFIGURATION = ("etc/apt/apt.conf.d", "etc/pip.conf", "etc/resolv.conf", "etc/hosts")
PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "PIP_INDEX_URL", "PIP_PROXY", "WAYPOST_IVY_SETTINGS")
"""Variables of this machine for the access to packages, in upper and lower case."""
MOUNTS = """mount --make-rprivate / && mount -t proc proc "$1/proc" &&
mount --rbind /dev "$1/dev" && mount --rbind /sys "$1/sys" && exec chroot "$@\""""
"""Without /sys, psutil finds no disk, and the demo's device that measures disks ends."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(5_400),
    pytest.mark.skipif(os.geteuid() != 0, reason="chroot and debootstrap need root"),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="debootstrap is not installed (Debian package)"),
]


def mirror() -> list[str]:
    """Return this machine's Debian mirror as options of debootstrap; empty for the default."""
    files = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    words = [
        word for file in files if file.is_file() for line in file.read_text().splitlines() for word in line.split()
    ]
    addresses = (word.rstrip("/") for word in words if word.startswith(("http://", "https://")))
    return [address for address in addresses if address.endswith("/debian")][:1]


class FreshDebian:
    """Debian of one release in a folder."""

    def __init__(self, root: Path, release: str) -> None:
        self.root = root
        packages = "--include=ca-certificates,git"
        subprocess.run(
            ["debootstrap", "--variant=minbase", packages, release, str(root), *mirror()], check=True, timeout=1_200
        )
        for name in CONFIGURATION:
            source, target = Path("/", name), root / name
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            elif source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
        if Path("/", OWN_AUTHORITIES).is_dir():
            shutil.copytree(Path("/", OWN_AUTHORITIES), root / OWN_AUTHORITIES, dirs_exist_ok=True)
            self.run("update-ca-certificates")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(root / "srv/waypost")], check=True)

    def run(self, *command: str) -> str:
        """Run a command in it, in the checkout if there is one; return its output."""
        names = (name for each in PASSED_ON for name in (each, each.upper()))
        settings = [f"{name}={os.environ[name]}" for name in dict.fromkeys(names) if name in os.environ]
        trusted = [f"{name}=/{TRUSTED}" for name in ("PIP_CERT", "SSL_CERT_FILE")]
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        inside = ["env", "-i", "-C", "/srv", "HOME=/srv", "LANG=C.UTF-8", path, *trusted, *settings, *command]
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", MOUNTS, "-", str(self.root), *inside],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3_600, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-4_000:]
        return done.stdout


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def debian(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshDebian]:
    root = tmp_path_factory.mktemp(request.param)
    yield FreshDebian(root, request.param)
    shutil.rmtree(root)


def test_a_gateway_needs_no_java(debian: FreshDebian) -> None:
    assert "waypost 0." in debian.run("./waypost/waypost", "--version")
    debian.run("./waypost/waypost", "init", "--data", "gw", "--name", "gw")
    assert not (debian.root / "usr/lib/jvm").exists()


def test_the_demonstration_proves_what_was_acknowledged(debian: FreshDebian) -> None:
    said = debian.run("./waypost/waypost", "demo", "--once", "--out", "out")
    assert "Everything acknowledged is in the lake, once." in said
    assert (debian.root / "srv/out/report.html").stat().st_size


def test_the_tests_pass(debian: FreshDebian) -> None:
    assert " passed" in debian.run("./waypost/waypost", "test", "tests/unit", "-q", "-n", "2", "--dist", "loadfile")
