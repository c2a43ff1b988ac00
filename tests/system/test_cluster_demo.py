"""`./waypost hub cluster-demo`: hubs as replicas restart under traffic, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.demo.cluster import programs
from tests.demo.cluster.balancer import HubPorts, configuration
from tests.demo.cluster.programs import find_programs
from tests.demo.errors import DemoError
from tests.demo.ports import free_ports
from tests.support.processes import processes_of

DEMO_S_MAX = 400


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the demo with its temporary files in this folder; skip the test without its programs."""
    try:
        find_programs()
    except DemoError as why:
        pytest.skip(str(why))
    command = [sys.executable, "-P", "-m", "tests.demo.cluster", *arguments]
    folder.chmod(0o711)
    for parent in folder.parents[:3]:  # PostgreSQL runs as another user
        parent.chmod(parent.stat().st_mode | 0o011)
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_missing_programs_are_one_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "SYSTEM_FOLDERS", str(tmp_path))
    monkeypatch.setattr(programs, "SERVERS", tmp_path)
    with pytest.raises(DemoError, match="haproxy postgresql util-linux"):
        find_programs()


def test_haproxy_accepts_its_configuration(tmp_path: Path) -> None:
    haproxy = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if haproxy is None:
        pytest.skip("haproxy is not installed")
    ports = free_ports(7)
    hubs = [HubPorts("hub1", *ports[:2]), HubPorts("hub2", *ports[2:4])]
    file = tmp_path / "haproxy.cfg"
    file.write_text(configuration(hubs, *ports[4:]))
    done = subprocess.run([haproxy, "-c", "-f", file], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_restarting_replicas_lose_nothing_and_land_nothing_twice(tmp_path: Path) -> None:
    demo = start(tmp_path, "--once", "--gateways", "2", "--seconds", "4")
    output, _ = demo.communicate(timeout=DEMO_S_MAX)
    assert demo.returncode == 0, output
    assert "hub3 restarts" in output
    assert ", twice 0, unexplained gaps 0" in output
    assert not processes_of(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_interrupt_ends_everything(tmp_path: Path) -> None:
    demo = start(tmp_path, "--hubs", "1", "--gateways", "1")
    assert demo.stdout is not None
    lines = []
    for line in demo.stdout:
        lines.append(line)
        if "Ctrl-C" in line:
            break
    assert any("gateways connect to" in line for line in lines), "".join(lines)
    assert len(processes_of(tmp_path)) > 5
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=120)
    assert demo.returncode == 130
    assert not processes_of(tmp_path)
    assert list(tmp_path.iterdir()) == []
