"""Parts that are loaded late are tried at the start, in a process of their own (`edge.appliance.parts`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from edge.appliance import cli, parts
from edge.appliance.errors import CommandError
from edge.appliance.parts import LATE, WHY_BYTES_MAX, fault_of

BROKEN = {
    "raises_part": "raise ImportError('libqpid-proton-core.so.10: cannot open shared object file')",
    "long_part": f"raise ValueError('x' * {2 * WHY_BYTES_MAX})",
    "leaves_part": "raise SystemExit(0)",
    "dies_part": "import os; os._exit(7)",
    "killed_part": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "sound_part.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_all_of_a_gateways_can_be_loaded() -> None:
    assert not fault_of(LATE)


def test_a_gateway_without_work_loads_none_of_them() -> None:
    """Nor what libraries would take besides."""
    probe = f"""if True:
        import importlib, sys
        from edge.appliance.commands import COMMANDS
        from edge.appliance.loading import TYPES_OF_NEWER_PYTHONS, load
        load("edge", COMMANDS["edge"])
        importlib.import_module("edge.configuration.following")
        importlib.import_module("edge.appliance.gateway")
        late = {(*LATE, "zstandard")}
        print([name for name in (*late, TYPES_OF_NEWER_PYTHONS) if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_what_was_tried_is_not_here(folder: Path) -> None:
    assert not fault_of(["sound_part"])
    assert "sound_part" not in sys.modules


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("absent_part", "absent_part: ModuleNotFoundError: No module named 'absent_part'"),
        ("raises_part", "raises_part: ImportError: libqpid-proton-core.so.10: cannot open shared object file"),
        ("leaves_part", "leaves_part: SystemExit: 0"),
        ("dies_part", "importing sound_part, dies_part ends the process with 7"),
        ("killed_part", "importing sound_part, killed_part ends the process with -9"),
    ],
)
def test_what_is_wrong_is_told(folder: Path, name: str, why: str) -> None:
    assert fault_of(["sound_part", name]) == why


def test_it_is_told_in_so_many_words(folder: Path) -> None:
    assert len(fault_of(["long_part"])) == WHY_BYTES_MAX


def test_descriptors_are_closed(folder: Path) -> None:
    before = os.listdir("/proc/self/fd")
    fault_of(["sound_part"])
    with mock.patch.object(os, "fork", side_effect=BlockingIOError), pytest.raises(BlockingIOError):
        fault_of(["sound_part"])
    assert os.listdir("/proc/self/fd") == before


def test_a_gateway_that_lacks_something_does_not_start(folder: Path) -> None:
    with (
        mock.patch.object(parts, "fault_of", return_value="bridge.engine: ImportError: no Proton"),
        pytest.raises(CommandError, match="no Proton") as raised,
    ):
        cli.edge.main(["run", "--data", str(folder / "data"), "--dev"], standalone_mode=False)
    assert "install" in raised.value.hint


def test_where_no_process_can_be_made_it_starts_all_the_same() -> None:
    with mock.patch.object(parts, "fault_of", side_effect=BlockingIOError):
        cli._require_parts()
