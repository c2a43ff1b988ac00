"""Signing in at a real gateway and hub: over HTTP, with the cookies of a browser, and by links of `waypost open`."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from edge.appliance.identity.own_certificate import fingerprint
from edge.output.errors import Exit
from tests.support.command import run_waypost
from tests.support.processes import Waypost, edge, hub, wait_until

CHROMIUM = shutil.which("chromium")
WAIT_S = 60.0
PATH = "/api/v1/session"
HEADLESS = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")}
IN_PAGE = """async ([method, path, body]) => {
  const options = {method, headers: {"X-Requested-With": "waypost"}};
  if (body !== null) { options.body = JSON.stringify(body); options.headers["Content-Type"] = "application/json"; }
  const answer = await fetch(path, options);
  return [answer.status, await answer.json()];
}"""


class GatewayWithUser(NamedTuple):
    """A running gateway with HTTP on loopback, HTTPS, and a user."""

    process: Waypost
    data: Path
    password: str

    def url(self, scheme: str, host: str = "127.0.0.1") -> str:
        return f"{scheme}://{host}:{self.process.port(scheme)}"


def waypost(*words: str, code: int = 0) -> Any:
    done = run_waypost(*words, environment=HEADLESS)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayWithUser]:
    folder = tmp_path_factory.mktemp("gateway")
    data = folder / "hall"
    places = ("--mqtt", "none", "--amqp", "none", "--http", "127.0.0.1:0", "--https", "0.0.0.0:0")
    waypost("init", "--data", str(data), "--name", "hall", *places)
    added = waypost("user", "add", "anna", "--data", str(data), "--profile", "operator").stdout
    with Waypost(folder / "hall.log", "run", "--data", str(data)) as process:
        yield GatewayWithUser(process, data, re.findall(r"^password: (\S+)", added, re.MULTILINE)[0])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian package chromium)")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def page_of(browser: Browser, url: str) -> Page:
    """Open a path that needs no user; its scripts may send requests."""
    page = browser.new_context(ignore_https_errors=True).new_page()
    page.goto(f"{url}/healthz")
    return page


def ask(page: Page, method: str, path: str, body: object = None) -> tuple[int, Any]:
    status, document = page.evaluate(IN_PAGE, [method, path, body])
    return int(status), document


@pytest.mark.parametrize(
    ("scheme", "host"), [("http", "127.0.0.1"), ("http", "localhost"), ("https", "127.0.0.1"), ("https", "localhost")]
)
def test_a_browser_keeps_and_sends_the_cookie(
    gateway: GatewayWithUser, browser: Browser, scheme: str, host: str
) -> None:
    page = page_of(browser, gateway.url(scheme, host))
    before = ask(page, "GET", PATH)[1]
    assert (before["user"], before["secure"], before["methods"]) == (None, True, ["password"])
    assert ask(page, "GET", "/api/v1/status")[0] == 401
    assert ask(page, "POST", PATH, {"user": "anna", "password": "guess"})[0] == 401
    status, document = ask(page, "POST", PATH, {"user": "anna", "password": gateway.password})
    assert (status, document["user"], document["manage"]) == (200, "anna", True)
    [cookie] = page.context.cookies()
    assert cookie["name"].startswith("__Host-waypost-" if scheme == "https" else "waypost-")
    assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (scheme == "https", True, "Strict")
    assert page.evaluate("document.cookie") == ""
    assert ask(page, "GET", "/api/v1/status")[0] == 200
    assert ask(page, "POST", "/api/v1/bridge/resume")[0] == 200
    second = page.context.new_page()
    second.goto(f"{gateway.url(scheme, host)}/healthz")
    assert ask(second, "GET", PATH)[1]["user"] == "anna"
    assert ask(page, "DELETE", PATH)[1]["user"] is None
    assert ask(second, "GET", "/api/v1/status")[0] == 401, "signed out in both"
    assert page.context.cookies() == []
    page.context.close()


def test_a_page_of_another_port_can_change_nothing(gateway: GatewayWithUser, browser: Browser) -> None:
    """The same site for the browser, so that it sends the cookie: the gateway refuses the origin."""
    page = page_of(browser, gateway.url("http"))
    assert ask(page, "POST", PATH, {"user": "anna", "password": gateway.password})[0] == 200
    send = 'url => fetch(url, {method: "POST", mode: "no-cors", credentials: "include"}).then(answer => answer.type)'
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever).start()
        other = page.context.new_page()
        other.goto(f"http://127.0.0.1:{server.server_port}/")  # 501, a page all the same
        assert other.evaluate(send, gateway.url("http") + "/api/v1/bridge/pause") == "opaque", "it was answered"
        server.shutdown()
    assert ask(page, "GET", "/api/v1/status")[1]["uplink"]["state"] != "paused"
    assert "bridge/pause" not in gateway.process.log.read_text()
    page.context.close()


def test_a_removed_user_is_signed_out_at_once(gateway: GatewayWithUser) -> None:
    added = waypost("user", "add", "carl", "--data", str(gateway.data), "--profile", "viewer").stdout
    password = re.findall(r"^password: (\S+)", added, re.MULTILINE)[0]
    with httpx.Client(base_url=gateway.url("https"), verify=False) as client:
        assert client.post(PATH, json={"user": "carl", "password": password}).json()["view"] is True
        assert client.get("/api/v1/status").status_code == 200
        waypost("user", "remove", "carl", "--data", str(gateway.data))
        wait_until(lambda: client.get("/api/v1/status").status_code == 401, timeout_s=WAIT_S, what="the session ends")
        assert client.get(PATH).json()["user"] is None


def test_what_is_logged(gateway: GatewayWithUser) -> None:
    with httpx.Client(base_url=gateway.url("http")) as client:
        origin = {"Origin": gateway.url("http")}
        assert client.post(PATH, json={"user": "anna", "password": "guess"}).status_code == 401
        assert client.post(PATH, json={"user": "anna", "password": gateway.password}).status_code == 200
        assert client.post("/api/v1/bridge/resume?connector=none", headers=origin).status_code == 404
        assert client.delete(PATH, headers=origin).status_code == 200

    def logged() -> str:
        return gateway.process.log.read_text()

    resumed = "audit: user=anna from=127.0.0.1 POST /api/v1/bridge/resume?connector=none -> 404"
    wait_until(lambda: resumed in logged(), timeout_s=WAIT_S, what="lines of the log")
    wait_until(lambda: "sign-out: user=anna from=127.0.0.1" in logged(), timeout_s=WAIT_S, what="lines of the log")
    assert "sign-in refused: user=anna from=127.0.0.1: wrong user name or password" in logged()
    assert "sign-in: user=anna from=127.0.0.1" in logged()
    assert gateway.password not in logged()
    assert "guess" not in logged()


class TestOpen:
    def test_a_link_signs_in_once(self, gateway: GatewayWithUser, browser: Browser) -> None:
        done = waypost("open", "--data", str(gateway.data), "--print")
        link = urlsplit(done.stdout.strip())
        assert (link.scheme, link.port) == ("https", gateway.process.port("https")), "for other machines"
        code = link.fragment.removeprefix("link=")
        shown = ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", gateway.process.port("https"))))
        assert f"SHA-256 fingerprint of its certificate: {fingerprint(shown)}" in done.stderr
        page = page_of(browser, gateway.url("https"))
        status, document = ask(page, "POST", PATH, {"link": code})
        assert (status, document["user"], document["manage"]) == (200, "operator", True)
        assert ask(page, "POST", "/api/v1/bridge/resume")[0] == 200
        assert ask(page_of(browser, gateway.url("https")), "POST", PATH, {"link": code})[0] == 401
        assert code not in gateway.process.log.read_text()
        page.context.close()

    def test_a_qr_code_in_the_terminal(self, gateway: GatewayWithUser) -> None:
        done = waypost("open", "--data", str(gateway.data), "--qr")
        *drawn, link = done.stdout.splitlines()
        assert link.startswith("https://")
        assert len(drawn) > 15
        assert set("".join(drawn)) & set("█▀▄")

    def test_it_opens_a_browser(self, gateway: GatewayWithUser, tmp_path: Path) -> None:
        program = tmp_path / "browser"
        program.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/url\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        environment = {**HEADLESS, "BROWSER": str(program)}
        done = run_waypost("open", "--data", str(gateway.data), environment=environment)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        url = tmp_path / "url"  # the shell makes it before it writes
        wait_until(lambda: url.exists() and bool(url.read_text()), timeout_s=WAIT_S, what="the browser runs")
        assert url.read_text().startswith(f"{gateway.url('http')}/#link=")

    def test_without_authentication_it_is_the_address(self, tmp_path: Path) -> None:
        with edge(tmp_path, "gw") as running:
            done = waypost("open", "--data", str(tmp_path / "gw"), "--print")
            assert done.stdout == f"http://127.0.0.1:{running.port('http')}/\n"
            refused = waypost("open", "--data", str(tmp_path / "gw"), "--qr", code=Exit.FAILED)
            assert "no other machine can reach this console" in refused.stderr
        stopped = waypost("open", "--data", str(tmp_path / "gw"), code=Exit.UNREACHABLE)
        assert f"no gateway or hub runs on {tmp_path / 'gw'}" in stopped.stderr


def test_hub(tmp_path: Path) -> None:
    data = tmp_path / "hub"
    data.mkdir(mode=0o700)
    added = waypost("hub", "user", "add", "bea@acme", "--data", str(data), "--allow", "view:#").stdout
    password = re.findall(r"^password: (\S+)", added, re.MULTILINE)[0]
    places = ("--amqp=127.0.0.1:0", "--http=0.0.0.0:0")
    with Waypost(tmp_path / "hub.log", "hub", "run", "--data", str(data), *places) as running:
        url = f"https://127.0.0.1:{running.port('https')}"
        code = waypost("open", "--data", str(data), "--print").stdout.strip().partition("#link=")[2]
        with httpx.Client(base_url=url, verify=False) as operator, httpx.Client(base_url=url, verify=False) as bea:
            signed_in = operator.post(PATH, json={"link": code}).json()
            assert (signed_in["user"], signed_in["view"], signed_in["manage"]) == ("operator", True, True)
            assert operator.get("/metrics").status_code == 200, "data of every tenant"
            signed_in = bea.post(PATH, json={"user": "bea@acme", "password": password}).json()
            assert (signed_in["user"], signed_in["view"], signed_in["manage"]) == ("bea@acme", True, False)
            assert bea.get("/api/v1/status").json()["tenant"] == "acme"
            assert bea.get("/metrics").status_code == 403
            assert bea.post("/api/v1/rollouts/1/abort", headers={"Origin": url}).status_code == 403
        wait_until(
            lambda: "audit: user=bea@acme from=127.0.0.1 POST /api/v1/rollouts/1/abort -> 403"
            in (tmp_path / "hub.log").read_text(),
            timeout_s=WAIT_S, what="the line of the audit",
        )  # fmt: skip
        assert running.stop() == 0
    assert not (data / "endpoints.json").exists()


def test_hub_without_authentication(tmp_path: Path) -> None:
    with hub(tmp_path) as running:
        document = httpx.get(f"http://127.0.0.1:{running.port('http')}{PATH}").json()
        assert (document["user"], document["open"], document["manage"]) == (None, True, True)
