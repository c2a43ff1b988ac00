"""Pages in a browser: headless chromium of Debian runs their scripts and prints the resulting document."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from edge.appliance.console.app import make_app
from edge.appliance.console.history import StatusHistory
from edge.broker.http.access import HttpAccess
from tests.support.processes import edge, wait_until
from tests.unit.console.test_app import FULL, STATUS, Control

CHROMIUM = shutil.which("chromium")
SHOWN_S = 60.0
CLICKS = """<script>
const presses = setInterval(() => { if ($("pause").hidden) return; clearInterval(presses); $("pause").click(); }, 200);
</script>"""

PHONE = """<body><iframe id="phone" src="page" width="390" height="1500"></iframe><script>
setInterval(() => { const page = document.getElementById("phone").contentDocument;
  document.body.dataset.overflow = page.documentElement.scrollWidth - page.documentElement.clientWidth;
  document.body.dataset.text = page.body.innerText; }, 200);
</script></body>"""
"""Frame of a phone's width around a page; a window of headless chromium has at least 500 pixels."""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian package chromium)")


def shown(port: int, profile: Path, who: str = "") -> str:
    """Return the document after some seconds of the page's own time; `who` is a name and password for its address."""
    assert CHROMIUM is not None
    flags = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--virtual-time-budget=6000")
    done = subprocess.run(
        [CHROMIUM, *flags, "--dump-dom", f"http://{who}127.0.0.1:{port}/"],
        capture_output=True, text=True, timeout=SHOWN_S, check=True,
    )  # fmt: skip
    return done.stdout


def element(page: str, name: str) -> str:
    """Return the element with an id, up to its first closing tag."""
    found = re.search(rf'<\w+[^>]* id="{name}"[^>]*>[^<]*', page)
    assert found is not None, name
    return found[0]


def test_a_gateway_to_try_without_a_hub(tmp_path: Path) -> None:
    with edge(tmp_path, "gw") as gateway:
        port = gateway.port("http")
        for _ in range(5):
            assert httpx.post(f"http://127.0.0.1:{port}/t/topic/a", content=b"x").status_code == 202
        wait_until(
            lambda: httpx.get(f"http://127.0.0.1:{port}/api/v1/status").json()["messages"]["received"] == 5,
            timeout_s=SHOWN_S, what="they are counted",
        )  # fmt: skip
        assert all(sample[4] for sample in httpx.get(f"http://127.0.0.1:{port}/api/v1/history").json()["samples"])
        page = shown(port, tmp_path / "profile")
    assert 'class="down"' not in page, "without an uplink nothing is cut off"
    assert "No hub is configured" in element(page, "uplink-note")
    assert "unlinked" in element(page, "uplink")
    assert "hidden" not in element(page, "dev")
    assert "development mode" in element(page, "dev")
    assert page.count("No queue and no durable subscription keeps messages here") == 2, "once shown, once in the script"
    document = page[page.index("<main") : page.index("<script")]
    assert "Nothing has been sent yet" not in document
    assert "they went to" not in document, "they reached no subscriber"


class FromElsewhere:
    """The console at another machine, by an operator who presses Pause."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "client": ("10.0.0.7", 4711)}
        await self._app(scope, receive, send)


@contextmanager
def served(app: ASGIApp) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


async def phone(_request: Request) -> HTMLResponse:
    return HTMLResponse(PHONE)


def gateway_page(more: str = "", *, path: str = "/") -> Route:
    """Serve the gateway's page with `more` at its end."""

    async def page(_request: Request) -> HTMLResponse:
        text = resources.files("edge.appliance.console").joinpath("page.html").read_text(encoding="utf-8")
        return HTMLResponse(text.replace("</body>", f"{more}</body>"))

    return Route(path, page)


def test_a_pause_that_is_refused_says_why_and_a_problem_is_red(tmp_path: Path) -> None:
    control = Control()
    refused = {"received": 5, "stored": 3, "acknowledged": 3, "refused": 1}
    console = make_app(
        StatusHistory(lambda: {**STATUS, "problems": [FULL], "messages": refused}), HttpAccess(), control
    )
    app = FromElsewhere(Starlette(routes=[gateway_page(CLICKS), Mount("/", console)]))
    with served(app) as port:
        page = shown(port, tmp_path / "profile")
    assert control.calls == []
    refusal = element(page, "refusal")
    assert "hidden" not in refusal
    assert "Could not pause: only from the node's own machine" in refusal
    assert "1 problem" in element(page, "live")
    assert "What to do: free space" in page
    assert "3 stored on disk, 1 refused" in element(page, "rate-note")
    assert "not yet" not in element(page, "rate-note")
    assert 'class="down"' in page, "an uplink that is cut off is shaded"


def test_the_gateway_s_page_fits_a_phone_and_shows_a_notice_as_a_note(tmp_path: Path) -> None:
    """The two labels of `--dev` and a notice are wider than a phone."""
    notice = {**FULL, "name": "no subscriber", "what": "messages reach no subscriber", "severity": "notice"}
    console = make_app(StatusHistory(lambda: {**STATUS, "dev": True, "problems": [notice]}), HttpAccess(), Control())
    routes = [Route("/", phone), gateway_page(path="/page"), Mount("/", console)]
    with served(Starlette(routes=routes)) as port:
        page = shown(port, tmp_path / "profile")
    assert "Note: no subscriber: messages reach no subscriber." in page
    assert "serving, 1 notice" in page
    assert 'data-overflow="0"' in page


def test_a_name_and_a_password_in_the_address_do_not_silence_the_page(tmp_path: Path) -> None:
    console = make_app(StatusHistory(lambda: {**STATUS, "problems": [FULL]}), HttpAccess(), Control())
    with served(console) as port:
        page = shown(port, tmp_path / "profile", "anna:secret@")
    assert "1 problem" in element(page, "live")
    assert "does not answer" not in element(page, "live")


HUB = {
    "now": 60_000, "started_at": 0, "version": "0.1.0", "dev": False, "rate": [0], "tables": {}, "problems": [],
    "totals": {"rows": 1, "duplicates": 0, "gaps": 0, "landings": 1},
    "gateways": {"known": 4, "connected": 3},
    "landing": {
        "failing": False, "latency_ms_p50": None, "latency_ms_p99": None, "latencies_ms": [],
        "pending_messages": 0, "pending_bytes": 0,
    },
}  # fmt: skip


def at_the_hub(name: str, waiting: int, rate: float, *, connected: bool = True) -> dict[str, object]:
    return {
        "name": name, "tenant": "default", "remote": "", "connected": connected, "rate": [rate] * 60, "landed": 1,
        "status": {"backlog_messages": waiting}, "newest_received_at": 0, "last_seen": 0,
    }  # fmt: skip


def hub_page(more: str = "") -> Callable[[Request], Awaitable[HTMLResponse]]:
    """Serve the hub's page with `more` at its end."""

    async def page(_request: Request) -> HTMLResponse:
        text = resources.files("cloud.console").joinpath("index.html").read_text(encoding="utf-8")
        return HTMLResponse(text.replace("</body>", f"{more}</body>"))

    return page


def hub(gateways: Callable[[Request], Awaitable[JSONResponse]], more: str = "") -> Starlette:
    """Serve the hub's page with prepared answers and `more` at its end."""

    async def status(_request: Request) -> JSONResponse:
        return JSONResponse(HUB)

    answers = [Route("/api/v1/status", status), Route("/api/v1/gateways", gateways)]
    return Starlette(routes=[Route("/", hub_page(more)), *answers])


CHOICE = """<script>$("filter").value = " gw-07 "; $("offline").checked = true;</script>"""


def test_the_hub_looks_for_a_gateway_that_is_on_no_page_yet(tmp_path: Path) -> None:
    """The page shows the first 500 gateways of a fleet; a search also finds a later one."""

    async def gateways(request: Request) -> JSONResponse:
        query = request.query_params
        found = query.get("name") == "gw-07" and query.get("connected") == "false"
        return JSONResponse(
            {"gateways": [at_the_hub("gw-0731", 0, 0.0, connected=False)] if found else [], "next": None}
        )

    with served(hub(gateways, CHOICE)) as port:
        page = shown(port, tmp_path / "profile")
    assert "gw-0731" in page
    assert "hidden" not in element(page, "filter")


def test_the_hub_s_page_fits_a_phone(tmp_path: Path) -> None:
    async def gateways(_request: Request) -> JSONResponse:
        return JSONResponse({"gateways": [at_the_hub("a-gateway-of-a-long-name-in-hall-north", 40, 5.0)], "next": None})

    routes = [Route("/", phone), Route("/page", hub_page()), *hub(gateways).routes]
    with served(Starlette(routes=routes)) as port:
        page = shown(port, tmp_path / "profile")
    assert "a-gateway-of-a-long-name" in page
    assert 'data-overflow="0"' in page


@pytest.mark.parametrize(("status", "says"), [(403, "no right to view"), (401, "log in"), (500, "does not answer")])
def test_the_hub_s_page_says_why_it_shows_nothing(tmp_path: Path, status: int, says: str) -> None:
    async def gateways(_request: Request) -> JSONResponse:
        return JSONResponse({"error": "refused"}, status)

    with served(hub(gateways)) as port:
        page = shown(port, tmp_path / "profile")
    assert says in element(page, "state")


def test_only_a_backlog_that_is_none_of_every_day_is_amber_at_the_hub(tmp_path: Path) -> None:
    fleet = [
        at_the_hub("usual", 40, 5.0),
        at_the_hub("busy", 5_000, 500.0),
        at_the_hub("stuck", 6_000, 0.0),
        at_the_hub("away", 7, 0.0, connected=False),
    ]

    async def gateways(_request: Request) -> JSONResponse:
        return JSONResponse({"gateways": fleet, "next": None})

    with served(hub(gateways)) as port:
        shown_page = shown(port, tmp_path / "profile")
    amber = re.findall(r'<span class="warn">([\d,]+)</span>', shown_page)
    assert amber == ["6,000", "7"]
    assert "5,000" in shown_page
