"""`python -m tests.sanitizers`: run the tests of the C extension under AddressSanitizer and UndefinedBehaviorSanitizer.

The sanitized extension is compiled in a folder of its own and loaded in place of the checkout's. Arguments are those of
pytest; paths replace the default tests. `-m MODULE …` runs another program with it, for example the fuzzers.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import hatch_build
from tests.conftest import ROOT

OPTIONS: Final = "-g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
LOAD: Final = """if True:
    import importlib.util, runpy, sys
    import bridge
    spec = importlib.util.spec_from_file_location("bridge._native", sys.argv[1])
    bridge._native = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bridge._native)
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""Python program that loads the extension of its first argument, and runs the module of its second one."""
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
    module, *options = arguments[1:] if arguments[:1] == ["-m"] else ("pytest", *_options_of_pytest(arguments))
    with tempfile.TemporaryDirectory(prefix="waypost-sanitizers-") as folder:
        extension = _compile_in(Path(folder))
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LD_PRELOAD": runtime,
            "PYTHONMALLOC": "malloc",  # so that each object has its own memory
            # Python keeps objects at its end. The report goes to a file, because pytest captures the standard error.
            "ASAN_OPTIONS": f"detect_leaks=0:allocator_may_return_null=1:log_path={folder}/report",
            "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={folder}/report",
        }
        program = [sys.executable, "-c", LOAD, str(extension), module, *options]
        code = subprocess.run(program, cwd=ROOT, env=environment, check=False).returncode
        for report in Path(folder).glob("report.*"):
            sys.stderr.write(report.read_text(errors="replace"))
        return code


def _options_of_pytest(arguments: Sequence[str]) -> tuple[str, ...]:
    chosen = () if any(not each.startswith("-") for each in arguments) else TESTS
    plugins = ("-p", "no:cacheprovider", "-p", "no:faulthandler")  # signals are for the sanitizer to report
    return ("-q", *plugins, *arguments, *chosen)


def _compile_in(folder: Path) -> Path:
    """Compile the extension with sanitizers; return its path."""
    for name in hatch_build.SOURCES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    usual = os.environ.get("CC")
    os.environ["CC"] = f"{shlex.join(_compiler())} {OPTIONS}"
    try:
        return hatch_build.compile_extension(folder)
    finally:
        os.environ.pop("CC")
        if usual is not None:
            os.environ["CC"] = usual


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC") or "cc")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
