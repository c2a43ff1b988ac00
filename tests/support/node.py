"""Packages of Node.js that tests run against; the project itself depends on none of them.

`python -m tests.support.node` installs the pinned ones (`tests/support/npm`) into the environment, with npm. Without it
`NODE_PATH` names the folders that have them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

PINNED: Final = Path(__file__).with_name("npm")
"""Folder with the names and the pins, which have hashes."""
FOLDER: Final = Path(sys.prefix) / "share" / "waypost" / "node"
"""Place of the packages in the environment."""
INSTALL: Final = (
    *("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-progress"),
    *("--fetch-retries=1", "--fetch-timeout=20000"),
)
INSTALL_S_MAX: Final = 120.0
"""Timeout of the installation, which takes some seconds."""


def module_folder(name: str) -> Path | None:
    """Return the folder of a package of Node.js; None if no folder of `NODE_PATH` has it."""
    if shutil.which("node") is None:
        return None
    folders = os.environ.get("NODE_PATH", "").split(os.pathsep)
    found = (Path(folder, name) for folder in folders if folder)
    return next((path for path in found if (path / "package.json").exists()), None)


def install(folder: Path = FOLDER) -> int:
    """Install the pinned packages; return npm's exit code, or 1 without an end in time."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PINNED / name, folder / name)
    try:
        return subprocess.run([*INSTALL, "--prefix", str(folder)], check=False, timeout=INSTALL_S_MAX).returncode
    except subprocess.TimeoutExpired:
        return 1


if FOLDER.is_dir():
    given = os.environ.get("NODE_PATH")
    os.environ["NODE_PATH"] = os.pathsep.join(filter(None, (given, str(FOLDER / "node_modules"))))

HOW: Final = "python -m tests.support.node installs it"
mqtt_js = pytest.mark.skipif(module_folder("mqtt") is None, reason=f"MQTT.js is not installed: {HOW}")
rhea = pytest.mark.skipif(None in map(module_folder, ("rhea", "ws")), reason=f"rhea or ws is not installed: {HOW}")
typescript = pytest.mark.skipif(module_folder("typescript") is None, reason=f"TypeScript is not installed: {HOW}")

if __name__ == "__main__":
    sys.exit(install())
