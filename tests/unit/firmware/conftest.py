"""The Pico W example, imported as on a board: its files in one folder, no package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

PICO = Path(__file__).parents[3] / "firmware_examples" / "raspberry_pi_pico_w_mqtt"
NAMES = ("main", "mqtt_client", "spool", "config")


class Firmware:
    """Modules of the firmware."""

    def __init__(self) -> None:
        self.main: ModuleType = importlib.import_module("main")
        self.mqtt_client: ModuleType = importlib.import_module("mqtt_client")
        self.spool: ModuleType = importlib.import_module("spool")
        self.folder = PICO


@pytest.fixture(scope="session")
def firmware() -> Iterator[Firmware]:
    kept = {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(PICO))
    try:
        yield Firmware()
    finally:
        sys.path.remove(str(PICO))
        sys.dont_write_bytecode = writes
        for name in NAMES:
            sys.modules.pop(name, None)
        sys.modules.update(kept)
