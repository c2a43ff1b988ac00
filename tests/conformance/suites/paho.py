"""Eclipse Paho's interoperability tests (`interoperability/client_test.py` and `client_test5.py` of a checkout)."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.conformance.suites.case import CaseResult, SuiteError
from tests.support.configured_gateway import address, gateway_with, resources

FILES: Final = {"paho-3.1.1": "client_test.py", "paho-5": "client_test5.py"}
CASE_S: Final = 180.0
LINES_SHOWN: Final = 6
_TEST: Final = re.compile(r"^    def (test\w+)", re.MULTILINE)


def run_paho(suite: str, checkout: Path, folder: Path, applies: Callable[[str], bool]) -> list[CaseResult]:
    """Run each test by itself against one gateway. Raises SuiteError without the suite."""
    program = checkout / "interoperability" / FILES[suite]
    if not program.is_file():
        raise SuiteError(f"{program} does not exist: pass a checkout of eclipse/paho.mqtt.testing")
    names = [name for name in _TEST.findall(program.read_text()) if applies(name)]
    text = resources(address("all", "#", "topic"), space="authenticationService: {name: none}")
    with gateway_with(folder, text) as gateway:
        return [_run(program, name, gateway.port("mqtt")) for name in names]


def _run(program: Path, name: str, port: int) -> CaseResult:
    # unittest reads the arguments too: a value of `-p` would be the name of a test for it, so the option has its value.
    command = [sys.executable, program.name, f"Test.{name}", "-p", str(port)]
    if program.name == FILES["paho-3.1.1"]:
        code = f"import sys, runpy; sys.argv[1:] = ['-p{port}']; import unittest as u; m = u.main; "
        code += f"u.main = lambda: m(argv=['x', 'Test.{name}']); runpy.run_path('{program.name}', run_name='__main__')"
        command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(
            command,
            cwd=program.parent,
            capture_output=True,
            text=True,
            timeout=CASE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return CaseResult(name, False, f"not finished after {CASE_S:g} s")
    shown = "\n".join((done.stdout + done.stderr).splitlines()[-LINES_SHOWN:])
    return CaseResult(name, done.returncode == 0 and "OK" in done.stderr, shown)
