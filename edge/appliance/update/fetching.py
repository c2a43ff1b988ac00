"""Download of the bundle of a wanted system over HTTP, each byte once even over a poor link.

Received bytes are on disk. After an interruption the rest is requested by range (RFC 9110 section 14). The checksum is
verified at the end; RAUC verifies the signature before it installs the bundle. The download respects rate and quiet
hours, and leaves the free space that is reserved for messages. It blocks: for a service of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final, Protocol
from urllib.parse import quote

import msgspec

from bridge.lane import BatchLane
from bridge.pace import Pacer, PaceSettings
from bridge.proxy import Proxy
from edge.appliance.update.limits import ANSWER_S, READ_BYTES, RETRY_S, SYNC_BYTES, WRONG_DOWNLOADS_MAX
from edge.appliance.update.wanted import DownloadProgress, WantedFiles, WantedSystem
from edge.broker.security.private_file import sync_folder

_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
NAP_S_MIN: Final = 0.001
"""Shortest sleep, as rounding may leave a wait of zero."""
QUIET: Final = "it waits for the end of the quiet hours"


class DownloadFailed(Exception):
    """The download failed, and will be tried again. The message says why."""


class SystemChanged(Exception):
    """Another system is wanted now, or none."""


class SleepingClock(Protocol):
    """Clock that can sleep; the module `time` is one."""

    def time(self) -> float: ...
    def monotonic(self) -> float: ...
    def sleep(self, seconds: float, /) -> None: ...


def trusting_also(authority: str | None) -> ssl.SSLContext:
    """Return a context that trusts the machine's authorities and the hub's (PEM)."""
    context = ssl.create_default_context()
    if authority is not None:
        context.load_verify_locations(cadata=authority)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def free_bytes(folder: Path) -> int:
    """Return the free bytes of a folder's medium. Raises OSError."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


class BundleDownload:
    """Download into one data directory."""

    def __init__(
        self,
        files: WantedFiles,
        context: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        clock: SleepingClock = time,
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        """`context`: TLS context for HTTPS servers. `free`: see `free_bytes`."""
        self._files = files
        self._context = context
        self._clock = clock
        self._free = free
        self._fetched = files.fetched()

    def run(self) -> Path | None:
        """Download until the wanted bundle is complete and may be installed; return its path, or None when no
        bundle is wanted. Raises OSError."""
        failures = 0
        while (wanted := self._files.wanted()) is not None:
            if self._fetched.sha256 != wanted.sha256:
                self._begin(wanted)
            if self._fetched.refused:
                return None
            before = self._fetched.bytes
            try:
                self._whole(wanted)
                return self._files.bundle(wanted)
            except SystemChanged:
                failures = 0
            except DownloadFailed as why:
                failures = 0 if self._fetched.bytes > before else failures
                self._note(trouble=str(why))
                self._clock.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
                failures += 1
        return None

    # --- one bundle -------------------------------------------------------------------------------------------------

    def _begin(self, wanted: WantedSystem) -> None:
        """Remove downloaded parts of other bundles."""
        for path in self._files.folder.glob("*.part"):
            if path != self._files.part(wanted):
                path.unlink()
        for path in self._files.folder.glob("*.raucb"):
            if path != self._files.bundle(wanted):
                path.unlink()
        self._fetched = DownloadProgress(sha256=wanted.sha256)
        self._note()

    def _whole(self, wanted: WantedSystem) -> None:
        """Download the missing bytes, and verify the checksum. Raises `DownloadFailed`, `SystemChanged`, OSError."""
        pacer = self._pacer(wanted)
        self._wait(wanted, pacer)
        if self._files.bundle(wanted).exists():
            return
        part = self._files.part(wanted)
        with part.open("ab") as out:
            if out.tell() > wanted.size:
                out.truncate(0)
            if out.tell() < wanted.size:
                self._rest(wanted, pacer, out)
        self._accept(wanted, part)
        self._wait(wanted, pacer)  # installing restarts the machine, not in quiet hours

    def _rest(self, wanted: WantedSystem, pacer: Pacer, out: IO[bytes]) -> None:
        have = out.tell()
        free = self._free(self._files.folder) - (wanted.size - have)
        if free < wanted.keep_free:
            mib = (wanted.keep_free - free) >> 20
            raise DownloadFailed(f"{mib} MiB of free space are missing, as the rest is reserved for messages")
        with self._answer(wanted, have) as answer:
            if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
                have = 0
            out.truncate(have)
            self._store(wanted, pacer, answer, out)

    def _store(self, wanted: WantedSystem, pacer: Pacer, answer: http.client.HTTPResponse, out: IO[bytes]) -> None:
        """Write an answer to the file. Raises `DownloadFailed`, `SystemChanged`, OSError."""
        synced = have = out.seek(0, os.SEEK_END)
        try:
            while have < wanted.size:
                read = _read(answer, min(READ_BYTES, wanted.size - have))
                if not read:
                    raise DownloadFailed(f"the connection ended after {have} of {wanted.size} bytes")
                out.write(read)
                have += len(read)
                pacer.sent(len(read), self._clock.monotonic())
                if have - synced >= SYNC_BYTES:
                    synced = have
                    self._sync(out, have)
                self._wait(wanted, pacer, long=False)
        finally:
            self._sync(out, have)

    def _accept(self, wanted: WantedSystem, part: Path) -> None:
        """Accept the file if its checksum is right. Raises `DownloadFailed`, OSError."""
        with part.open("rb") as source:
            found = hashlib.file_digest(source, "sha256").hexdigest()
        if found == wanted.sha256:
            part.replace(self._files.bundle(wanted))
            sync_folder(part.parent)
            self._note(bytes=wanted.size, trouble="")
            return
        part.unlink()
        wrong = self._fetched.wrong + 1
        why = f"the file at {wanted.url} has the SHA-256 {found}, and not {wanted.sha256}"
        self._note(bytes=0, wrong=wrong, refused=why if wrong >= WRONG_DOWNLOADS_MAX else "")
        raise DownloadFailed(why)

    # --- inside -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _answer(self, wanted: WantedSystem, have: int) -> Iterator[http.client.HTTPResponse]:
        """Request the bundle from this byte on. Raises `DownloadFailed`."""
        handlers = [
            urllib.request.ProxyHandler(_proxies(wanted.proxy)),
            urllib.request.HTTPSHandler(context=self._context()),
        ]
        request = urllib.request.Request(wanted.url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310 - http(s), validated
        try:
            answer = urllib.request.build_opener(*handlers).open(request, timeout=ANSWER_S)
        except urllib.error.HTTPError as error:
            error.close()
            raise DownloadFailed(f"{wanted.url}: the server answers {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            raise DownloadFailed(f"{wanted.url}: {getattr(error, 'reason', None) or error}") from None
        with answer:
            if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
                found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
                if found is None or int(found[1]) != have or found[2] not in ("*", str(wanted.size)):
                    raise DownloadFailed(f"{wanted.url}: the server's answer has another range than requested")
            yield answer

    def _pacer(self, wanted: WantedSystem) -> Pacer:
        pace = PaceSettings(rate=wanted.rate, quiet_hours=wanted.quiet_hours, start_jitter_s=wanted.start_jitter_s)
        pacer = Pacer(pace, wanted.gateway, utc_s=self._clock.time)
        pacer.begin(self._clock.monotonic() - max(0.0, self._clock.time() - self._files.wanted_since()))
        return pacer

    def _wait(self, wanted: WantedSystem, pacer: Pacer, *, long: bool = True) -> None:
        """Wait until more may be downloaded. `long`: also until quiet hours end, or the start jitter is over.

        Raises `SystemChanged`, `DownloadFailed`.
        """
        while True:
            if self._files.wanted() != wanted:
                raise SystemChanged
            now = self._clock.monotonic()
            until = pacer.waits_until(BatchLane.BACKLOG, READ_BYTES, now)
            if until is None:
                return
            if pacer.is_quiet(BatchLane.BACKLOG):
                if not long:  # do not hold a connection for hours
                    raise DownloadFailed(QUIET)
                self._note(trouble=QUIET)
            self._clock.sleep(max(NAP_S_MIN, until - now))

    def _sync(self, out: IO[bytes], have: int) -> None:
        out.flush()
        os.fsync(out.fileno())
        self._note(bytes=have, trouble="")

    def _note(self, **changes: object) -> None:
        fetched = msgspec.structs.replace(self._fetched, **changes)
        if fetched != self._fetched or not changes:
            self._files.note(fetched)
            self._fetched = fetched


def _read(answer: http.client.HTTPResponse, size: int) -> bytes:
    try:
        return answer.read1(size)
    except (OSError, http.client.HTTPException) as error:
        raise DownloadFailed(f"the connection broke: {error or type(error).__name__}") from None


def _proxies(proxy: Proxy | None) -> dict[str, str]:
    if proxy is None:
        return {}
    words = (proxy.username, proxy.password)
    who = ":".join(quote(word, safe="") for word in words if word is not None)
    place = f"http://{f'{who}@' if who else ''}{proxy.place}"
    return {"http": place, "https": place}
