"""User mistakes: each answer names the error, its place and the next step; nothing is created or changed.

The table has a row for each mistake: command line, exit code (0 done, 1 failed, 2 wrong usage or configuration, 3
unreachable peer, 4 data integrity) and texts of the answer. After each, the folders are unchanged.

Every line runs in its own process. Most are forked from one with the program in memory; one of each kind starts as the
launcher starts it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import sqlite3
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from edge.broker.store.lock import LOCK_NAME
from tests.conftest import ROOT
from tests.spark import lakes
from tests.support.command import run_program, run_waypost
from tests.support.processes import edge, free_port, gateway_at, hub

PROGRAM = "./waypost"
SECONDS_MAX = 60.0
PATIENCE_S = (1, 8, 40)
"""Time that a device waits for an answer; longer on a busy machine, after the gateway was too slow."""
OF_SQLITE = ("-shm", "-wal")
"""Files next to an SQLite database while it is read."""


class Mistake(NamedTuple):
    """`line`: the command line, with names of the scene in braces; `says`: texts of the answer; `started`: run as the
    launcher starts it.
    """

    what: str
    line: str
    code: int
    says: tuple[str, ...]
    stdin: str = ""
    started: bool = False


MISTAKES = (
    # --- which command, which option
    Mistake(
        "a command with a typo",
        "statsu",
        2,
        ("No such command: statsu", "did you mean `status`?", "--help`"),
        started=True,
    ),
    Mistake("a subcommand with a typo", "store verfy --data {gw}", 2, ("verfy", "Did you mean 'verify'?", "--help`")),
    Mistake("an option with a typo", "run --dat {gw}", 2, ("--dat", "--data", "see `./waypost run --help`")),
    Mistake("an option left out", "run", 2, ("--data", "see `./waypost run --help`")),
    # --- which directory
    Mistake(
        "run before it is set up",
        "run --data {typo}",
        2,
        ("nothing is configured", "./waypost init --data {typo}", "--dev"),
    ),
    Mistake(
        "devices of a directory that is not there",
        "user list --data {typo}",
        2,
        ("data directory {typo} not found", "init --data {typo}"),
    ),
    Mistake(
        "resources of a directory that is not there",
        "get --data {typo}",
        2,
        ("data directory {typo} not found", "apply --data {typo}"),
    ),
    Mistake("a store that is not there", "store info --data {typo}", 2, ("{typo}", "give --data as for")),
    Mistake("a file for a directory", "run --dev --data {file}", 2, ("{file}", "is a file")),
    Mistake("a place where nobody may write", "init --data /proc/waypost --name a", 1, ("/proc/waypost",)),
    Mistake(
        "the hub's data for its lake",
        "lake run --lake {hubdata}",
        2,
        ("is a hub's data directory", "{hubdata}/lake"),
    ),
    Mistake("a folder that is no lake", "lake run --lake {foreign}", 2, ("{foreign} is not a lake", "telemetry")),
    Mistake("a lake that is not there", "report --lake {typo} --out {typo}.html", 2, ("{typo} is not a lake",)),
    # --- wrong data directory
    Mistake(
        "a store that is a text",
        "run --dev --data {text}",
        1,
        ("{text}/store.sqlite", "not a store", "another data directory"),
    ),
    Mistake(
        "another program's database",
        "run --dev --data {other}",
        1,
        ("{other}/store.sqlite", "not a store", "another data directory"),
        started=True,
    ),
    Mistake(
        "another program's database, and a port in use",
        "run --dev --data {other} --mqtt 127.0.0.1:{mqtt}",
        1,
        ("{other}/store.sqlite", "not a store"),
    ),
    Mistake("half a store", "run --dev --data {half}", 1, ("{half}/store.sqlite", "store repair")),
    Mistake(
        "half a store, verified",
        "store verify --data {half}",
        4,
        ("{half}/store.sqlite", "store repair"),
        started=True,
    ),
    Mistake("a store of a newer program", "run --dev --data {newer}", 1, ("newer",)),
    Mistake(
        "a store older than any that can be read",
        "run --dev --data {ancient}",
        1,
        ("{ancient}/store.sqlite", "not a store"),
    ),
    Mistake(
        "accounts that are no database",
        "user list --data {badaccounts}",
        4,
        ("{badaccounts}/credentials.db", "move it away"),
    ),
    Mistake("half-written resources", "get --data {badresources}", 1, ("{badresources}",)),
    # --- YAML
    Mistake("a file that is not there", "apply --data {gw} -f {typo}.yaml", 2, ("{typo}.yaml",)),
    Mistake("no file named", "apply --data {gw}", 2, ("nothing to apply: -f FILE", "--help`")),
    Mistake("an empty file", "apply --data {gw} -f {empty}", 2, ("{empty}: no resource found", "nothing was applied")),
    Mistake(
        "a key with a typo",
        "apply --data {gw} -f {typed}",
        2,
        ("{typed}:6: spec.listners", 'did you mean "listeners"', "nothing was applied"),
    ),
    Mistake("half a file", "apply --data {gw} -f {halfyaml}", 2, ("{halfyaml}:", "nothing was applied")),
    Mistake("a tab in YAML", "apply --data {gw} -f {tab}", 2, ("{tab}:2", "tab", "nothing was applied")),
    Mistake("a type with a typo", "apply --data {gw} -f {quue}", 2, ("spec.type", '"queue"', "nothing was applied")),
    Mistake("a file of Kubernetes", "apply --data {gw} -f {pod}", 2, ("{pod}:", "Pod", "nothing was applied")),
    Mistake("a kind with a typo", "get --data {gw} adress", 2, ('"adress" is not a kind', "address")),
    Mistake(
        "what is not there, deleted",
        "delete --data {gw} address default.plnt",
        1,
        ('Address "default.plnt" not found', "default.plant"),
    ),
    Mistake(
        "a configuration that is not there",
        "run --data {gw} --config {typo}.yaml",
        2,
        ("{typo}.yaml", "does not exist"),
    ),
    # --- ports and peers
    Mistake("a port in use", "run --dev --data {typo} --mqtt 127.0.0.1:{mqtt}", 2, ("127.0.0.1:{mqtt}", "in use")),
    Mistake("a port without a host", "run --dev --data {typo} --mqtt 1883", 2, ("--mqtt 1883", "127.0.0.1")),
    Mistake("a port there is not", "run --dev --data {typo} --http 127.0.0.1:99999", 2, ("--http 127.0.0.1:99999",)),
    Mistake(
        "no credentials for everybody",
        "run --dev --data {typo} --mqtt 0.0.0.0:0",
        2,
        ("loopback only", "run it without --dev"),
    ),
    Mistake(
        "a hub without a name of one's own",
        "run --dev --data {typo} --hub amqp://127.0.0.1:1",
        2,
        ("--gateway", "--forward"),
    ),
    Mistake(
        "a hub by HTTP",
        "run --dev --data {typo} --hub http://127.0.0.1:8081 --gateway a --forward #",
        2,
        ("amqp://",),
    ),
    Mistake(
        "a hub for everybody", "hub run --dev --data {typo} --amqp 0.0.0.0:0", 2, ("--dev", "loopback", "0.0.0.0:0")
    ),
    Mistake(
        "a second gateway on its data",
        "run --dev --data {running} --mqtt 127.0.0.1:{mqtt} --amqp 127.0.0.1:0 --http 127.0.0.1:0",
        2,
        ("{running}", "process {pid}", "stop"),
    ),
    Mistake(
        "a second hub on its data",
        "hub run --dev --data {hubdata} --amqp 127.0.0.1:0 --http 127.0.0.1:0",
        2,
        ("{hubdata}", "in use"),
    ),
    Mistake(
        "a gateway that does not run",
        "status --http 127.0.0.1:{closed}",
        3,
        ("http://127.0.0.1:{closed} does not answer", "`ready` line"),
        started=True,
    ),
    Mistake(
        "a hub for a gateway",
        "status --http 127.0.0.1:{hubhttp}",
        1,
        ("is not a gateway", "in a browser"),
    ),
    Mistake("MQTT's port for HTTP's", "status --http 127.0.0.1:{mqtt}", 3, ("does not answer", "`ready` line")),
    Mistake("no port", "status --http localhost", 2, ("--http localhost", "HOST:PORT")),
    # --- devices
    Mistake(
        "a device without a gateway",
        "{simulate} --protocol mqtt --url mqtt://127.0.0.1:{closed} --name d",
        3,
        ("connection refused: no server listens there", "check that a gateway serves mqtt://127.0.0.1:{closed}"),
    ),
    Mistake(
        "MQTT at the port of AMQP",
        "{simulate} --protocol mqtt --url mqtt://127.0.0.1:{guardedamqp} --name d",
        3,
        ("does not speak MQTT", "the port of another protocol"),
    ),
    Mistake(
        "an AMQP device without a gateway",
        "{simulate} --protocol amqp --url amqp://127.0.0.1:{closed} --name d",
        3,
        ("Connection refused", "check that a gateway serves amqp://127.0.0.1:{closed}"),
    ),
    Mistake(
        "a protocol for another",
        "{simulate} --protocol mqtt --url amqp://127.0.0.1:1 --name d",
        2,
        ("does not match --protocol mqtt",),
    ),
    Mistake(
        "no rights for an address",
        "{simulate} --protocol amqp --url amqp://127.0.0.1:{guardedamqp} {login} --address other/pump7",
        1,
        ("other/pump7", "unauthorized-access", "./waypost user list"),
        "right\n",
    ),
    Mistake(
        "no rights for a topic",
        "{simulate} --protocol mqtt --url mqtt://127.0.0.1:{guarded} {login} --address other/pump7",
        1,
        ("other/pump7", "./waypost user list"),
        "right\n",
    ),
    Mistake(
        "a wrong password",
        "{patient} --protocol mqtt --url mqtt://127.0.0.1:{guarded} {login}",
        1,
        ("bad user name or password", "./waypost user add pump7"),
        "guessed\n",
        started=True,
    ),
    Mistake(
        "a wrong password over AMQP",
        "{patient} --protocol amqp --url amqp://127.0.0.1:{guardedamqp} {login}",
        1,
        ("unauthorized-access", "./waypost user add pump7"),
        "guessed\n",
        started=True,
    ),
    Mistake(
        "a device added twice",
        "user add pump7 --data {gw}",
        1,
        ("user pump7 exists already", "user rotate pump7"),
    ),
    Mistake(
        "a device removed that is not there",
        "user remove pmp7 --data {gw}",
        1,
        ("user pmp7 not found", "./waypost user list --data {gw}"),
    ),
    Mistake("a right with a typo", "user add pump8 --data {gw} --allow sned:plant/#", 2, ("'sned'", "send, recv")),
    Mistake("an empty password", "user add pump8 --data {gw} --password-stdin", 2, ("it is empty", "write one line")),
    Mistake(
        "set up twice",
        "init --data {gw} --name hall",
        2,
        ("resources applied already", "./waypost apply --data {gw}"),
    ),
    Mistake(
        "a listener that is none",
        "init --data {typo} --name a --mqtt everywhere",
        2,
        ("--mqtt everywhere", "for example --mqtt"),
    ),
    Mistake(
        "nothing to forward",
        "init --data {typo} --name a --hub amqp://hub.example:5672",
        2,
        ("--hub and --forward go together", "for example"),
    ),
    # --- stores
    Mistake(
        "purge while it runs",
        "store purge --all --data {running}",
        1,
        ("{running} is in use", "stop the gateway first"),
    ),
    Mistake(
        "a new epoch nobody agrees to",
        "store new-epoch --data {gw}",
        1,
        ("nothing was changed", "--yes skips the question"),
    ),
    Mistake("a new epoch while it runs", "store new-epoch --yes --data {running}", 1, ("stop the gateway first",)),
    Mistake(
        "import while it runs",
        "store import --dev --data {running} {ndjson}",
        1,
        ("{running}", "stop the gateway first"),
    ),
    Mistake(
        "import of what is no export",
        "store import --dev --data {gw} {file}",
        1,
        ("{file}: line 1", "./waypost store export"),
    ),
    Mistake("purge of nothing in particular", "store purge --data {gw}", 2, ("select messages", "--all")),
    Mistake("an age with a typo", "store export --data {gw} --since 2hours --out {typo}.csv", 2, ("--since", "2hours")),
    Mistake("a format by a strange suffix", "store export --data {gw} --out {typo}.xlsx", 2, ("xlsx", "--format")),
    Mistake(
        "export to a folder that is not there",
        "store export --data {gw} --out {typo}/left.ndjson",
        1,
        ("{typo}/left.ndjson", "No such file"),
    ),
    Mistake(
        "export over a file that is there",
        "store export --data {gw} --out {ndjson}",
        2,
        ("{ndjson} exists already", "--force"),
    ),
    Mistake(
        "export to a full disk",
        "store export --format csv --data {gw} --out {full}",
        1,
        ("{full}: No space left on device",),
    ),
    # --- the lake
    Mistake("a job with a typo", "lake run --lake {lake} --job rollup", 2, ("no job named 'rollup'", "rollups")),
    Mistake(
        "a page where nothing can be written",
        "report --lake {lake} --out /proc/report.html",
        1,
        ("/proc/report.html",),
    ),
)


class Scene(NamedTuple):
    """`names`: values of the names in braces; `folder`: the folder that must stay unchanged."""

    names: Mapping[str, str]
    folder: Path
    left_out: tuple[Path, ...]
    """Files of running processes, which change by themselves."""

    def state(self) -> dict[str, str]:
        """Return every file with its content; for a lock, the number of its last owner."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            if path.name.endswith(OF_SQLITE) or any(path.is_relative_to(out) for out in self.left_out):
                continue
            content = path.read_bytes() if path.is_file() and path.name != LOCK_NAME else b""
            found[str(path)] = hashlib.sha256(content).hexdigest()
        return found


def typed(line: str, stdin: str = "", *, started: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a line typed after `./waypost`; a leading `!NAME=VALUE` goes into the environment."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WAYPOST_PROGRAM": PROGRAM, "COLUMNS": "200"}
    words = line.split()
    if words[0].startswith("!"):
        name, _, value = words.pop(0)[1:].partition("=")
        environment[name] = value
    run = run_program if started else run_waypost
    return run(*words, stdin=stdin, environment=environment)


def made(line: str, stdin: str = "") -> None:
    done = typed(line, stdin)
    assert done.returncode == 0, done.stderr


def texts(folder: Path) -> dict[str, str]:
    """Write files of YAML and other types; return their paths by name."""
    address = "apiVersion: enmasse.io/v1beta1\nkind: Address\nmetadata: {name: default.jobs}\nspec: "
    files = {
        "file": "some text\n",
        "empty": "",
        "typed": "apiVersion: waypost/v1\nkind: Gateway\nmetadata:\n  name: a\nspec:\n  listners: {}\n",
        "halfyaml": address + "{address: jobs, ty",
        "tab": "apiVersion: waypost/v1\n\tkind: Gateway\n",
        "quue": address + "{address: jobs, type: quue}\n",
        "pod": "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {}\n",
        "left.ndjson": '{"address": "plant/a", "text": "1"}\n',
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return {name.removeprefix("left."): str(folder / name) for name in files}


def stores(folder: Path, gateway: Path) -> dict[str, str]:
    """Create directories with a damaged store or a foreign one."""
    names = ("text", "other", "half", "newer", "ancient", "badaccounts", "badresources")
    for name in names:
        shutil.copytree(gateway, folder / name)
    (folder / "text" / "store.sqlite").write_text("a shopping list\n" * 500)
    (folder / "other" / "store.sqlite").unlink()
    with sqlite3.connect(folder / "other" / "store.sqlite") as database:
        database.execute("CREATE TABLE songs (title TEXT)")
    database.close()
    whole = (gateway / "store.sqlite").read_bytes()
    (folder / "half" / "store.sqlite").write_bytes(whole[: len(whole) // 2])
    for name, version in (("newer", 999), ("ancient", 0)):
        with sqlite3.connect(folder / name / "store.sqlite") as database:
            database.execute(f"PRAGMA user_version = {version}")
        database.close()
    (folder / "badaccounts" / "credentials.db").write_text("a shopping list\n" * 500)
    for path in (folder / "badresources" / "config").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return {name: str(folder / name) for name in names}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Prepare a stopped gateway, a running one, one with accounts, a hub, a lake, and files of all kinds."""
    folder = tmp_path_factory.mktemp("scene")
    guarded, gateway = folder / "guarded", folder / "gw"
    for data in (gateway, guarded):
        listeners = f"--amqp 127.0.0.1:{free_port()} --http none --hub amqp://127.0.0.1:1 --forward plant/#"
        made(f"init --data {data} --name hall --mqtt 127.0.0.1:{free_port()} --https none {listeners}")
        made(f"user add pump7 --data {data} --profile sensor --password-stdin", "right\n")
    (folder / "foreign").mkdir()
    (folder / "foreign" / "thesis.txt").write_text("mine")
    full = Path("/dev/full")
    if os.geteuid() == 0:  # root could replace the machine's real files
        full = folder / "full"
        os.mknod(full, 0o600 | stat.S_IFCHR, Path("/dev/full").stat().st_rdev)
    lakes.write(folder / "lake", "telemetry", [lakes.message(0)])
    with (
        edge(folder, "running") as running,
        hub(folder) as a_hub,
        gateway_at(guarded) as with_accounts,
        socket.socket() as closed,
    ):
        closed.bind(("127.0.0.1", 0))  # refuses connections, and keeps its port from other tests
        closed_port = closed.getsockname()[1]
        names = {
            **texts(folder),
            **stores(folder, gateway),
            **{name: str(folder / name) for name in ("gw", "typo", "foreign", "lake", "running")},
            "full": str(full),
            "hubdata": str(folder / "hub"),
            "hubhttp": str(a_hub.port("http")),
            "mqtt": str(running.port("mqtt")),
            "pid": str(running.pid),
            "guarded": str(with_accounts.port("mqtt")),
            "guardedamqp": str(with_accounts.port("amqp")),
            "simulate": "simulate --kind load --count 1 --drain {seconds}",
            "patient": f"simulate --kind load --drain {10 * SECONDS_MAX}",
            "login": "--name pump7 --user pump7 --password-stdin",
            "closed": str(closed_port),
        }
        logs = tuple(folder.glob("*.log"))
        yield Scene(names, folder, (folder / "running", folder / "hub", guarded, *logs))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what.replace(" ", "-"))
def test_mistake_is_answered(scene: Scene, mistake: Mistake) -> None:
    before = scene.state()
    line = mistake.line.format_map(scene.names)
    for seconds in PATIENCE_S if "{seconds}" in line else (0,):
        done = typed(line.replace("{seconds}", str(seconds)), mistake.stdin, started=mistake.started)
        if "too slow" not in done.stderr:
            break
    answer = done.stderr + (done.stdout if mistake.code == 4 else "")
    assert done.returncode == mistake.code, answer
    assert "Traceback" not in answer
    for part in mistake.says:
        assert part.format_map(scene.names) in answer
    assert scene.state() == before
