"""Board with MicroPython, played by CPython: `micropython_board.py FOLDER SETTINGS…` starts main.py after each reset.

`board_stub` has its modules.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

EXIT_RESET = 75
PAUSE_S = 0.2
STUB = Path(__file__).parent / "board_stub"


def main() -> int:
    """Start the board until its program ends; return the exit code."""
    folder, *settings = sys.argv[1:]
    variables = os.environ | {"PYTHONPATH": str(STUB)}
    while True:
        command = [sys.executable, "-B", "main.py", *settings]
        code = subprocess.run(command, cwd=folder, env=variables, check=False).returncode
        if code >= 0 and code != EXIT_RESET:
            return code
        time.sleep(PAUSE_S)  # as the boot of a board


if __name__ == "__main__":
    sys.exit(main())
