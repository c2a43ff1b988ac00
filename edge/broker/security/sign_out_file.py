"""Logouts of one node in a small file, readable by its owner only."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from bridge.durable_file import replace_file
from edge.broker.security.sign_outs import EndedSignIn, SignOutNotKept, still_kept
from edge.output.system_errors import write_advice

log = logging.getLogger(__name__)

FILE: Final = "sign-outs.json"


class SignOutFile:
    """Logouts in a file of the data directory (`SignOutArchive`)."""

    def __init__(self, data: Path, issuer: str, utc_s: Callable[[], float] = time.time) -> None:
        """`issuer`: those of another one are dropped."""
        self._file = data / FILE
        self._issuer = issuer
        self._utc_s = utc_s
        self._kept: list[EndedSignIn] = []
        self._busy = asyncio.Lock()

    def load(self) -> list[EndedSignIn]:
        """Return what is kept; a damaged file keeps nothing."""
        try:
            issuer, found = msgspec.json.decode(self._file.read_bytes(), type=tuple[str, list[EndedSignIn]])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("cannot read %s (%s): logouts of before do not count", self._file, type(error).__name__)
            return []
        self._kept = still_kept(found, self._utc_s()) if issuer == self._issuer else []
        return list(self._kept)

    async def add(self, ended: EndedSignIn) -> None:
        async with self._busy:
            kept = still_kept([*self._kept, ended], self._utc_s())
            try:
                await asyncio.to_thread(replace_file, self._file, msgspec.json.encode((self._issuer, kept)))
            except OSError as error:
                raise SignOutNotKept(f"cannot write {self._file}: {error.strerror}; {write_advice(error)}") from error
            self._kept = kept
