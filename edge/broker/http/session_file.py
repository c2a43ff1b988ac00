"""Archive of the sessions of one node: a small file, readable by its owner only, replaced as a whole.

Sessions can be lost without harm, as people sign in again. So a damaged file is not a fault of the node.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from bridge.durable_file import replace_file
from edge.broker.http.limits import SESSIONS_MAX
from edge.broker.http.session_archive import ArchiveFailed, KeptSession
from edge.broker.http.sessions import choose_displaced
from edge.output.system_errors import write_advice

log = logging.getLogger(__name__)

FILE: Final = "sessions.json"

_Sessions = dict[bytes, KeptSession]


class SessionFile:
    """Sessions in a file of the data directory (`SessionArchive`)."""

    def __init__(self, data: Path, utc_s: Callable[[], float], *, most: int = SESSIONS_MAX) -> None:
        self._file = data / FILE
        self._utc_s = utc_s
        self._most = most
        self._kept: _Sessions | None = None

    def all(self) -> list[KeptSession]:
        return list(self._loaded().values())

    def find(self, key: bytes) -> KeptSession | None:
        return self._loaded().get(key)

    def add(self, kept: KeptSession) -> list[bytes]:
        there = self._without_over(self._loaded())
        displaced = choose_displaced(
            list(there.values()), kept.user, lambda each: each.used_at_s, most=self._most, group_of=str
        )
        left = {key: each for key, each in there.items() if each not in displaced}
        self._write({**left, kept.key: kept})
        return [each.key for each in displaced]

    def touch(self, used: Mapping[bytes, float]) -> None:
        there = self._without_over(self._loaded())
        later = {
            key: msgspec.structs.replace(there[key], used_at_s=at_s)
            for key, at_s in used.items()
            if key in there and there[key].used_at_s < at_s
        }
        if later:
            self._write({**there, **later})

    def claim(self, key: bytes, expires_at_s: float, now_s: float) -> bool:
        return True

    def renewed(self, kept: KeptSession) -> None:
        there = self._loaded()
        if kept.key in there:
            self._write({**there, kept.key: kept})

    def remove(self, keys: Iterable[bytes]) -> None:
        self._remove(set(keys))

    def remove_user(self, user: str) -> list[bytes]:
        mine = [key for key, each in self._loaded().items() if each.user == user]
        self._remove(set(mine))
        return mine

    def close(self) -> None:
        pass

    # --- inside -----------------------------------------------------------------------------------------------------

    def _remove(self, keys: set[bytes]) -> None:
        there = self._loaded()
        if not keys.isdisjoint(there):
            self._write({key: each for key, each in there.items() if key not in keys})

    def _without_over(self, there: _Sessions) -> _Sessions:
        now_s = self._utc_s()
        return {key: each for key, each in there.items() if not each.is_over(now_s)}

    def _loaded(self) -> _Sessions:
        """Return the sessions; read the file once. Raises ArchiveFailed."""
        if self._kept is None:
            self._kept = self._read()
        return self._kept

    def _read(self) -> _Sessions:
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=list[KeptSession])
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ArchiveFailed(f"cannot read {self._file}: {error.strerror}; check owner and mode") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("%s is damaged, so people sign in again: %s", self._file, error)
            return {}
        return {each.key: each for each in found[: self._most]}

    def _write(self, sessions: _Sessions) -> None:
        documents: Any = [msgspec.to_builtins(each) for each in sessions.values()]
        try:
            replace_file(self._file, json.dumps(documents).encode())
        except OSError as error:
            raise ArchiveFailed(f"cannot write {self._file}: {error.strerror}; {write_advice(error)}") from error
        self._kept = sessions
