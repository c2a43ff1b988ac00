"""The start imports modules that are used later (`edge.appliance.parts`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from edge.appliance import cli, parts
from edge.appliance.parts import LATE, fault_of
from edge.output.errors import CommandError

BROKEN = {
    "raises_part": "raise ImportError('libqpid-proton-core.so.10: cannot open shared object file')",
    "wrong_part": "raise ValueError('a mistake')",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_all_modules_of_a_gateway_can_be_loaded() -> None:
    assert not fault_of(LATE)


def test_commands_without_a_gateway_load_none_of_them() -> None:
    probe = f"""if True:
        import importlib, sys
        from edge.appliance.commands import COMMANDS
        from edge.appliance.loading import load
        load("run", COMMANDS["run"])
        importlib.import_module("edge.configuration.following")
        importlib.import_module("edge.appliance.gateway")
        late = {(*LATE, "zstandard")}
        print([name for name in late if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("absent_part", "absent_part: ModuleNotFoundError: No module named 'absent_part'"),
        ("raises_part", "raises_part: ImportError: libqpid-proton-core.so.10: cannot open shared object file"),
        ("wrong_part", "wrong_part: ValueError: a mistake"),
    ],
)
def test_import_error_is_reported(folder: Path, name: str, why: str) -> None:
    assert fault_of(["json", name]) == why


def test_gateway_with_a_missing_module_does_not_start(folder: Path) -> None:
    with (
        mock.patch.object(parts, "fault_of", return_value="bridge.engine: ImportError: no Proton"),
        pytest.raises(CommandError, match="no Proton") as raised,
    ):
        cli.run.main(["--data", str(folder / "data"), "--dev"], standalone_mode=False)
    assert "install" in raised.value.hint
