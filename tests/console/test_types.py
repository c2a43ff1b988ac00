"""The consoles' scripts satisfy the types in their comments, as TypeScript checks them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.node import module_folder, typescript

OPTIONS = (
    *("--checkJs", "--allowJs", "--noEmit", "--skipLibCheck", "--target", "es2022", "--module", "esnext"),
    *("--moduleResolution", "bundler", "--lib", "es2023,dom,dom.iterable"),
)
CONSOLES = {"gateway.js": "edge/appliance/console/pages", "hub.js": "cloud/console/pages"}


@typescript
@pytest.mark.parametrize("script", CONSOLES)
def test_scripts_satisfy_their_types(tmp_path: Path, script: str) -> None:
    shutil.copytree(ROOT / "bridge" / "console", tmp_path, dirs_exist_ok=True)
    shutil.copytree(ROOT / CONSOLES[script], tmp_path, dirs_exist_ok=True)
    package = module_folder("typescript")
    assert package is not None
    command = ["node", str(package / "lib" / "tsc.js"), *OPTIONS, script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    wrong = [
        line for line in done.stdout.splitlines() if not line.startswith(("vendor", " "))
    ]  # indented: more of an error
    assert wrong == []
