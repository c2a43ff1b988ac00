"""Detect a damaged table by the files of its log; that it cannot be opened proves nothing.

A store that is slow, that refuses or that is unreachable makes every table unreadable and damages none; so does another
pass that commits at the same moment.
"""

from __future__ import annotations

import io
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cloud.place.place import LOG, LakePlace

_ENTRY: Final = ".json"
_CHECKPOINT: Final = ".checkpoint."
"""Part of the name of a checkpoint, or of a part of one."""
_NEWEST: Final = "_last_checkpoint"


def find_damage(table: LakePlace, only: range | None = None) -> str | None:
    """Read a table's log and return what is wrong with it; None if it is intact or missing.

    `only`: the versions to check; without it all. Raises `OSError` if files cannot be read now.
    """
    versions: list[int] = []
    first = 0 if only is None else only.start
    for name in sorted(table.names(LOG)):
        version = name.partition(".")[0]
        is_checkpoint = _CHECKPOINT in name and name.endswith(".parquet")
        if not is_checkpoint and name != _NEWEST and name != version + _ENTRY:
            continue
        if only is not None and name != _NEWEST and int(version) not in only:
            continue
        content = table.read(f"{LOG}/{name}")
        if content is None:  # it was cleaned in the meantime
            continue
        if not (_is_parquet if is_checkpoint else _is_entry)(content):
            return f"{table.uri}/{LOG}/{name} is damaged"
        if is_checkpoint:
            first = max(first, int(version) + 1)
        elif name != _NEWEST:
            versions.append(int(version))
    gap = min(set(range(first, max(versions, default=0) + 1)) - set(versions), default=None) if versions else None
    return None if gap is None else f"{table.uri}/{LOG}/{gap:020}{_ENTRY} is missing"


def _is_entry(content: bytes) -> bool:
    """Return whether every line is a JSON object, and there is at least one."""
    lines = content.splitlines()
    try:
        return bool(lines) and all(isinstance(msgspec.json.decode(line), dict) for line in lines)
    except msgspec.DecodeError:
        return False


def _is_parquet(content: bytes) -> bool:
    """Return whether the footer can be read; it is written last."""
    try:
        pq.ParquetFile(io.BytesIO(content)).close()
    except (OSError, pa.ArrowException):
        return False
    return True
