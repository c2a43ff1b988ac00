"""Gateway that holds images for devices, and the portable C program in two slots with its boot loader."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from bridge.artefacts.keys import MakerPrivateKey
from tests.fault.firmware.programs import (
    BOARD_FOLDER,
    C_FLAGS,
    C_SANITIZERS,
    C_SOURCES,
    EXAMPLES,
    ExampleProgram,
    board_arguments,
)
from tests.fault.firmware.site import WAIT_S, ExampleRun, ExampleSite
from tests.support.artefact_gateway import ArtefactGateway
from tests.support.artefact_hub import ArtefactHubServer
from tests.support.artefacts import KEY, OTHER_KEY
from tests.support.built_examples import build_go, build_rust, built_program
from tests.support.processes import wait_until

UPDATE_WAIT_S: Final = 180.0
"""Longest update: on a busy disk each part waits for its sync."""
NAME: Final = "pump"
BOARD: Final = "posix"
_FOLDER: Final = EXAMPLES / "portable_c"
_BUILT: Final[list[tempfile.TemporaryDirectory[str]]] = []
RECORD_BYTES: Final = 256
RECORD_STATE: Final = 9
"""Place of the state in a record of the update (`waypost_update.c`); behind it is the state that was reported."""


@functools.cache
def _build_folder() -> Path:
    """Return a folder with the objects that all versions share, the boot loader, and the key of the maker."""
    _BUILT.append(tempfile.TemporaryDirectory(prefix="waypost-firmware-"))
    made = Path(_BUILT[-1].name)
    pem = KEY.public.pem + OTHER_KEY.public.pem
    (made / "maker_key.h").write_text("".join(f'"{line}\\n"\n' for line in pem.splitlines()))
    for name in C_SOURCES:
        if name != "posix_update":
            _compile("-c", str(_FOLDER / f"{name}.c"), "-o", str(made / f"{name}.o"))
    sources = [str(_FOLDER / f"{name}.c") for name in ("posix_boot", "posix_boot_record")]
    _compile(*sources, "-o", str(made / "waypost-boot"))
    return made


def _compile(*arguments: str) -> None:
    done = subprocess.run(["gcc", *C_FLAGS, *C_SANITIZERS, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@functools.cache
def firmware(version: str, sequence: int, *, has_key: bool = True) -> bytes:
    """Return the program as this version."""
    folder = _build_folder()
    update, made = folder / f"update-{version}.o", folder / f"device-{version}"
    texts = {"NAME": NAME, "VERSION": version, "BOARD": BOARD}
    fields = [f'-DFIRMWARE_{key}="{value}"' for key, value in texts.items()]
    fields += [f"-DFIRMWARE_SEQUENCE={sequence}", *([f"-I{folder}"] if has_key else [])]
    _compile(*fields, "-c", str(_FOLDER / "posix_update.c"), "-o", str(update))
    others = [str(folder / f"{name}.o") for name in C_SOURCES if name != "posix_update"]
    _compile(str(update), *others, "-o", str(made), "-lssl", "-lcrypto")
    return made.read_bytes()


class UpdateSite(ExampleSite):
    """Site with a gateway that holds images."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._hub = ArtefactHubServer()

    def __enter__(self) -> Self:
        self._hub.__enter__()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._hub.__exit__()

    def offer(self, version: str, image: bytes, **fields: Any) -> None:
        """Let the gateway hold this image and no other; `fields` replace those of its manifest."""
        self.offer_all({version: (image, fields)})

    def offer_all(self, offers: dict[str, tuple[bytes, dict[str, Any]]]) -> None:
        """Let the gateway hold these images, by their version, and no others."""
        for version, (image, fields) in offers.items():
            self._hub.add(image, **{"name": NAME, "version": version, "boards": (BOARD,), **fields})
        self.gateway.stop()
        shutil.rmtree(self.folder / "gw" / "artefacts", ignore_errors=True)  # a version is held only once
        keys = (KEY.public.pem, OTHER_KEY.public.pem)
        keeper = ArtefactGateway(self.folder / "gw", self._hub.port)
        keeper.want(*({"name": NAME, "version": version} for version in offers), keys=keys)
        keeper.run(lambda here: set(here.held) == {(NAME, version) for version in offers})
        self.gateway.start()

    def reports(self, device: str, arrived: dict[str, list[Any]]) -> list[tuple[str, str, str]]:
        """Return version, state and reason of the reports of a device."""
        found = [json.loads(each.payload) for each in arrived[f"plant/{device}/artefact-report"]]
        return [(each["version"], each["state"], each["reason"]) for each in found]


def _packed(program: str) -> Callable[..., bytes]:
    """Return what packs a program of the Python example as a version."""

    @functools.cache
    def pack(version: str, sequence: int, *, has_key: bool = True) -> bytes:
        keys = KEY.public.pem + OTHER_KEY.public.pem if has_key else ""
        texts = {"NAME": NAME, "VERSION": version, "SEQUENCE": sequence, "BOARD": BOARD, "MAKER_KEYS": keys}
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for path in (EXAMPLES / "python").glob("*.py"):
                shutil.copy(path, folder)
            (folder / "firmware.py").write_text("".join(f"{key} = {value!r}\n" for key, value in texts.items()))
            command = [sys.executable, "-B", str(folder / "pack.py"), program, str(folder / "image")]
            subprocess.run(command, check=True)
            return (folder / "image").read_bytes()

    return pack


@functools.cache
def _packed_node(version: str, sequence: int, *, has_key: bool = True) -> bytes:
    """Pack the MQTT program of the Node.js example as a version."""
    keys = KEY.public.pem + OTHER_KEY.public.pem if has_key else ""
    texts = {"NAME": NAME, "VERSION": version, "SEQUENCE": sequence, "BOARD": BOARD, "MAKER_KEYS": keys}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in (EXAMPLES / "nodejs").glob("*.js"):
            shutil.copy(path, folder)
        (folder / "firmware.js").write_text(f"module.exports = {json.dumps(texts)};\n")
        subprocess.run(["node", str(folder / "pack.js"), "mqtt_device", str(folder / "image")], check=True)
        return (folder / "image").read_bytes()


@functools.cache
def _built_go(version: str, sequence: int, *, has_key: bool = True) -> bytes:
    """Build the Go example as a version, with the libraries that `tests.support.built_examples` has downloaded."""
    keys = KEY.public.pem + OTHER_KEY.public.pem if has_key else ""
    texts = {"firmwareName": NAME, "firmwareVersion": version, "firmwareBoard": BOARD, "makerKeys": keys}
    fields = [f"\t{key} = {json.dumps(value)}\n" for key, value in texts.items()]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "go"
        shutil.copytree(EXAMPLES / "go", folder)
        content = f"package main\n\nconst (\n\tfirmwareSequence = {sequence}\n{''.join(fields)})\n"
        (folder / "firmware.go").write_text(content)
        build_go(folder, folder / "image")
        return (folder / "image").read_bytes()


@functools.cache
def _built_rust(version: str, sequence: int, *, has_key: bool = True) -> bytes:
    """Build the Rust example as a version. All versions share the built libraries."""
    keys = KEY.public.pem + OTHER_KEY.public.pem if has_key else ""
    texts = {"NAME": NAME, "VERSION": version, "BOARD": BOARD, "MAKER_KEYS": keys}
    fields = [f"pub const {key}: &str = {json.dumps(value)};\n" for key, value in texts.items()]
    folder = _rust_folder()
    (folder / "src" / "firmware.rs").write_text(f"pub const SEQUENCE: u64 = {sequence};\n{''.join(fields)}")
    return build_rust(folder).read_bytes()


@functools.cache
def _rust_folder() -> Path:
    """Return a copy of the Rust example, in a folder that lasts as long as this process."""
    _BUILT.append(tempfile.TemporaryDirectory(prefix="waypost-rust-"))
    folder = Path(_BUILT[-1].name) / "rust"
    shutil.copytree(EXAMPLES / "rust", folder)
    return folder


@functools.cache
def _packed_shell(version: str, sequence: int, *, has_key: bool = True) -> bytes:
    """Pack the program in shell as a version."""
    keys = KEY.public.pem + OTHER_KEY.public.pem if has_key else ""
    texts = {"name": NAME, "version": version, "sequence": sequence, "board": BOARD}
    fields = [f"firmware_{key}={value}\n" for key, value in texts.items()]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in (EXAMPLES / "curl").glob("*.sh"):
            shutil.copy(path, folder)
        (folder / "firmware.sh").write_text(f"{''.join(fields)}maker_keys='{keys}'\n")
        subprocess.run([str(folder / "pack.sh"), str(folder / "image")], check=True)
        return (folder / "image").read_bytes()


BOARD_NAMES: Final = (
    "HOST",
    "PORT",
    "DEVICE",
    "INTERVAL_MS",
    "SPOOL",
    "SPOOL_READINGS",
    "PASSWORD",
    "CA",
    "UPDATE_S",
    "TRIAL_S",
)
"""Settings of a device that the program for boards has."""


@functools.cache
def _packed_board(version: str, sequence: int, *, has_key: bool = True) -> bytes:
    """Pack the program for MicroPython as a version."""
    keys = KEY.public.pem + OTHER_KEY.public.pem if has_key else ""
    texts = {"NAME": NAME, "VERSION": version, "SEQUENCE": sequence, "BOARD": BOARD, "MAKER_KEYS": keys}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in (EXAMPLES / BOARD_FOLDER).glob("*.py"):
            shutil.copy(path, folder)
        (folder / "firmware.py").write_text("".join(f"{key} = {value!r}\n" for key, value in texts.items()))
        subprocess.run([sys.executable, "-B", str(folder / "pack.py"), str(folder / "image")], check=True)
        return (folder / "image").read_bytes()


def unpacked(image: bytes) -> dict[str, bytes]:
    """Return the files of an image for boards."""
    files = {}
    while image:
        line, _, rest = image.partition(b"\n")
        name, size = line.decode().split()
        files[name], image = rest[: int(size)], rest[int(size) :]
    return files


def _install_board(flash: Path, image: bytes) -> None:
    """Write boot loader, settings and program into the flash of a board."""
    for source, target in (("boot_loader", "boot_loader"), ("boot_loader", "main"), ("config", "config")):
        shutil.copy(EXAMPLES / BOARD_FOLDER / f"{source}.py", flash / f"{target}.py")
    (flash / "slot0").mkdir()
    for name, content in unpacked(image).items():
        (flash / "slot0" / name).write_bytes(content)


def _board_has(flash: Path, image: bytes) -> bool:
    return all((flash / "slot1" / name).read_bytes() == content for name, content in unpacked(image).items())


def _install_file(slots: Path, image: bytes) -> None:
    (slots / "slot0").write_bytes(image)
    (slots / "slot0").chmod(0o755)


def _file_has(slots: Path, image: bytes) -> bool:
    return (slots / "slot1").read_bytes() == image


def _power_on(settings: Mapping[str, object]) -> tuple[str, ...]:
    own = {name: value for name, value in settings.items() if name in BOARD_NAMES}
    return str(settings["SLOTS_FOLDER"]), *board_arguments(own)


def _loader(name: str, command: Callable[[], tuple[str, ...]]) -> ExampleProgram:
    return ExampleProgram(name, command, arguments=lambda settings: (str(settings["SLOTS_FOLDER"]),))


def _python_loader() -> tuple[str, ...]:
    return (sys.executable, "-B", str(EXAMPLES / "python" / "boot_loader.py"))


def _rust_boot() -> tuple[str, ...]:
    return (str(built_program("rust")),)


def _go_boot() -> tuple[str, ...]:
    return (str(built_program("go")),)


@dataclass(frozen=True)
class UpdatingProgram:
    """Example that updates itself."""

    loader: ExampleProgram
    """Boot loader."""
    image: Callable[..., bytes]
    """Return the program as a version with a sequence, with or without the key of the maker (`has_key`)."""
    language: str
    """Language of images in place of the program."""
    install: Callable[[Path, bytes], None] = _install_file
    """Write an image into slot 0 of a folder."""
    has: Callable[[Path, bytes], bool] = _file_has
    """Return whether slot 1 of a folder has this image."""
    key: MakerPrivateKey = KEY
    """Key of a maker that the program knows, for an algorithm that it has."""
    over_mqtt: bool = False
    """True if it gets images in chunks over MQTT."""


C_PROGRAM: Final = UpdatingProgram(
    _loader("portable_c", lambda: (str(_build_folder() / "waypost-boot"),)), firmware, "c"
)
PYTHON_PROGRAM: Final = UpdatingProgram(_loader("python-mqtt", _python_loader), _packed("mqtt_device"), "python")
NODE_PROGRAM: Final = UpdatingProgram(
    _loader("nodejs-mqtt", lambda: ("node", str(EXAMPLES / "nodejs" / "boot_loader.js"))), _packed_node, "node"
)
GO_PROGRAM: Final = UpdatingProgram(
    ExampleProgram("go", _go_boot, arguments=lambda settings: ("boot", str(settings["SLOTS_FOLDER"]))), _built_go, "c"
)
RUST_PROGRAM: Final = UpdatingProgram(
    ExampleProgram("rust", _rust_boot, arguments=lambda settings: ("boot", str(settings["SLOTS_FOLDER"]))),
    _built_rust,
    "c",
)
CURL_PROGRAM: Final = UpdatingProgram(
    ExampleProgram(
        "curl",
        lambda: (str(EXAMPLES / "curl" / "boot_loader.sh"),),
        listener="https",
        arguments=lambda settings: (str(settings["SLOTS_FOLDER"]),),
    ),
    _packed_shell,
    "c",
)
BOARD_PROGRAM: Final = UpdatingProgram(
    ExampleProgram(
        "micropython",
        lambda: (sys.executable, "-B", str(Path(__file__).with_name("micropython_board.py"))),
        arguments=_power_on,
    ),
    _packed_board,
    "board",
    install=_install_board,
    has=_board_has,
    key=OTHER_KEY,
    over_mqtt=True,
)
STATES: Final = ("", "downloading", "verified", "installed", "started", "healthy", "rolled-back")
"""States of an update; the number of one is its place."""


@dataclass(frozen=True)
class SlotsState:
    """State of a device, read from its disk."""

    kept: str
    trial: str
    update: int
    """State of the newest record of the update."""
    reported: int
    """State that the gateway has taken."""
    downloaded: int


class UpdatingDevice(ExampleRun):
    """Device with the program in two slots."""

    def __init__(
        self, site: UpdateSite, name: str, image: bytes, program: UpdatingProgram = C_PROGRAM, **settings: object
    ) -> None:
        folder = site.folder / name
        self.slots = folder / "slots"
        self.slots.mkdir(parents=True)
        program.install(self.slots, image)
        own: dict[str, object] = {
            "HOST": "127.0.0.1",
            "PORT": site.links[program.loader.listener].port,
            "DEVICE": name,
            "INTERVAL_MS": 50,
            "SPOOL_READINGS": 4096,
            "PASSWORD": site.add_device(name),
            "CA": site.authority.certificate,
            "UPDATE_URL": f"https://127.0.0.1:{site.links['https'].port}",
            "UPDATE_S": 1,
            "SLOTS_FOLDER": self.slots,
        }
        super().__init__(program.loader, folder, own | settings)

    @property
    def state(self) -> SlotsState:
        kept, trial = "0", "-"
        if (self.slots / "boot").exists():
            kept, trial, _ = (self.slots / "boot").read_text().split()
        other = self.slots / ("slot1" if kept == "0" else "slot0")
        if (part := other.with_suffix(".image")).exists():  # of a board
            other = part
        size = other.stat().st_size if other.exists() else 0
        if (self.slots / "update.json").exists():  # of all but the C program
            document = json.loads((self.slots / "update.json").read_text())
            numbers = [STATES.index(document[name]) for name in ("state", "reported")]
            return SlotsState(kept, trial, *numbers, size)
        files = [self.slots / name for name in ("update0", "update1")]
        data = b"".join(each.read_bytes() for each in files if each.exists())
        records = [data[start : start + RECORD_BYTES] for start in range(0, len(data), RECORD_BYTES)]
        newest = max(records, key=_count_of, default=b"")
        state, reported = newest[RECORD_STATE : RECORD_STATE + 2] or b"\0\0"
        return SlotsState(kept, trial, state, reported, size)

    def wait_until(self, met: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
        """Wait while the device runs."""
        self._wait(met, what, timeout_s)

    def wait_reported(self, *states: int) -> None:
        """Wait until the gateway has taken a report with one of these states."""

        def reported() -> bool:
            state = self.state
            return state.update == state.reported and state.update in states

        self.wait_until(reported, f"it reports {states}", timeout_s=UPDATE_WAIT_S)

    def wait_changes(self, count: int) -> None:
        """Wait until its disk has changed this often, as far as looking every millisecond shows."""
        for _ in range(count):
            before, stored = self.state, self.spool.next

            def changed(before: SlotsState = before, stored: int = stored) -> bool:
                return self.state != before or self.spool.next > stored + 5

            wait_until(changed, timeout_s=WAIT_S, what=f"the disk changes: {self.said()[-2000:]}", every_s=0.001)


def _count_of(record: bytes) -> int:
    return int.from_bytes(record[4:8], "little")


def chance() -> random.Random:
    """Return a source of chance; its seed is printed."""
    seed = int(os.environ.get("WAYPOST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"WAYPOST_SEED={seed}")
    return random.Random(seed)
