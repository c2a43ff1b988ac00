"""The command line as a whole: help everywhere, one form of error, documented exit codes, a quick start."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
import yaml

from bridge.version import VERSION
from docs.generate import errors
from edge.appliance import main, program
from edge.appliance.commands import COMMANDS, HIDDEN, SECTIONS, LazyCommand
from edge.appliance.main import load, run
from edge.appliance.old_names import GONE_IN, RENAMED
from edge.output import logs
from edge.output.document import envelope
from edge.output.document import json as json_document
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, Listing, print_listing
from launcher.package_sets import PackageSet, sets_of
from tests.support.command import run_waypost

ROOT = Path(__file__).parents[2]
UNTIL = f"the old name works until version {GONE_IN}"
SUMMARY_MAX = 45
"""Characters of a summary: a line of help holds it behind the longest name."""
HELP_LINES_MAX = 80
START_SECONDS_MAX = 3.0
"""Best of three starts; 0.1 s seen, the rest is for a machine that is busy with something else."""


def waypost(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program as the launcher starts it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-P", "-m", "edge.appliance.main", *arguments],
        cwd=cwd or ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Return (words, command) of all commands and their subcommands."""
    waiting: list[tuple[str, click.Command]] = [(name, load(name, entry)) for name, entry in COMMANDS.items()]
    while waiting:
        words, command = waiting.pop()
        yield words, command
        if isinstance(command, click.Group):
            waiting += [(f"{words} {name}", sub) for name, sub in command.commands.items()]


def options_of(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["--help", "schema", "doctor --json"])
def test_unwritable_output_is_an_error_of_one_line(command: str, unbuffered: str) -> None:
    """`waypost get > FILE` on a full disk gives one line of error."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "edge.appliance.main", *command.split()],
            cwd=ROOT, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == Exit.FAILED
    assert done.stderr == f"error[output-not-written]: the output cannot be written: {os.strerror(errno.ENOSPC)}\n"


def test_closed_output_is_no_error() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    closed = ["sh", "-c", '"$0" "$@" >&-', sys.executable, "-P", "-m", "edge.appliance.main", "schema"]
    done = subprocess.run(closed, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_command_and_every_option_has_help() -> None:
    silent = []
    for words, command in every_command():
        if not command.help:
            silent.append(words)
        options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
        silent += [f"{words} {option.opts[0]}" for option in options if not option.help]
    assert not silent


def test_every_group_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for words, command in every_command():
        assert run([*words.split(), "--help"]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"Usage: waypost {words}")
        if isinstance(command, click.Group):
            assert all(name in out for name in command.commands)


MADE = {
    "--bundle", "--cache", "--disk", "--journal", "--labels", "--metrics", "--out", "--screenshot",
    "lake detect OUT.csv", "init --data", "run --data", "hub run --data", "hub run --lake",
    "apply --data", "flash [DEVICE]…", "hub backup FILE", "hub restore --data", "hub restore --lake",
    "replace export FILE", "replace import --data", "image configure [FILE]", "import --filename",
    "device simulate --credentials",
}  # fmt: skip
"""Options, or options of a command, that name output of the command."""
FOUND = {
    "report --facts": "the lake is looked at first",
    "image configure --base": "it goes with a CSV, which is read first",
    "diff --data": "`apply` would make it",
    "device simulate --register-gateway": "it goes with FILE, which is read first",
    "doctor --data": "it is a finding",
    "--root": "of the machine: tests alone have another one, and a machine has none of what is below at first",
}


ALSO = {
    "store purge": "--all", "store import": "--dev", "tenant set-quota": "--reset",
    "rollout start": "hall", "campaign start": "pump-1", "image configure": "hall.yaml name=hall",
}  # fmt: skip
"""Arguments that a command needs in addition to its required parameters."""
PLAIN = {"TIME": "30m", "DEVICE@GATEWAY": "pump7@hall", "NAME@TENANT": "anna@default"}
"""Values of untyped parameters, by their metavars; else x."""


def of_type(parameter: click.Parameter, there: Path) -> str:
    """Return a value of the parameter's type."""
    match parameter.type:
        case click.Path() as path:
            return str(there if path.file_okay else there.parent)
        case click.Choice() as choice:
            return str(choice.choices[0])
        case click.types.IntParamType() | click.types.FloatParamType():
            return "1"
    if "--lake" in parameter.opts:
        return str(there.parent)
    return PLAIN.get(parameter.make_metavar(click.Context(click.Command("waypost"))), "x")


def calls_with_what_is_missing(there: Path, missing: Path) -> Iterator[list[str]]:
    """Yield a call of each command for each path parameter, with a path that does not exist."""
    for words, command in every_command():
        for parameter in command.params:
            called = parameter.human_readable_name if isinstance(parameter, click.Argument) else parameter.opts[-1]
            named = {called, f"{words} {called}"}
            if not (isinstance(parameter.type, click.Path) or called == "--lake") or named & (MADE | set(FOUND)):
                continue
            call = [*words.split(), *ALSO.get(words, "").split()]
            for each in command.params:
                if each is parameter or each.required or "--data" in each.opts:
                    value = str(missing) if each is parameter else of_type(each, there)
                    call += [value] if isinstance(each, click.Argument) else [each.opts[-1], value]
            yield call


def test_missing_folder_or_file_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All commands report wrong usage, not a failure, for a path that does not exist."""
    monkeypatch.chdir(tmp_path)
    there, missing = tmp_path / "there", tmp_path / "not there"
    there.touch()
    calls = list(calls_with_what_is_missing(there, missing))
    assert len(calls) > 100
    wrong = []
    for call in calls:
        code = run(call)
        err = capsys.readouterr().err
        if code != Exit.USAGE or "not there" not in err or not err.startswith("error["):
            wrong.append((" ".join(call), code, err))
    assert not wrong
    assert os.listdir(tmp_path) == ["there"]


def test_root_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    for name, entry in COMMANDS.items():
        assert (f"  {name} " in out and entry.help in out) == (name not in HIDDEN)


@pytest.mark.parametrize("name", COMMANDS)
def test_launcher_installs_what_a_command_needs(name: str) -> None:
    package = {"edge": "gateway", "cloud": "hub", "spark": "analytics", "images": "images", "simulator": "gateway"}
    assert PackageSet(package[COMMANDS[name].extra]) in sets_of([name])


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_old_names_work_with_one_line_of_notice(
    old: tuple[str, ...], new: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*old, "--help"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(" ".join(("Usage: waypost", *new)))
    assert err == f"note: `{' '.join(('waypost', *old))}` is now `{' '.join(('waypost', *new))}`; {UNTIL}\n"


def test_notice_has_the_command_below_a_renamed_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-q", "edge", "run", "--help"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: waypost run")
    assert err == f"note: `waypost edge run` is now `waypost run`; {UNTIL}\n"


def test_other_spelling_is_accepted_without_a_notice(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["enroll", "--help"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: waypost enrol ")
    assert err == ""


def test_old_names_are_gone_in_time() -> None:
    version, gone = (tuple(map(int, text.split(".")[:2])) for text in (VERSION, GONE_IN))
    assert version < gone, "remove edge/appliance/old_names.py"


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"waypost {VERSION}\n"


@pytest.mark.parametrize("arguments", [["nope"], ["--nope"], ["get", "--nope"], ["store", "nope"]])
def test_unknown_words_are_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == Exit.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert re.match(r"error\[unknown-(command|option)\]: No such ", err)
    assert "--help`" in err.splitlines()[-1]


@pytest.mark.parametrize("command", ["run --dev", "hub run --dev", "doctor", "store info"])
def test_missing_c_extension_is_an_error_of_one_line(tmp_path: Path, command: str) -> None:
    program = "import sys; sys.modules['bridge._native'] = None; from edge.appliance.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *command.split(), "--data", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (Exit.FAILED, "")
    first, second = done.stderr.splitlines()
    assert first.startswith("error[part-missing]: the C extension bridge._native is missing")
    assert "hatch_build.py" in second


def test_group_without_a_command_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store"]) == Exit.USAGE
    assert "Usage: waypost store" in "".join(capsys.readouterr())


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.delitem(sys.modules, "edge.appliance.resource_commands", raising=False)
    monkeypatch.delitem(sys.modules, "bridge.resources.parse", raising=False)
    monkeypatch.delattr("bridge.resources.parse", raising=False)
    assert run(["get"]) == Exit.USAGE
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error[package-missing]: `waypost get` needs the Python package yaml, which is not installed"
    assert "pip install 'waypost[edge]'" in lines[1]


def test_missing_own_module_does_not_name_an_extra() -> None:
    with pytest.raises(ModuleNotFoundError):
        load("x", LazyCommand("edge.nowhere:x", "", "edge"))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Make `waypost get` raise the exception in the list."""
    errors: list[BaseException] = []

    @click.command()
    def get() -> None:
        raise errors[0]

    monkeypatch.setattr(main, "load", lambda _name, _entry: get)
    return errors


class TestErrors:
    """Every user error has one form on stderr, and its exit code."""

    def test_command_error_is_shown(self, failing: list[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
        failing.append(CommandError("no", hint="do this\nthen that", error="unreachable", code=Exit.UNREACHABLE))
        assert run(["get"]) == 3
        assert capsys.readouterr().err == "error[unreachable]: no\n  do this\n  then that\n"

    def test_error_of_click_is_shown(self, failing: list[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
        failing.append(click.ClickException("no"))
        assert run(["get"]) == 1
        assert capsys.readouterr().err == "error[failed]: no\n"

    @pytest.mark.parametrize("options", [["--json"], ["-o", "json"]])
    def test_error_is_json_where_the_output_is(self, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["get", "--data", "/nowhere", *options]) == Exit.USAGE
        out, err = capsys.readouterr()
        document = json.loads(err)
        assert (out, document["schema"], document["kind"]) == ("", 1, "error")
        [item] = document["items"]
        assert (item["code"], item["exit"]) == ("no-data-directory", Exit.USAGE)
        assert item["message"] == "data directory /nowhere not found"
        assert "waypost apply --data /nowhere" in item["next"]

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            ("nope", "unknown-command"),
            ("get --nope", "unknown-option"),
            ("trace", "missing-parameter"),
            ("client list --limit none", "invalid-value"),
            ("apply --data .", "wrong-usage"),
            ("context use nowhere", "context-not-found"),
            ("explain nothing-of-that-kind", "code-not-found"),
        ],
    )
    def test_error_has_a_code(
        self, words: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        assert run(words.split()) == Exit.USAGE
        assert capsys.readouterr().err.startswith(f"error[{code}]: ")
        assert run(["explain", code]) == Exit.DONE
        assert capsys.readouterr().out.startswith(f"{code}  (error of a command)\n")

    def test_every_code_has_an_entry_and_every_entry_a_use(self) -> None:
        raised, known = errors.raised(), {each.code for each in errors.errors()}
        assert not {code: places for code, places in raised.items() if code not in known}
        code_of_product = "".join(
            path.read_text() for folder in errors.FOLDERS for path in (ROOT / folder).rglob("*.py")
        )
        assert not [code for code in known if f'"{code}"' not in code_of_product]

    def test_interrupt_ends_quietly(self, failing: list[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
        failing.append(KeyboardInterrupt())
        assert run(["get"]) == 130
        assert capsys.readouterr().err.strip() == "error[interrupted]: interrupted"

    def test_internal_error_keeps_its_traceback(self, failing: list[BaseException]) -> None:
        failing.append(ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            run(["get"])

    def test_error_is_the_same_without_the_root_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        CommandError("no", hint="do this", error="failed").show()
        assert capsys.readouterr().err == "error[failed]: no\n  do this\n"


@pytest.mark.parametrize(
    ("verbosity", "level"),
    [(-5, logging.CRITICAL), (-1, logging.ERROR), (0, logging.WARNING), (1, logging.INFO), (9, logging.DEBUG)],
)
def test_verbosity_sets_the_log_level(verbosity: int, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(logs, "write_to_stderr", lambda level, _wording: asked.append(level))
    main.set_up_logging(verbosity)
    assert asked == [level]


def test_start_is_quick_and_imports_few_modules() -> None:
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        done = waypost("--help")
        seconds.append(time.monotonic() - began)
        assert done.returncode == 0, done.stderr
    assert min(seconds) < START_SECONDS_MAX
    heavy = ["asyncio", "rich", "yaml", "msgspec", "proton", "cproton", "pyarrow", "pyspark", "sqlalchemy", "uvloop"]
    heavy += ["shutil"]  # and its imports
    probe = f"""if True:
        import sys
        import edge.appliance.main, edge.appliance.program
        edge.appliance.program.program_name()
        print([name for name in {heavy} if name in sys.modules])
    """
    called = {**os.environ, "WAYPOST_PROGRAM": "./waypost"}
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, env=called, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_current_folder_shadows_no_module(tmp_path: Path) -> None:
    for name in ("edge", "click", "logging"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit(99)\n")
    assert waypost("--version", cwd=tmp_path).stdout == f"waypost {VERSION}\n"


def test_closed_pipe_shows_no_error(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "edge.appliance.main", "--help"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_summaries_fit_their_line() -> None:
    """A summary that is cut ends in an ellipsis, and says nothing."""
    long = [words for words, command in every_command() if len(command.get_short_help_str(1_000)) > SUMMARY_MAX]
    long += [name for name, entry in COMMANDS.items() if len(entry.help) > SUMMARY_MAX]
    assert not long


def test_table_has_the_summaries_of_the_commands() -> None:
    wrong = [name for name, entry in COMMANDS.items() if load(name, entry).get_short_help_str(1_000) != entry.help]
    assert not wrong


def test_no_line_of_help_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    for words, command in every_command():
        if isinstance(command, click.Group):
            run([*words.split(), "--help"])
    run(["--help"])
    cut = [line for line in capsys.readouterr().out.splitlines() if re.search(r"(?<!\])(\.\.\.|…)$", line.rstrip())]
    assert not [line for line in cut if not line.startswith("Usage")]


def test_help_fits_one_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= HELP_LINES_MAX
    assert [line[:-1] for line in lines if line and line[0] != " " and line.endswith(":")][1:] == list(SECTIONS)


@pytest.mark.parametrize(("typed", "meant"), [("satus", "status"), ("gatway", "gateway"), ("dmeo", "demo")])
def test_similar_command_is_suggested(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([typed]) == Exit.USAGE
    assert f"did you mean `{meant}`?" in capsys.readouterr().err


def _missing(folder: Path) -> Path:
    return folder / "missing"


def _file_instead(folder: Path) -> Path:
    (folder / "data").write_text("not a folder")
    return folder / "data"


def _half_written(folder: Path) -> Path:
    """Write files of the product, cut off or overwritten, next to a file of a person."""
    data = folder / "data"
    (data / "config").mkdir(parents=True)
    (data / "holiday.txt").write_text("photos")
    (data / "store.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 3000)
    (data / "credentials.db").write_bytes(b"SQLite format 3\0" + b"\x00" * 50)
    (data / "config" / "resources.json").write_text('{"format": 1, "resou')
    (data / "registry.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 3000)
    (data / "lake" / "telemetry" / "_delta_log").mkdir(parents=True)
    (data / "lake" / "telemetry" / "_delta_log" / ("0" * 20 + ".json")).write_text('{"commitInfo"')
    return data


WORDS = {
    "purge": ["--all", "--yes"],
    "describe": ["Address", "plant"],
    "delete": ["Address", "plant"],
    "add": ["pump7"],
    "allow": ["pump7"],
    "remove": ["pump7"],
    "rotate": ["pump7"],
    "new-epoch": ["--yes"],
    "repair": ["--yes"],
    "migrate": ["--yes"],
    "import": ["--dev", "-"],
    "apply": ["-f", "-"],
    "diff": ["-f", "-"],
    "run": ["--dev"],
}
"""Arguments that commands need in addition to --data."""


@pytest.mark.parametrize("wrong", [_missing, _file_instead, _half_written])
@pytest.mark.parametrize("words", [words for words, command in every_command() if "--data" in options_of(command)])
def test_unusable_data_directory_is_reported_without_a_traceback(
    words: str, wrong: Callable[[Path], Path], tmp_path: Path
) -> None:
    data = wrong(tmp_path)
    if words in ("run", "hub run", "init") and wrong is _missing:
        pytest.skip("makes what is missing: that is what it is for")
    last = words.rsplit(maxsplit=1)[-1]
    done = run_waypost(*words.split(), "--data", str(data), *WORDS.get(last, []))
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in {int(code) for code in Exit}
    if wrong is _missing and words != "apply":
        assert not data.exists(), "nothing is made of a typing error"
    if wrong is _file_instead:
        assert data.read_text() == "not a folder"
        assert done.returncode != 0


class TestAsCalled:
    """Help, hints and errors name the program as the person called it."""

    @staticmethod
    def called(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "WAYPOST_PROGRAM": name}
        return subprocess.run(
            [sys.executable, "-P", "-m", "edge.appliance.main", *arguments],
            env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def test_name_is_shown_in_usage_help_errors_and_hints(self, tmp_path: Path) -> None:
        assert self.called("./waypost", "--help").stdout.startswith("Usage: ./waypost [OPTIONS]")
        assert "`./waypost demo`" in self.called("./waypost", "--help").stdout
        assert "  ./waypost run --data ./gw1" in self.called("./waypost", "run", "--help").stdout
        mistaken = self.called("./waypost", "store", "inof").stderr
        assert "see `./waypost store --help`" in mistaken
        missing = self.called("./waypost", "user", "list", "--data", str(tmp_path / "typo")).stderr
        assert f"./waypost init --data {tmp_path / 'typo'}" in missing

    def test_name_is_used_in_generated_files_and_next_steps(self, tmp_path: Path) -> None:
        data = tmp_path / "gw"
        options = ("--data", str(data), "--name", "a", "--http", "none", "--systemd")
        made = self.called("./waypost", "init", *options)
        unit = (data / "waypost.service").read_text()
        assert f"\nEnvironment=WAYPOST_PROGRAM={Path.cwd() / 'waypost'}\n" in unit
        assert f"next: sudo -u waypost ./waypost user add NAME --data {data}" in made.stdout
        assert "`./waypost init`" in (data / "gateway.yaml").read_text()
        empty = tmp_path / "empty"
        empty.mkdir(mode=0o700)
        findings = self.called("./waypost", "doctor", "--json", "--data", str(empty)).stdout
        assert f'"next_step": "./waypost apply --data {empty}' in findings

    def test_help_has_no_bare_name_where_the_program_was_called_by_a_path(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WAYPOST_PROGRAM", "../my checkout/waypost")
        program.program_name.cache_clear()
        try:
            texts = [program.as_called(command.help or "") for _, command in every_command()]
            bare = [text for text in texts if re.search(r"(?<!/)\bwaypost (run|user|store|hub|apply) ", text)]
            assert not bare
            assert program.as_called("run `waypost store info`") == "run `'../my checkout/waypost' store info`"
        finally:
            monkeypatch.undo()
            program.program_name.cache_clear()

    def test_bare_name_is_used_where_the_shell_finds_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        script = tmp_path / "waypost"
        script.write_text("#!/bin/sh\n")
        script.chmod(0o755)
        monkeypatch.setenv("WAYPOST_PROGRAM", str(script))
        assert program.program_name.__wrapped__() == str(script)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert program.program_name.__wrapped__() == "waypost"

    def test_other_text_is_unchanged(self) -> None:
        text = "sudo -u waypost sh; user waypost may not read it; /opt/waypost edge"
        assert program.as_called(text) == text


class TestDocuments:
    """Every command with `--json` prints the one envelope."""

    APART = frozenset({
        "lake run", "lake rebuild", "lake detect", "lake query", "lake replay", "lake schema list", "report",
    })  # fmt: skip
    """Commands on a lake: their rows and figures are those of the tables."""

    def test_kind_of_items_is_stated_at_the_option(self) -> None:
        found = {}
        for words, command in every_command():
            for parameter in command.params:
                if isinstance(parameter, click.Option) and "--json" in parameter.opts and words not in self.APART:
                    found[words] = re.findall(r"items of kind `([a-z-]+)`", parameter.help or "")
        assert len(found) > 60
        assert not [words for words, kinds in found.items() if len(kinds) != 1]

    def test_documents_are_printed_in_one_place(self) -> None:
        """No command prints JSON by other means, except schemas."""
        apart = {"edge/output/listing.py", "edge/output/terminal.py"}
        schemas = {"edge/appliance/resource_commands.py", "cloud/hub/cli.py", "images/card/cli.py"}
        found = set()
        for folder in ("edge", "cloud", "images"):
            for path in (ROOT / folder).rglob("*.py"):
                text = path.read_text()
                if re.search(r"\bsay_json\(|echo\((?:msgspec\.)?json\.", text):
                    found.add(str(path.relative_to(ROOT)))
        assert found == apart | schemas

    def test_list_has_all_forms(self) -> None:
        apart = ("lake", "image")
        lists = [words for words, _ in every_command() if words.split()[-1] == "list" and words.split()[0] not in apart]
        commands = dict(every_command())
        assert not [words for words in lists if "--output" not in options_of(commands[words])]

    @pytest.mark.parametrize("form", ["table", "wide", "name", "json", "yaml", "csv"])
    def test_forms_of_a_list(self, form: str, capsys: pytest.CaptureFixture[str]) -> None:
        listing = Listing("pump", "name", ("name", "labels"), ("since_s",), "no pumps")
        rows = [{"name": "p\x1b7", "labels": {"site": "lyon"}, "since_s": 3}]
        print_listing(listing, rows, form, next=None)
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert (
            out
            == {
                "table": "NAME    LABELS\np\\x1b7  site=lyon\n",
                "wide": "NAME    LABELS     SINCE S\np\\x1b7  site=lyon  3\n",
                "name": "p\\x1b7\n",
                "json": json_document(envelope("pump", rows, next=None), indent=2) + "\n",
                "yaml": yaml.safe_dump(envelope("pump", rows, next=None), sort_keys=False),
                "csv": "name,labels,since_s\np\\x1b7,site=lyon,3\n",
            }[form]
        )

    def test_stream_has_one_document_a_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        JsonOutput("event").stream({"a": 1})
        assert capsys.readouterr().out == '{"schema":1,"kind":"event","items":[{"a":1}]}\n'
