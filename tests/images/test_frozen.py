"""A gateway with its own Python: built from this checkout, started where no Python is set up, killed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from images.debian import Mirror
from images.frozen import cross, freezing
from images.steps import BuildSteps, default_cache, remove
from tests.bench.load import LoadGenerators
from tests.bench.sessions import absent_session
from tests.support.processes import Waypost, cpu_s, edge

pytestmark = [
    pytest.mark.images,
    pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed"),
    pytest.mark.timeout(1200),
]

READY_CPU_S = 1.5
"""Processor time from the start of the process to its ready line; wall time depends on other load."""
MESSAGES = 20
LOAD = ("-c", "50", "-q", "1", "-w", "20", "-s", "100")
TURNS = 10
SHARE_MAX = 1.05
"""Largest cost of a message, relative to a gateway from a checkout."""


@pytest.fixture(scope="module")
def frozen() -> Path:
    return freezing.freeze(BuildSteps(default_cache()))


def gateway(frozen: Path, folder: Path) -> Waypost:
    """Start a gateway without this environment."""
    made = Waypost(folder / "log", "run", "--dev", "--data", str(folder / "data"), "--mqtt=127.0.0.1:0")
    made.arguments[:3] = [str(frozen / freezing.PROGRAM)]
    made.arguments += ["--amqp=127.0.0.1:0", "--http=127.0.0.1:0"]
    made.environment = {"PATH": "/nonexistent"}
    return made


def command(frozen: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = str(frozen / freezing.PROGRAM)
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=120, check=False, env={"PATH": "/nonexistent"}
    )


def test_acknowledged_messages_survive_a_kill(frozen: Path, tmp_path: Path) -> None:
    with gateway(frozen, tmp_path) as running:
        for number in range(MESSAGES):
            subprocess.run(
                ["mosquitto_pub", "-p", str(running.port("mqtt")), "-q", "1", "-t", "queue/jobs", "-m", str(number)],
                check=True, timeout=60,
            )  # fmt: skip
        running.kill()
    with gateway(frozen, tmp_path) as running:
        taken = subprocess.run(
            ["mosquitto_sub", "-p", str(running.port("mqtt")), "-q", "1", "-t", "queue/jobs", "-C", str(MESSAGES)],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert taken.stdout.split() == [str(number) for number in range(MESSAGES)]
        assert running.stop() == 0


def test_gateway_is_ready_soon(frozen: Path, tmp_path: Path) -> None:
    with gateway(frozen, tmp_path) as running:
        assert cpu_s(running.pid) < READY_CPU_S


@pytest.mark.parametrize(
    ("kind", "messages", "more"),
    [("stored", 500_000, ()), ("through", 1_000_000, ("-S", "1", "-f", "load/#"))],
    ids=["stored", "through"],
)
def test_message_costs_as_much_as_in_a_checkout(
    frozen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, messages: int, more: tuple[str, ...]
) -> None:
    """Compare the lowest processor time for a message, in alternating rounds: other load only adds to it."""
    load, spent = LoadGenerators(tmp_path), []
    folders = {name: tmp_path / name for name in ("frozen", "checkout")}
    for folder in folders.values():
        folder.mkdir()
    with gateway(frozen, folders["frozen"]) as one, edge(folders["checkout"], "data") as other:
        for _ in range(TURNS):
            took = []
            for each in (one, other):
                if kind == "stored":
                    absent_session(each)
                before = cpu_s(each.pid)
                load.run("mqttload", each.port("mqtt"), "-n", str(messages), *LOAD, *more)
                took.append((cpu_s(each.pid) - before) / messages * 1e6)
            spent.append(tuple(took))
    ratio = min(ours for ours, _ in spent) / min(theirs for _, theirs in spent)
    with capsys.disabled():
        shown = ", ".join(f"{ours:.2f} {theirs:.2f}" for ours, theirs in spent)
        print(f"\n{kind}: {ratio:.3f} of a checkout's; us a message, by turns: {shown}")
    assert ratio < SHARE_MAX


def test_contents_are_complete(frozen: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    said = command(frozen, "doctor", "--json", "--data", str(tmp_path / "data")).stdout
    assert [path.name for path in frozen.rglob("*_native*")] == ["_native.abi3.so"]
    assert not list(frozen.rglob("*.[ch]"))
    assert "not installed" not in said
    assert "SQLite 3." in said
    assert '"Gateway"' in command(frozen, "schema").stdout
    hub = command(frozen, "hub", "run")
    assert (hub.returncode, "only runs a gateway" in hub.stderr) == (2, True), hub.stderr


@pytest.mark.timeout(5400)
@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
@pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed")
@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-gcc") is None, reason="gcc-aarch64-linux-gnu is not installed")
@pytest.mark.skipif(shutil.which("qemu-aarch64-static") is None, reason="qemu-user-static is not installed")
def test_arm64_gateway_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    steps, mirror = BuildSteps(default_cache()), Mirror()
    made, root = cross.freeze(steps, mirror), tmp_path / "root"
    subprocess.run(["cp", "-a", str(cross.unpack_python(steps, mirror)), str(root)], check=True)
    for path in (*root.glob("usr/bin/python3*"), *root.glob("usr/lib/python3*")):
        remove(path)
    shutil.copytree(made, root / "waypost", symlinks=True)
    (root / "data").mkdir(mode=0o700)
    running = Waypost(tmp_path / "log", "run", "--dev", "--data", "/data", "--mqtt=127.0.0.1:0")
    running.arguments[:3] = ["chroot", str(root), f"/waypost/{freezing.PROGRAM}"]
    running.arguments += ["--amqp=127.0.0.1:0", "--http=127.0.0.1:0"]
    with running:
        words = ["-p", str(running.port("mqtt")), "-q", "1", "-t", "queue/jobs"]
        subprocess.run(["mosquitto_pub", *words, "-m", "21.5"], check=True, timeout=60)
        running.kill()
    with running:
        words[1] = str(running.port("mqtt"))
        taken = subprocess.run(
            ["mosquitto_sub", *words, "-C", "1"], capture_output=True, text=True, timeout=60, check=True
        )
        assert taken.stdout == "21.5\n"


def test_same_sources_make_the_same_bytes(frozen: Path) -> None:
    notes = [path for name in ("RECORD", "direct_url.json") for path in frozen.rglob(name)]
    assert not notes, "they are others where Python is in another folder"
    with tempfile.TemporaryDirectory() as folder:
        assert contents(freezing.freeze(BuildSteps(Path(folder)))) == contents(frozen)


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
