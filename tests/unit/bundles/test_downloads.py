"""Downloads of bundles over HTTP: ranges, rights, limits, and what a failing disk or client leaves."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from cloud.hub.acceptor import Acceptor
from cloud.hub.bundles import limits
from cloud.hub.bundles.downloads import (
    BundleDownloads,
    DownloadRate,
    DownloadsFull,
    FileRange,
    RangeNotSatisfiable,
)
from cloud.hub.bundles.folder import BundleFolder, OpenBundle
from cloud.hub.bundles.http import bundle_routes
from cloud.hub.groups import Key
from cloud.hub.peers import HubPeer
from edge.broker.http.peer import KEY, HttpPeer

CONTENT = b"hsqs" + bytes(range(256)) * 2_000
NAME = "next.raucb"
HALL = {"subjectAltName": (("URI", "waypost://acme/hall"),), "serialNumber": "0A"}


@pytest.mark.parametrize(
    ("field", "found"),
    [
        (None, None),
        ("bytes=0-", (0, 100)),
        ("bytes=10-19", (10, 20)),
        ("bytes=99-99", (99, 100)),
        ("bytes=90-200", (90, 100)),
        ("bytes=-30", (70, 100)),
        ("bytes=-300", (0, 100)),
        ("bytes=-", None),
        ("bytes=20-10", None),
        ("bytes=0-1,5-6", None),
        ("bytes=9999999999999999-", None),
        ("lines=1-2", None),
    ],
)
def test_ranges_are_parsed(field: str | None, found: tuple[int, int] | None) -> None:
    assert FileRange.parse(field, 100) == found


@pytest.mark.parametrize(
    ("field", "size"), [("bytes=100-", 100), ("bytes=200-100", 100), ("bytes=-0", 100), ("bytes=0-", 0)]
)
def test_range_behind_the_end_is_refused(field: str, size: int) -> None:
    with pytest.raises(RangeNotSatisfiable):
        FileRange.parse(field, size)


def test_rate_is_shared_by_all_downloads() -> None:
    now = [100.0]
    rate = DownloadRate(1_000, 0.25, lambda: now[0])
    assert rate.reserve_s(250) == 0.0, "a burst"
    assert rate.reserve_s(500) == pytest.approx(0.5)
    assert rate.reserve_s(500) == pytest.approx(1.0)
    now[0] += 60.0
    assert rate.reserve_s(250) == 0.0
    assert rate.reserve_s(100) == pytest.approx(0.1), "idle time is not saved up"


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Return the test as a function that runs it in an event loop."""

    @functools.wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(test(*given, **named))

    return run


class Policy:
    """Certificate policy that refuses some serial numbers."""

    def __init__(self) -> None:
        self.revoked: set[int] = set()

    def refusal(self, peer: HubPeer, serial: int) -> str | None:
        return f"the certificate of gateway {peer.name} was revoked" if serial in self.revoked else None

    def admitted(self, shown: object) -> None:
        raise AssertionError("a download is not a connection of a gateway")


class Site:
    """HTTP of a hub with a folder of bundles, without sockets."""

    def __init__(self, folder: Path, *, dev: bool = False) -> None:
        folder.mkdir()
        (folder / NAME).write_bytes(CONTENT)
        self.policy = Policy()
        gate: Any = type("Gate", (), {"passwords": False, "tokens": False})()
        acceptor = Acceptor(gate, {}, dev=dev, authority=self.policy)
        self.folder = BundleFolder(folder)
        self.downloads = BundleDownloads(self.folder)
        self.app = Starlette(routes=bundle_routes(self.downloads, acceptor))
        self.peer = HttpPeer()

    async def get(
        self, name: str = NAME, certificate: Mapping[str, Any] | None = HALL, method: str = "GET", **headers: str
    ) -> httpx.Response:
        self.peer = HttpPeer()
        self.peer.begin(certificate, lambda: 0)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await self.app({**scope, "state": {KEY: self.peer}}, receive, send)

        fields = {field.replace("_", "-"): value for field, value in headers.items()}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://hub") as client:
            return await client.request(method, f"/bundles/{name}", headers=fields)


@asynccontextmanager
async def site(folder: Path, **options: bool) -> AsyncIterator[Site]:
    made = Site(folder / "bundles", **options)
    try:
        yield made
        assert made.downloads.running == 0, "every slot is free again"
    finally:
        await made.downloads.close()


@in_a_loop
async def test_whole_bundle_and_ranges_are_sent(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        whole = await made.get()
        assert (whole.status_code, whole.content) == (200, CONTENT)
        assert (whole.headers["accept-ranges"], whole.headers["content-length"]) == ("bytes", str(len(CONTENT)))
        assert made.peer.user == "waypost://acme/hall", "its connection is no stranger's"
        part = await made.get(range="bytes=1000-300999")
        assert (part.status_code, part.content) == (206, CONTENT[1_000:301_000])
        assert part.headers["content-range"] == f"bytes 1000-300999/{len(CONTENT)}"
        rest = await made.get(range=f"bytes={len(CONTENT) - 5}-", if_range=whole.headers["etag"])
        assert (rest.status_code, rest.content) == (206, CONTENT[-5:])
        changed = await made.get(range="bytes=5-", if_range='"another"')
        assert (changed.status_code, len(changed.content)) == (200, len(CONTENT))
        beyond = await made.get(range=f"bytes={len(CONTENT)}-")
        assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(CONTENT)}")
        digest = hashlib.sha256(CONTENT).hexdigest()
        assert (await made.get(f"{NAME}?sha256={digest}")).content == CONTENT
        for other in ("0" * 64, ""):
            assert (await made.get(f"{NAME}?sha256={other}")).status_code == 404
        head = await made.get(method="HEAD")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(CONTENT))


@in_a_loop
async def test_index_is_sent_and_other_files_are_not(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        assert (await made.get(f"{NAME}.blocks")).status_code == 404
        (made.folder.folder / f"{NAME}.blocks").write_bytes(b"index")
        assert (await made.get(f"{NAME}.blocks")).content == b"index"
        (made.folder.folder / "hub.key").write_text("secret")
        for name in ("hub.key", "..%2Fhub.key", "%2e%2e%2fregistry.db", ".lock", "other.raucb"):
            assert (await made.get(name)).status_code == 404, name


@in_a_loop
async def test_only_gateways_with_a_valid_certificate_fetch(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        missing = await made.get(certificate=None)
        assert (missing.status_code, missing.json()["detail"]) == (401, "the client certificate is missing")
        other = await made.get(certificate={"subject": ((("commonName", "hall"),),)})
        assert other.status_code == 401
        made.policy.revoked.add(10)
        revoked = await made.get()
        assert (revoked.status_code, made.peer.user) == (401, "")
        assert "was revoked" in revoked.json()["detail"]


@in_a_loop
async def test_development_hub_serves_every_client(tmp_path: Path) -> None:
    async with site(tmp_path, dev=True) as made:
        assert (await made.get(certificate=None)).content == CONTENT


async def begun(made: Site, gateway: Key) -> Any:
    return await made.downloads.begin(gateway, NAME, None, None, None)


@pytest.mark.parametrize(
    ("keys", "full", "free"),
    [
        ([("acme", "hall")] * limits.DOWNLOADS_OF_GATEWAY_MAX, ("acme", "hall"), ("acme", "roof")),
        ([("acme", str(each)) for each in range(limits.DOWNLOADS_OF_TENANT_MAX)], ("acme", "hall"), ("other", "hall")),
        (
            [(str(each % 3), str(each)) for each in range(limits.DOWNLOADS_MAX)],
            ("acme", "hall"),
            None,
        ),
    ],
    ids=["gateway", "tenant", "hub"],
)
@in_a_loop
async def test_downloads_at_once_are_limited(tmp_path: Path, keys: list[Key], full: Key, free: Key | None) -> None:
    async with site(tmp_path) as made:
        running = [await begun(made, key) for key in keys]
        with pytest.raises(DownloadsFull):
            await begun(made, full)
        if full == ("acme", "hall"):
            refused = await made.get()
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        if free is not None:
            running.append(await begun(made, free))
        for each in running:
            each._release()
        assert (await made.get()).status_code == 200


async def drop(made: Site, *, after: int) -> None:
    """Fetch a bundle as a client that leaves after some parts."""
    sent = 0
    left = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not sent:
            await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal sent
        sent += message["type"] == "http.response.body"
        if sent >= after:
            left.set()

    answer = await begun(made, ("acme", "hall"))
    scope = {"type": "http", "method": "GET", "asgi": {"spec_version": "2.3"}}
    await answer(scope, receive, send)
    assert sent <= len(CONTENT) // limits.READ_BYTES, "the rest is not read"


@in_a_loop
async def test_client_that_leaves_frees_its_slot(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(2 * limits.DOWNLOADS_OF_GATEWAY_MAX):
            await drop(made, after=1)
        assert len(os.listdir("/proc/self/fd")) == before


@in_a_loop
async def test_request_that_ends_while_the_file_is_opened_leaves_none_open(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        opening, opened = asyncio.Event(), asyncio.Event()
        loop, open_file = asyncio.get_running_loop(), made.folder.open
        found: list[OpenBundle | None] = []

        def wait(name: str, _sha256: str | None = None) -> OpenBundle | None:
            loop.call_soon_threadsafe(opening.set)
            asyncio.run_coroutine_threadsafe(opened.wait(), loop).result(60)
            found.append(open_file(name))
            return found[0]

        made.folder.open = wait  # type: ignore[method-assign]
        task = asyncio.create_task(begun(made, ("acme", "hall")))
        await opening.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        opened.set()
        async with asyncio.timeout(60):
            while not found or os.path.exists(f"/proc/self/fd/{found[0].descriptor}"):  # type: ignore[union-attr]
                await asyncio.sleep(0)


@in_a_loop
async def test_unreadable_disk_is_answered(tmp_path: Path) -> None:
    async with site(tmp_path) as made:

        def fail(_name: str, _sha256: str | None) -> None:
            raise OSError(5, "Input/output error")

        made.folder.open = fail  # type: ignore[assignment,method-assign]
        found = await made.get()
        assert (found.status_code, found.headers["retry-after"]) == (503, "5")


@in_a_loop
async def test_file_that_is_cut_off_ends_the_download(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        answer = await begun(made, ("acme", "hall"))
        os.truncate(made.folder.folder / NAME, 10)
        sent: list[bytes] = []

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            return {}

        async def send(message: Any) -> None:
            sent.append(message.get("body", b""))

        with pytest.RaisesGroup(
            pytest.RaisesExc(OSError, match="was cut off"), allow_unwrapped=True, flatten_subgroups=True
        ):
            await answer({"type": "http", "method": "GET", "asgi": {"spec_version": "2.3"}}, receive, send)
        assert b"".join(sent) == CONTENT[:10]
