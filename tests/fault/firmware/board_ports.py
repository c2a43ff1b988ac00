"""Ports of the portable core to boards, built for this machine: the SDK of a board is played by OpenSSL and files."""

from __future__ import annotations

import base64
import functools
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.fault.firmware.programs import C_CORE, C_SANITIZERS, EXAMPLES
from tests.support.artefacts import OTHER_KEY

_HERE: Final = Path(__file__).parent
_CORE: Final = EXAMPLES / "portable_c"
_BUILT: Final[list[tempfile.TemporaryDirectory[str]]] = []
_WARNINGS: Final = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wshadow", "-Wvla")


@dataclass(frozen=True)
class BoardPort:
    """A port, and what plays its SDK."""

    name: str
    folder: Path
    """Folder with the sources of the port."""
    sources: tuple[str, ...]
    headers: tuple[str, ...]
    """Headers of the SDK that the port includes."""
    declarations: str
    """File with the declarations of these headers."""
    host: str
    """File that plays the SDK, with the main program."""


ESP_IDF: Final = BoardPort(
    "esp_idf",
    EXAMPLES / "esp_idf" / "main",
    ("esp32_port",),
    tuple(f"{each}.h" for each in (
        "esp_ota_ops", "esp_partition", "esp_random", "esp_system", "esp_timer", "esp_tls", "nvs",
    )),
    "esp_idf_api.h",
    "esp_idf_host.c",
)  # fmt: skip
ZEPHYR: Final = BoardPort(
    "zephyr",
    EXAMPLES / "zephyr" / "src",
    ("zephyr_port",),
    tuple(f"zephyr/{each}.h" for each in (
        "dfu/mcuboot", "drivers/flash", "fs/nvs", "kernel", "net/socket", "net/tls_credentials", "random/random",
        "storage/flash_map", "sys/reboot",
    )),
    "zephyr_api.h",
    "zephyr_host.c",
)  # fmt: skip
PORTS: Final = (ESP_IDF, ZEPHYR)


def _der(pem: str) -> bytes:
    return base64.b64decode("".join(pem.splitlines()[1:-1]))


@functools.cache
def build_folder(port: BoardPort) -> Path:
    """Return a folder with the headers of the SDK and the maker's key."""
    _BUILT.append(tempfile.TemporaryDirectory(prefix=f"waypost-{port.name}-"))
    made = Path(_BUILT[-1].name)
    (made / "psa").mkdir()
    (made / "psa" / "crypto.h").write_text('#include "psa_api.h"\n')
    for header in port.headers:
        (made / header).parent.mkdir(parents=True, exist_ok=True)
        (made / header).write_text(f'#include "{port.declarations}"\n')
    (made / "maker_key.h").write_text(", ".join(map(str, _der(OTHER_KEY.public.pem))))
    return made


@functools.cache
def board_firmware(port: BoardPort, version: str, sequence: int) -> bytes:
    """Return the port as a program of this machine, as this version of the artefact `pump`."""
    folder = build_folder(port)
    made = folder / f"device-{version}"
    texts = {"NAME": "pump", "VERSION": version, "BOARD": "posix"}
    fields = [f'-DFIRMWARE_{key}="{value}"' for key, value in texts.items()]
    sources = [
        *(port.folder / f"{name}.c" for name in port.sources),
        *(_CORE / f"{name}.c" for name in (*C_CORE, "waypost_psa", "posix_network", "posix_boot_record")),
        *(_HERE / name for name in (port.host, "psa_host.c")),
    ]
    includes = [f"-I{each}" for each in (folder, port.folder, _CORE, _HERE)]
    command = ["gcc", *_WARNINGS, *C_SANITIZERS, *fields, f"-DFIRMWARE_SEQUENCE={sequence}", *includes]
    command += [*map(str, sources), "-o", str(made), "-lssl", "-lcrypto", "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return made.read_bytes()
