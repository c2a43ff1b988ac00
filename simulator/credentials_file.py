"""CSV with the credentials of devices: one row a device. It is read, and written for devices that are registered."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bridge.hidden import hides
from edge.output.errors import CommandError, Exit
from simulator.limits import CREDENTIALS_BYTES_MAX

COLUMNS: Final = ("device", "user", "password")
FILE_MODE: Final = 0o600


@hides("password")
class DeviceCredentials(NamedTuple):
    """User and password of a device."""

    device: str
    user: str
    password: str


def read_credentials(path: Path) -> dict[str, DeviceCredentials]:
    """Return the credentials by device. Raises CommandError, with the line of the first error."""
    try:
        with path.open("rb") as file:
            content = file.read(CREDENTIALS_BYTES_MAX + 1)
    except OSError as why:
        step = "give a CSV with the columns device, user, password; --register-gateway and --register-hub write one"
        raise CommandError(f"{path}: {why.strerror}", step, error="file-not-accessible", code=Exit.USAGE) from None
    if len(content) > CREDENTIALS_BYTES_MAX:
        raise _invalid(path, 0, f"larger than {CREDENTIALS_BYTES_MAX} bytes")
    try:
        rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig")), strict=True))
    except (csv.Error, UnicodeDecodeError) as why:
        raise _invalid(path, 0, f"not a CSV: {why}") from None
    return _parse(path, rows)


def write_credentials(path: Path, credentials: Mapping[str, DeviceCredentials]) -> None:
    """Write credentials to a file that only its owner reads. Raises CommandError."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(credentials.values())
    new = path.with_name(f".{path.name}.new")
    try:
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "w", encoding="utf-8") as file:
            file.write(text.getvalue())
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as why:
        raise CommandError(f"cannot write {path}: {why.strerror}", error="file-not-accessible") from None


def _parse(path: Path, rows: Sequence[Sequence[str]]) -> dict[str, DeviceCredentials]:
    head = [each.strip().lower() for each in rows[0]] if rows else []
    missing = [each for each in COLUMNS if each not in head]
    if missing:
        raise _invalid(path, 1, f"no column {', '.join(missing)}; its first line names them: {','.join(COLUMNS)}")
    places = [head.index(each) for each in COLUMNS]
    found: dict[str, DeviceCredentials] = {}
    for line, row in enumerate(rows[1:], 2):
        if not any(row):
            continue
        if len(row) < len(head):
            raise _invalid(path, line, f"{len(row)} values for {len(head)} columns")
        device, user, password = (row[place] for place in places)
        if not device or not password:
            raise _invalid(path, line, "device and password are required")
        if device in found:
            raise _invalid(path, line, f"{device[:80]} is in an earlier line too")
        found[device] = DeviceCredentials(device, user or device, password)
    return found


def _invalid(path: Path, line: int, words: str) -> CommandError:
    where = f"{path}:{line}" if line else str(path)
    return CommandError(
        f"{where}: {words}", "correct the file, and start again", error="invalid-value", code=Exit.USAGE
    )
