"""Examples that run here: how each is started, and what the machine needs for it."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.built_examples import built_program
from tests.support.checkout import ROOT
from tests.support.node import FOLDER, mqtt_js, rhea

EXAMPLES: Final = ROOT / "firmware_examples"
BOARD_FOLDER: Final = "raspberry_pi_pico_w_mqtt"


@dataclass(frozen=True)
class ExampleProgram:
    """One program of an example."""

    name: str
    command: Callable[[], tuple[str, ...]]
    """Return the command line."""
    listener: str = "mqtts"
    answers_to_response_topic: bool = True
    """False for MQTT 3.1.1, in which a command names no address for its answer."""
    last_will: bool = True
    has_spool_file: bool = True
    """False if its spool is a folder, in a format of its own."""
    stop_signal: int = signal.SIGTERM
    arguments: Callable[[Mapping[str, object]], tuple[str, ...]] = lambda settings: ()
    """Return settings of a program that reads them from its command line."""
    marks: tuple[pytest.MarkDecorator, ...] = ()

    def environment(self) -> dict[str, str]:
        """Return the environment of the process, without settings of the device."""
        kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
        modules = os.environ.get("NODE_PATH", str(FOLDER / "node_modules"))
        python = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
        return kept | {"NODE_PATH": modules, "ASAN_OPTIONS": NO_LEAK_CHECK, **python}


def _python(file: str) -> Callable[[], tuple[str, ...]]:
    return lambda: (sys.executable, "-B", str(EXAMPLES / "python" / file))


def _node(file: str) -> Callable[[], tuple[str, ...]]:
    return lambda: ("node", str(EXAMPLES / "nodejs" / file))


C_FLAGS: Final = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wshadow", "-Wvla")
NO_LEAK_CHECK: Final = "detect_leaks=0"
"""Options of AddressSanitizer: a search for leaks needs ptrace, which containers refuse."""
C_CORE: Final = ("waypost_device", "waypost_update", "waypost_manifest", "waypost_http")
"""Files of the portable core, which every port compiles."""
C_SOURCES: Final = (*C_CORE, "posix_main", "posix_network", "posix_update", "posix_boot_record")
C_SANITIZERS: Final = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@functools.cache
def _portable_c() -> tuple[str, ...]:
    """Build the program with sanitizers, in a folder that lasts as long as this process."""
    folder = EXAMPLES / "portable_c"
    _BUILT.append(tempfile.TemporaryDirectory(prefix="waypost-portable-c-"))
    made = Path(_BUILT[-1].name) / "waypost-device"
    sources = [str(folder / f"{name}.c") for name in C_SOURCES]
    command = ["gcc", *C_FLAGS, *C_SANITIZERS, "-o", str(made), *sources, "-lssl", "-lcrypto"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return (str(made),)


_BUILT: Final[list[tempfile.TemporaryDirectory[str]]] = []
NEEDS_C: Final = pytest.mark.skipif(
    shutil.which("gcc") is None or not Path("/usr/include/openssl/ssl.h").exists(),
    reason="gcc or libssl-dev is not installed",
)
_BOARD_NAMES: Final = {
    "HOST": "GATEWAY",
    "CA": "TLS_CA_FILE",
    "CERTIFICATE": "TLS_CERTIFICATE_FILE",
    "KEY": "TLS_KEY_FILE",
    "SPOOL_READINGS": "RING",
}
"""Settings of the example for boards that have other names there."""


def _board() -> tuple[str, ...]:
    return (sys.executable, "-B", str(EXAMPLES / BOARD_FOLDER / "main.py"))


def board_arguments(settings: Mapping[str, object]) -> tuple[str, ...]:
    device = settings["DEVICE"]
    addresses = {
        "ADDRESS": f"plant/{device}",
        "STATUS_ADDRESS": f"status/{device}",
        "COMMAND_ADDRESS": f"command/{device}/#",
        "ANSWER_ADDRESS": f"command-response/{device}",
        "USERNAME": device if settings.get("PASSWORD") else "",
    }
    named = {_BOARD_NAMES.get(name, name): value for name, value in settings.items()}
    return tuple(f"{name}={value}" for name, value in (addresses | named).items())


NEEDS_CURL: Final = pytest.mark.skipif(
    None in map(shutil.which, ("curl", "jq", "flock", "openssl")), reason="curl, jq or openssl is not installed"
)


def _curl() -> tuple[str, ...]:
    return (str(EXAMPLES / "curl" / "device.sh"),)


def _built(name: str) -> Callable[[], tuple[str, ...]]:
    return lambda: (str(built_program(name)),)


def needs_built(name: str) -> tuple[pytest.MarkDecorator, ...]:
    """Return the marks of a program that takes minutes to build; it runs with the slow tests."""
    reason = f"the example in {name} is not built: python -m tests.support.built_examples builds it"
    return pytest.mark.slow, pytest.mark.skipif(not built_program(name).exists(), reason=reason)


PROGRAMS: Final = (
    ExampleProgram("python-mqtt", _python("mqtt_device.py")),
    ExampleProgram("python-amqp", _python("amqp_device.py"), listener="amqps"),
    ExampleProgram("go", _built("go"), answers_to_response_topic=False, marks=needs_built("go")),
    ExampleProgram("rust", _built("rust"), marks=needs_built("rust")),
    ExampleProgram("curl", _curl, listener="https", last_will=False, has_spool_file=False, marks=(NEEDS_CURL,)),
    ExampleProgram("nodejs-mqtt", _node("mqtt_device.js"), marks=(mqtt_js,)),
    ExampleProgram("nodejs-amqp", _node("amqp_device.js"), listener="amqps", marks=(rhea,)),
    ExampleProgram(
        "micropython",
        _board,
        arguments=board_arguments,
        stop_signal=signal.SIGINT,
        answers_to_response_topic=False,
        has_spool_file=False,
    ),
    ExampleProgram("portable_c", _portable_c, answers_to_response_topic=False, marks=(NEEDS_C,)),
)


def parameters(*, has_spool_file: bool = False) -> list[Any]:
    """Return the programs as parameters of a test: all, or those with a spool file."""
    chosen = [each for each in PROGRAMS if each.has_spool_file or not has_spool_file]
    return [pytest.param(each, id=each.name, marks=each.marks) for each in chosen]


def runnable() -> list[ExampleProgram]:
    """Return the programs for which this machine has everything."""
    return [each for each in PROGRAMS if not any(mark.name == "skipif" and mark.args[0] for mark in each.marks)]


def folder_of(program: ExampleProgram) -> Path:
    """Return the folder that a user copies."""
    return EXAMPLES / (BOARD_FOLDER if program.name == "micropython" else program.name.partition("-")[0])
