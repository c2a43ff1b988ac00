"""`python -m tests.sanitizers`: run the tests of the C extension under AddressSanitizer and UndefinedBehaviorSanitizer.

The sanitized extension is compiled in a copy of the checkout, so the checkout keeps its own. Arguments are those of
pytest; paths replace the default tests. `-m MODULE …` runs another program there, for example the fuzzers.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import hatch_build
from tests.conftest import ROOT

OPTIONS: Final = "-g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
COPIED: Final = ("bridge", "edge", "cloud", "tests", "pyproject.toml", "hatch_build.py")
TESTS: Final = (
    "tests/unit/test_native.py",
    "tests/unit/amqp/test_loops.py",
    "tests/property/amqp/test_loops_agree.py",
    "tests/property/bridge/test_batch_content.py",
    "tests/property/broker/test_amqp_arrivals.py",
    "tests/property/fuzz/test_lanes.py",
    "tests/property/mqtt/test_arrivals.py",
    "tests/property/mqtt/test_departures.py",
    "tests/property/store/test_loops.py",
)
"""Tests that call functions of the extension with invalid data, changing data, or data of a peer."""


def find_runtime() -> str:
    """Return the compiler's AddressSanitizer library, or an empty text."""
    try:
        command = [*_compiler(), "-print-file-name=libasan.so"]
        found = subprocess.check_output(command, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found if Path(found).is_absolute() else ""


def main(arguments: list[str]) -> int:
    """Return the exit code of the program."""
    runtime = find_runtime()
    if not runtime:
        sys.stderr.write("the compiler has no AddressSanitizer: apt-get install gcc\n")
        return 2
    program = arguments
    if arguments[:1] != ["-m"]:
        chosen = () if any(not each.startswith("-") for each in arguments) else TESTS
        plugins = ("-p", "no:cacheprovider", "-p", "no:faulthandler")  # signals are for the sanitizer to report
        program = ["-m", "pytest", "-q", *plugins, *arguments, *chosen]
    with tempfile.TemporaryDirectory(prefix="waypost-sanitizers-") as folder:
        for name in COPIED:
            _copy(ROOT / name, Path(folder, name))
        usual = os.environ.get("CC")
        os.environ["CC"] = f"{shlex.join(_compiler())} {OPTIONS}"
        hatch_build.compile_extension(Path(folder))
        environment = {
            **os.environ,
            "CC": usual or "cc",
            "PYTHONPATH": folder,
            "LD_PRELOAD": runtime,
            "PYTHONMALLOC": "malloc",  # so that each object has its own memory
            # Python keeps objects at its end. The report goes to a file, because pytest captures the standard error.
            "ASAN_OPTIONS": f"detect_leaks=0:allocator_may_return_null=1:log_path={folder}/report",
            "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={folder}/report",
        }
        code = subprocess.run([sys.executable, *program], cwd=folder, env=environment, check=False).returncode
        for report in Path(folder).glob("report.*"):
            sys.stderr.write(report.read_text(errors="replace"))
        return code


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC") or "cc")


def _copy(source: Path, copy: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    else:
        shutil.copy(source, copy)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
