"""`python -m tests.sanitizers`: run the tests of the C extension under AddressSanitizer and UndefinedBehaviorSanitizer.

The sanitized extension is compiled in a copy of the checkout, so the checkout keeps its own. Arguments are those of
pytest, and replace the tests that run by default; `-m MODULE …` runs another program there, for example the fuzzers.
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
    "tests/unit/test_hatch_build.py",
    "tests/unit/test_native.py",
    "tests/unit/amqp",
    "tests/unit/mqtt",
    "tests/property/amqp",
    "tests/property/bridge/test_batch_content.py",
    "tests/property/broker/test_amqp_arrivals.py",
    "tests/property/mqtt/test_arrivals.py",
    "tests/property/mqtt/test_departures.py",
    "tests/property/store/test_loops.py",
)


def main(arguments: list[str]) -> int:
    """Return the exit code of what ran."""
    program = arguments if arguments[:1] == ["-m"] else ["-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    if not arguments:
        program += [name for name in TESTS if (ROOT / name).exists()]
    with tempfile.TemporaryDirectory(prefix="waypost-sanitizers-") as folder:
        root = Path(folder)
        for name in COPIED:
            _copy(ROOT / name, root / name)
        compiler = os.environ.get("CC") or "cc"
        os.environ["CC"] = f"{compiler} {OPTIONS}"
        hatch_build.compile_extension(root)
        os.environ["CC"] = compiler
        runtime = subprocess.check_output([*shlex.split(compiler), "-print-file-name=libasan.so"], text=True).strip()
        environment = {
            **os.environ,
            "PYTHONPATH": folder,
            "LD_PRELOAD": runtime,
            "PYTHONMALLOC": "malloc",  # so that it knows each object's own memory
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # Python keeps what it has at its end
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        return subprocess.run([sys.executable, *program], cwd=folder, env=environment, check=False).returncode


def _copy(source: Path, copy: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    else:
        shutil.copy(source, copy)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
