"""The host key for SSH is made once, even when the power is cut."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from images.programs import find
from images.rootfs.building import OVERLAY

UNIT = OVERLAY / "etc/systemd/system/ssh.service.d/waypost.conf"

pytestmark = pytest.mark.skipif(find("ssh-keygen") is None, reason="ssh-keygen is not installed")


def start(data: Path) -> str:
    """Run the commands of the service's start; return the fingerprint of its key."""
    [command] = re.findall(r"(?m)^ExecStartPre=/bin/sh -c '(.*)'$", UNIT.read_text())
    words = ["sh", "-c", command.replace("/data/", f"{data}/").replace("/data;", f"{data};")]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL, timeout=60, capture_output=True)
    key = data / "ssh/host_ed25519"
    assert key.stat().st_mode & 0o077 == 0
    shown = ["ssh-keygen", "-l", "-f", str(key)]
    return subprocess.run(shown, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("left", [
    {}, {"host_ed25519": b""}, {"host_ed25519": b"", "host_ed25519.pub": b""},
    {"fresh": b"-----BEGIN OPENSSH PRIV", "fresh.pub": b""},
])  # fmt: skip
def test_host_key_torn_by_a_power_cut_is_recreated(tmp_path: Path, left: dict[str, bytes]) -> None:
    (tmp_path / "ssh").mkdir()
    for name, content in left.items():
        (tmp_path / "ssh" / name).write_bytes(content)
    first = start(tmp_path)
    assert start(tmp_path) == first, "it stays the same"
    assert not (tmp_path / "ssh/fresh").exists()
