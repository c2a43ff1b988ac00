"""Logouts of one node in a small file, readable by its owner only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from bridge.durable_file import replace_file
from edge.broker.security.limits import SIGN_OUTS_RETRY_S
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
        self._unwritten = False
        self._retrying: asyncio.Task[None] | None = None
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
        kept = still_kept([*self._kept, ended], self._utc_s())
        if kept != self._kept:
            self._kept, self._unwritten = kept, True  # before it is written: a later write has it too
        try:
            await self._write()
        except SignOutNotKept:
            if self._retrying is None:
                self._retrying = asyncio.get_running_loop().create_task(self._retry(), name="sign-outs")
            raise

    async def _retry(self) -> None:
        """Write again until that works."""
        while self._unwritten:
            await asyncio.sleep(SIGN_OUTS_RETRY_S)
            with contextlib.suppress(SignOutNotKept):
                await self._write()
        self._retrying = None

    async def _write(self) -> None:
        """Write what is kept, if it has changed. Raises SignOutNotKept."""
        async with self._busy:
            if not self._unwritten:
                return
            self._unwritten = False
            try:
                content = msgspec.json.encode((self._issuer, self._kept))
                await asyncio.shield(asyncio.to_thread(replace_file, self._file, content))
            except OSError as error:
                self._unwritten = True
                raise SignOutNotKept(f"cannot write {self._file}: {error.strerror}; {write_advice(error)}") from error
            except asyncio.CancelledError:
                self._unwritten = True
                raise
