"""The consoles' scripts satisfy the types in their comments, as TypeScript checks them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.checkout import ROOT

OPTIONS = (
    *("--checkJs", "--allowJs", "--noEmit", "--skipLibCheck", "--target", "es2022", "--module", "esnext"),
    *("--moduleResolution", "bundler", "--lib", "es2023,dom,dom.iterable"),
)
CONSOLES = {"gateway.js": "edge/appliance/console/pages", "hub.js": "cloud/console/pages"}


def compiler() -> Path | None:
    """Return TypeScript's compiler in a folder that NODE_PATH names."""
    folders = os.environ.get("NODE_PATH", "").split(os.pathsep)
    found = (Path(folder, "typescript", "lib", "tsc.js") for folder in folders if folder)
    return next((path for path in found if path.exists()), None)


@pytest.mark.skipif(shutil.which("node") is None or compiler() is None, reason="TypeScript is not installed (npm)")
@pytest.mark.parametrize("script", CONSOLES)
def test_scripts_satisfy_their_types(tmp_path: Path, script: str) -> None:
    shutil.copytree(ROOT / "bridge" / "console", tmp_path, dirs_exist_ok=True)
    shutil.copytree(ROOT / CONSOLES[script], tmp_path, dirs_exist_ok=True)
    command = ["node", str(compiler()), *OPTIONS, script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    wrong = [
        line for line in done.stdout.splitlines() if not line.startswith(("vendor", " "))
    ]  # indented: more of an error
    assert wrong == []
