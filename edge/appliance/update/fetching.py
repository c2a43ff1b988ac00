"""Download of the bundle of a wanted system over HTTP, each byte once even over a poor link.

Received bytes are on disk. After an interruption the rest is requested by range (RFC 9110 section 14). If the server
has an index of the bundle's blocks (`bridge.block_index`), those of the running system are copied instead. The checksum
is verified at the end; RAUC verifies the signature before it installs the bundle. The download respects rate and quiet
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
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Final, Protocol
from urllib.parse import urlsplit, urlunsplit

import msgspec

from bridge.block_index import INDEX_BYTES_MAX, SUFFIX, BlockIndex, BlockIndexError
from bridge.durable_file import sync_path
from bridge.lane import BatchLane
from bridge.pace import Pacer, PaceSettings
from edge.appliance.update.bundle_server import BundleServer
from edge.appliance.update.copy_plan import CopyPlan
from edge.appliance.update.hub_source import hub_context
from edge.appliance.update.limits import (
    INDEX_ATTEMPTS_MAX,
    READ_BYTES,
    RETRY_S,
    SYNC_BYTES,
    WRONG_DOWNLOADS_MAX,
)
from edge.appliance.update.own_pieces import OwnPieces
from edge.appliance.update.wanted import DownloadProgress, WantedFiles, WantedSystem

_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+|\*)", re.ASCII)
_PASSING: Final = (http.HTTPStatus.REQUEST_TIMEOUT, http.HTTPStatus.TOO_MANY_REQUESTS)
"""Refusals that say to ask again."""
NAP_S_MIN: Final = 0.001
"""Shortest sleep, as rounding may leave a wait of zero."""
QUIET: Final = "it waits for the end of the quiet hours"


class DownloadFailed(Exception):
    """The download failed, and will be tried again. The message says why."""


class ServerRefused(DownloadFailed):
    """The server answered with an error."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class IndexRefused(Exception):
    """The server has no index of the bundle's blocks, or a wrong one."""


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
        system: Path | None = None,
    ) -> None:
        """`context`: TLS context for HTTPS servers. `free`: see `free_bytes`. `system`: root folder of the running
        system; what its files have is copied from there."""
        self._files = files
        self._context = context
        self._clock = clock
        self._free = free
        self._system = system
        self._server: BundleServer | None = None
        self._served: WantedSystem | None = None
        """System for which the client of the server was made."""
        self._way = 0
        """Place of the URL in use among those of the wanted system."""
        self._without_index: set[str] = set()
        """URLs that do not have the index of the wanted bundle."""
        self._planned: tuple[str, CopyPlan] | None = None
        """SHA-256 of the bundle, and its plan: reading the system again after each break would take long."""
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
                self._way += 1
                self._note(trouble=str(why))
                self._clock.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
                failures += 1
        return None

    # --- one bundle -------------------------------------------------------------------------------------------------

    def _begin(self, wanted: WantedSystem) -> None:
        """Remove downloaded parts of other bundles."""
        files = self._files
        own = (files.part(wanted), files.bundle(wanted), files.index(wanted), files.index_part(wanted))
        for pattern in ("*.part", "*.raucb", f"*{SUFFIX}"):
            for path in self._files.folder.glob(pattern):
                if path not in own:
                    path.unlink()
        self._fetched = DownloadProgress(sha256=wanted.sha256)
        self._without_index.clear()
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
        try:
            plan = self._plan(wanted, pacer)
            while out.tell() < wanted.size:
                self._copy(wanted, pacer, plan, out)
                if (have := out.tell()) < wanted.size:
                    self._fetch(wanted, pacer, out, have, plan.fetch_until(have))
        finally:
            if self._server is not None:
                self._server.close()

    def _copy(self, wanted: WantedSystem, pacer: Pacer, plan: CopyPlan, out: IO[bytes]) -> None:
        """Write the bytes that the running system has. Raises `DownloadFailed`, `SystemChanged`, OSError."""
        copied, synced = 0, out.tell()
        try:
            while found := plan.copy(out.tell()):
                out.write(found)
                copied += len(found)
                if out.tell() - synced >= SYNC_BYTES:
                    self._sync(out, out.tell(), copied)
                    copied, synced = 0, out.tell()
                self._wait(wanted, pacer, long=False)
        finally:
            if copied:
                self._sync(out, out.tell(), copied)

    def _fetch(self, wanted: WantedSystem, pacer: Pacer, out: IO[bytes], have: int, until: int) -> None:
        """Fetch a range of the bundle. Raises `DownloadFailed`, `SystemChanged`, OSError."""
        url = self._url(wanted)
        with self._answer(wanted, url, have, until if until < wanted.size else None) as answer:
            if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
                have, until = 0, wanted.size
                self._note(copied=0)
            else:
                _check_range(url, answer, have, wanted.size)
            out.truncate(have)
            self._store(wanted, pacer, answer, out, until)

    def _store(
        self, wanted: WantedSystem, pacer: Pacer, answer: http.client.HTTPResponse, out: IO[bytes], until: int
    ) -> None:
        """Write an answer to the file up to `until`. Raises `DownloadFailed`, `SystemChanged`, OSError."""
        synced = have = out.seek(0, os.SEEK_END)
        try:
            while have < until:
                read = _read(answer, min(READ_BYTES, until - have))
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
            sync_path(part.parent)
            self._note(bytes=wanted.size, trouble="")
            return
        part.unlink()
        if self._fetched.copied:  # fetch all of it before the server is blamed
            self._note(bytes=0, copied=0, index_failures=INDEX_ATTEMPTS_MAX)
            raise DownloadFailed("the copied and fetched parts do not make the bundle, so all of it is fetched")
        wrong = self._fetched.wrong + 1
        why = f"the file at {self._url(wanted)} has the SHA-256 {found}, and not {wanted.sha256}"
        self._note(bytes=0, wrong=wrong, refused=why if wrong >= WRONG_DOWNLOADS_MAX else "")
        raise DownloadFailed(why)

    # --- index ------------------------------------------------------------------------------------------------------

    def _plan(self, wanted: WantedSystem, pacer: Pacer) -> CopyPlan:
        """Return what is copied and what is fetched. Raises `DownloadFailed`, `SystemChanged`, OSError."""
        if self._system is None or self._fetched.index_failures >= INDEX_ATTEMPTS_MAX:
            return CopyPlan(wanted.size)
        if self._planned is None or self._planned[0] != wanted.sha256:
            try:
                index = self._index(wanted, pacer)
            except IndexRefused:
                self._note(index_failures=INDEX_ATTEMPTS_MAX)
                return CopyPlan(wanted.size)
            digests = {digest for block in index.blocks for digest in block.pieces()}
            self._planned = (wanted.sha256, CopyPlan.make(index, OwnPieces(self._system, digests)))
        return self._planned[1]

    def _index(self, wanted: WantedSystem, pacer: Pacer) -> BlockIndex:
        """Return the index of the bundle. A wrong one is fetched again, as the server may just be replacing it.

        Raises `IndexRefused`, `DownloadFailed`, `SystemChanged`, OSError.
        """
        file = self._files.index(wanted)
        if not file.exists():
            self._fetch_index(wanted, pacer, file)
        try:
            found = BlockIndex.decode(file.read_bytes())
            if (found.sha256, found.size) == (wanted.sha256, wanted.size):
                return found
            why = "it is of another bundle"
        except BlockIndexError as error:
            why = str(error)
        file.unlink()
        raise self._failed_index(f"the index of the bundle's blocks is not used: {why}")

    def _failed_index(self, why: str) -> Exception:
        """Count a failure of the server's index, and return the exception to raise."""
        failures = self._fetched.index_failures + 1
        self._note(index_failures=failures)
        return IndexRefused() if failures >= INDEX_ATTEMPTS_MAX else DownloadFailed(why)

    def _missing_index(self, wanted: WantedSystem) -> Exception:
        """Return the exception for a server without the index. A hub may lack the whole bundle, so each is asked."""
        self._without_index.add(self._url(wanted))
        if wanted.tls is None or self._without_index.issuperset(wanted.urls):
            return IndexRefused()
        return DownloadFailed(f"{self._url(wanted)} does not have the bundle: the next hub is asked")

    def _fetch_index(self, wanted: WantedSystem, pacer: Pacer, file: Path) -> None:
        """Fetch the index, from where it was interrupted. Raises as `_index`."""
        part = self._files.index_part(wanted)
        with part.open("ab") as out:
            have = out.tell()
            try:
                with self._answer(wanted, index_url(self._url(wanted)), have, None) as answer:
                    size = _whole_size(answer, have)
                    if size is None:
                        raise IndexRefused
                    out.truncate(have if answer.status == http.HTTPStatus.PARTIAL_CONTENT else 0)
                    self._store_index(wanted, pacer, answer, out, size)
            except ServerRefused as refused:
                out.truncate(0)  # the part may be as long as the file, which no range can continue
                if (
                    refused.status < http.HTTPStatus.INTERNAL_SERVER_ERROR
                    and refused.status not in _PASSING
                    and not have
                ):
                    raise self._missing_index(wanted) from None
                if wanted.tls is not None and refused.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
                    raise  # the hub is busy, and says when to ask again: the index is as good as before
                raise self._failed_index(str(refused)) from None
        part.replace(file)
        sync_path(file.parent)

    def _store_index(
        self, wanted: WantedSystem, pacer: Pacer, answer: http.client.HTTPResponse, out: IO[bytes], size: int
    ) -> None:
        out.seek(0, os.SEEK_END)
        try:
            while out.tell() < size:
                read = _read(answer, min(READ_BYTES, size - out.tell()))
                if not read:
                    raise DownloadFailed(f"the connection ended after {out.tell()} of {size} bytes of the index")
                out.write(read)
                pacer.sent(len(read), self._clock.monotonic())
                self._wait(wanted, pacer, long=False)
        finally:
            out.flush()
            os.fsync(out.fileno())

    # --- inside -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _answer(
        self, wanted: WantedSystem, url: str, have: int, until: int | None
    ) -> Iterator[http.client.HTTPResponse]:
        """Request a file from byte `have` on, up to `until` or its end. Raises `DownloadFailed`, `ServerRefused`."""
        if self._server is None or self._served != wanted:
            if self._server is not None:
                self._server.close()
            if wanted.tls is None:
                self._server = BundleServer(wanted.proxy, self._context)
            else:
                self._server = BundleServer(wanted.proxy, partial(hub_context, wanted.tls), redirects_max=0)
            self._served = wanted
        last = "" if until is None else until - 1
        headers = {"Range": f"bytes={have}-{last}"} if have or until is not None else {}
        with contextlib.ExitStack() as opened:
            try:
                answer = opened.enter_context(self._server.get(url, headers))
            except (OSError, http.client.HTTPException, ValueError) as error:  # the last one: a redirect to no URL
                raise DownloadFailed(f"{url}: {error or type(error).__name__}") from None
            if answer.status not in (http.HTTPStatus.OK, http.HTTPStatus.PARTIAL_CONTENT):
                raise ServerRefused(f"{url}: the server answers {answer.status} {answer.reason}", answer.status)
            yield answer

    def _url(self, wanted: WantedSystem) -> str:
        """Return the URL to try now."""
        return wanted.urls[self._way % len(wanted.urls)]

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

    def _sync(self, out: IO[bytes], have: int, copied: int = 0) -> None:
        """Have the file on disk, and record its length. `copied`: bytes that were copied since the last time."""
        out.flush()
        os.fsync(out.fileno())
        self._note(bytes=have, copied=self._fetched.copied + copied, trouble="")

    def _note(self, **changes: object) -> None:
        fetched = msgspec.structs.replace(self._fetched, **changes)
        if fetched != self._fetched or not changes:
            self._files.note(fetched)
            self._fetched = fetched


def index_url(url: str) -> str:
    """Return the URL of a bundle's index: the same with another path, and with the query, which may be a key."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=parts.path + SUFFIX))


def _check_range(url: str, answer: http.client.HTTPResponse, have: int, size: int) -> None:
    """Raise `DownloadFailed` unless an answer is the requested part of a file of this size."""
    found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if found is None or int(found[1]) != have or found[2] not in ("*", str(size)):
        raise DownloadFailed(f"{url}: the server's answer has another range than requested")


def _whole_size(answer: http.client.HTTPResponse, have: int) -> int | None:
    """Return the size of the file of which an answer is a part; None: it is unknown, or more than an index has."""
    found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
        size = int(found[2]) if found is not None and int(found[1]) == have and found[2] != "*" else None
    else:
        size = int(length) if (length := answer.headers.get("Content-Length", "")).isdecimal() else None
    return size if size is not None and 0 < size <= INDEX_BYTES_MAX else None


def _read(answer: http.client.HTTPResponse, size: int) -> bytes:
    try:
        return answer.read1(size)
    except (OSError, http.client.HTTPException) as error:
        raise DownloadFailed(f"the connection broke: {error or type(error).__name__}") from None
