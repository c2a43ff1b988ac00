"""Support archive: findings, configuration, figures of the store, and logs, without messages and secrets."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import yaml

from bridge.version import VERSION
from edge.appliance.doctor.check import CheckContext, CheckResult
from edge.appliance.doctor.redaction import Redactor, key_files, known_secrets
from edge.appliance.store.figures import figures_of
from edge.appliance.store.recovery.verification import Depth, verify
from edge.appliance.store.room import StoreBounds
from edge.appliance.store.shared import store_path
from edge.broker.store.errors import StoreError
from edge.output.document import json
from edge.output.text import line
from edge.output.times import moment

LOG_BYTES_MAX: Final = 2_000_000
"""Size of the end of each log file; earlier lines seldom explain a current problem."""
LOG_FILES_MAX: Final = 20
JOURNAL_LINES: Final = 5000
JOURNAL_TIMEOUT_S: Final = 20.0
SYSTEM_FILES: Final = (
    "proc/meminfo", "proc/cpuinfo", "proc/mounts", "proc/swaps", "proc/loadavg", "proc/uptime", "proc/version",
    "proc/pressure/io", "proc/pressure/memory", "etc/os-release", "etc/resolv.conf", "etc/fstab",
)  # fmt: skip


def write_bundle(
    target: Path, context: CheckContext, results: Sequence[CheckResult], logs: Sequence[Path] = ()
) -> list[str]:
    """Write the archive, readable by its owner alone; return the names of its files. Raises OSError."""
    documents = [resource.document for resource in context.resources]
    redactor = Redactor(known_secrets(context.configuration, documents), key_files(context.configuration))
    if target.exists() and not target.is_file():
        raise OSError(errno.EEXIST, "not a regular file", str(target))
    part = target.with_name(target.name + ".part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    names: list[str] = []
    try:
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in _contents(context, results, redactor, logs):
                data = text.encode("utf-8", "replace")
                entry = tarfile.TarInfo(f"waypost-doctor/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(context.now()), 0o600
                archive.addfile(entry, io.BytesIO(data))
                names.append(name)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return names


def _contents(
    context: CheckContext, results: Sequence[CheckResult], redactor: Redactor, logs: Sequence[Path]
) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each file, without secrets."""
    yield (
        "about.txt",
        f"waypost {VERSION}\nmade {moment(context.now())}\nNo message and no secret is in this archive.\n",
    )
    yield "doctor.json", _json(redactor.document(msgspec.to_builtins(list(results))))
    yield "configuration/resources.yaml", _yaml([redactor.document(r.document) for r in context.resources])
    effective = msgspec.to_builtins(context.configuration, str_keys=True, builtin_types=(bytes,), enc_hook=str)
    yield "configuration/effective.json", _json(redactor.document(effective))
    if context.data is not None and os.access(store_path(context.data), os.R_OK):
        yield "store/info.json", redactor.text(_store(context, store_path(context.data)))
        yield "store/verify.json", redactor.text(_verified(store_path(context.data)))
    if context.data is not None and context.data.is_dir():
        yield "data.txt", _listing(context.data)
    for name in SYSTEM_FILES:
        text = context.text(*name.split("/"))
        if text is not None:
            yield f"system/{name.replace('/', '-')}", redactor.text(text)
    for path in [*_logs_in(context.data), *logs][:LOG_FILES_MAX]:
        tail = _tail(path)
        if tail is not None:
            yield f"logs/{path.name}", redactor.text(tail)
    journal = _journal()
    if journal:
        yield "logs/journal.txt", redactor.text(journal)


def _json(value: object) -> str:
    return json(value, indent=1)


def _yaml(documents: Sequence[object]) -> str:
    return yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True)


def _store(context: CheckContext, path: Path) -> str:
    try:
        return _json(
            figures_of(path, running=context.running, now=context.now(), bounds=StoreBounds.of(context.configuration))
        )
    except StoreError as error:
        return _json({"error": str(error)})


def _verified(path: Path) -> str:
    try:
        return _json(verify(path, Depth.TOUCH))
    except StoreError as error:
        return _json({"error": str(error)})


def _listing(data: Path) -> str:
    """List modes, owners, sizes and names in the data directory, similar to ``ls -l``."""
    lines = []
    for path in sorted(data.rglob("*")):
        try:
            found = path.lstat()
        except OSError:
            continue
        lines.append(f"{found.st_mode:06o} {found.st_uid:5} {found.st_size:12} {line(path.relative_to(data))}")
    return "\n".join(lines) + "\n"


def _logs_in(data: Path | None) -> list[Path]:
    return [] if data is None else sorted({*data.glob("*.log"), *data.glob("logs/*.log")})


def _tail(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES_MAX))
            return file.read(LOG_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return None


def _journal() -> str:
    """Return the journal of services named waypost; empty without a journal."""
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            ["journalctl", "--unit=waypost*", f"--lines={JOURNAL_LINES}", "--no-pager", "--quiet"],  # noqa: S607
            capture_output=True, text=True, errors="replace", timeout=JOURNAL_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
