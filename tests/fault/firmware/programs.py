"""Examples that run here: how each is started, and what the machine needs for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.checkout import ROOT
from tests.support.node import FOLDER, mqtt_js

EXAMPLES: Final = ROOT / "firmware_examples"


@dataclass(frozen=True)
class ExampleProgram:
    """One program of an example."""

    name: str
    command: Callable[[], tuple[str, ...]]
    """Return the command line."""
    listener: str = "mqtts"
    answers_to_response_topic: bool = True
    """False for MQTT 3.1.1, in which a command names no address for its answer."""
    marks: tuple[pytest.MarkDecorator, ...] = ()

    def environment(self) -> dict[str, str]:
        """Return the environment of the process, without settings of the device."""
        kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
        modules = os.environ.get("NODE_PATH", str(FOLDER / "node_modules"))
        return kept | {"NODE_PATH": modules, "PYTHONDONTWRITEBYTECODE": "1"}


def _python(file: str) -> Callable[[], tuple[str, ...]]:
    return lambda: (sys.executable, "-B", str(EXAMPLES / "python" / file))


def _node() -> tuple[str, ...]:
    return ("node", str(EXAMPLES / "nodejs" / "device.js"))


PROGRAMS: Final = (
    ExampleProgram("python-mqtt", _python("mqtt_device.py")),
    ExampleProgram("nodejs", _node, marks=(mqtt_js,)),
)


def parameters() -> list[Any]:
    """Return the programs as parameters of a test."""
    return [pytest.param(each, id=each.name, marks=each.marks) for each in PROGRAMS]


def runnable() -> list[ExampleProgram]:
    """Return the programs for which this machine has everything."""
    return [each for each in PROGRAMS if not any(mark.args[0] for mark in each.marks)]


def folder_of(program: ExampleProgram) -> Path:
    """Return the folder that a user copies."""
    return EXAMPLES / program.name.partition("-")[0]
