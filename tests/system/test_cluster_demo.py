"""`./waypost hub cluster-demo`: hubs as replicas restart under traffic, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.demo.cluster import programs
from tests.demo.cluster.balancer import HubPorts, configuration
from tests.demo.cluster.programs import find_programs
from tests.demo.errors import DemoError
from tests.demo.ports import free_ports
from tests.support.keycloak import need_keycloak
from tests.support.processes import processes_of, wait_until

DEMO_S_MAX = 400


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the demo with its temporary files in this folder; skip the test without its programs."""
    try:
        find_programs()
    except DemoError as why:
        pytest.skip(str(why))
    command = [sys.executable, "-P", "-m", "tests.demo.cluster", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    """Folder that the user of PostgreSQL reaches: other test runs close that of `tmp_path`."""
    with tempfile.TemporaryDirectory(prefix="waypost-test-", ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o711)
        yield Path(made)


@pytest.mark.parametrize(
    ("keycloak", "missing"),
    [(False, "haproxy postgresql util-linux"), (True, "util-linux default-jre-headless maven")],
)
def test_missing_programs_are_one_command(
    keycloak: bool, missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "SYSTEM_FOLDERS", str(tmp_path))
    monkeypatch.setattr(programs, "SERVERS", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DemoError) as error:
        find_programs(keycloak=keycloak)
    assert str(error.value).endswith(missing)


@pytest.mark.parametrize("tls", [True, False])
def test_haproxy_accepts_its_configuration(tls: bool, tmp_path: Path) -> None:
    haproxy = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if haproxy is None:
        pytest.skip("haproxy is not installed")
    ports = free_ports(7)
    hubs = [HubPorts("hub1", *ports[:2]), HubPorts("hub2", *ports[2:4])]
    file = tmp_path / "haproxy.cfg"
    file.write_text(configuration(hubs, *ports[4:], tls=tls))
    done = subprocess.run([haproxy, "-c", "-f", file], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_restarting_replicas_lose_nothing_and_land_nothing_twice(folder: Path) -> None:
    demo = start(folder, "--once", "--gateways", "2", "--seconds", "4")
    output, _ = demo.communicate(timeout=DEMO_S_MAX)
    assert demo.returncode == 0, output
    assert "hub3 restarts" in output
    assert ", twice 0, unexplained gaps 0" in output
    assert not processes_of(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_people_of_keycloak_see_the_same_at_every_replica(folder: Path) -> None:
    need_keycloak()
    demo = start(folder, "--once", "--gateways", "2", "--seconds", "4", "--keycloak")
    output, _ = demo.communicate(timeout=2 * DEMO_S_MAX)
    assert demo.returncode == 0, output
    assert "operator 2/2/2, to the viewer 2/2/2, to a person without a role 0/0/0" in output
    assert not processes_of(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_interrupt_while_keycloak_starts_ends_everything(folder: Path) -> None:
    need_keycloak()
    demo = start(folder, "--hubs", "1", "--gateways", "1", "--keycloak")
    wait_until(
        lambda: demo.poll() is not None or any(log.stat().st_size for log in folder.glob("*/logs/keycloak.log")),
        timeout_s=DEMO_S_MAX,
        what="Keycloak starts",
    )
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=120)
    assert demo.returncode == 130, output
    assert not processes_of(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_interrupt_ends_everything(folder: Path) -> None:
    demo = start(folder, "--hubs", "1", "--gateways", "1")
    assert demo.stdout is not None
    lines = []
    for line in demo.stdout:
        lines.append(line)
        if "Ctrl-C" in line:
            break
    assert any("gateways connect to" in line for line in lines), "".join(lines)
    assert len(processes_of(folder)) > 5
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=120)
    assert demo.returncode == 130
    assert not processes_of(folder)
    assert list(folder.iterdir()) == []
