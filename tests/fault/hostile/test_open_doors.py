"""HTTP reads and changes require rights, and no page gets them through its visitor's browser."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.fault.hostile.web import FOREIGN, ask, gateway_of, statuses
from tests.support.command import item_in, run_waypost
from tests.support.configured_gateway import gateway_with, user
from tests.support.http_client import WAIT_S
from tests.support.processes import Waypost

PAGES = (
    "/api/v1/status",
    "/api/v1/series",
    "/api/v1/addresses",
    "/api/v1/log",
    "/api/v1/journal",
    "/api/v1/configuration",
    "/metrics",
)
STEERING = ("/api/v1/uplink/pause", "/api/v1/uplink/resume")
USERS = "".join(
    (user("viewer", "view"), user("boss", "manage"), user("pump7", "send, recv"), user("partly", "view", '"plant/#"'))
)


class Guarded(NamedTuple):
    """Gateway with authentication."""

    process: Waypost
    data: Path

    @property
    def port(self) -> int:
        return self.process.port("http")

    def paused(self) -> bool:
        status = ask(self.port, "GET", "/api/v1/status", user="viewer:viewer").document
        return bool(status["uplink"]["state"] == "paused")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    with gateway_with(folder, gateway_of(extra=USERS)) as running:
        yield Guarded(running, folder / "gw")


class TestRights:
    """Rights over HTTP at a gateway with authentication."""

    @pytest.mark.parametrize("path", PAGES)
    def test_reading_requires_view(self, guarded: Guarded, path: str) -> None:
        nobody = ask(guarded.port, "GET", path)
        assert nobody.status == 401
        assert nobody.headers["www-authenticate"] == 'Basic realm="waypost", charset="UTF-8"'
        assert ask(guarded.port, "GET", path, user="viewer:wrong").status == 401
        assert ask(guarded.port, "GET", path, token="viewer").status == 401
        assert ask(guarded.port, "GET", path, user="pump7:pump7").status == 403
        assert ask(guarded.port, "GET", path, user="partly:partly").status == 403, "a part of it is not the space"
        assert ask(guarded.port, "GET", path, user="viewer:viewer").status == 200
        assert ask(guarded.port, "GET", path, user="boss:boss").status == 200

    def test_live_figures_need_the_right_to_view(self, guarded: Guarded) -> None:
        path = "/api/v1/events?topics=status"
        assert ask(guarded.port, "GET", path).status == 401
        assert ask(guarded.port, "GET", path, user="pump7:pump7").status == 403

    def test_page_and_its_files_have_no_data_and_need_no_user(self, guarded: Guarded) -> None:
        assert ask(guarded.port, "GET", "/").status == 200
        assert ask(guarded.port, "GET", "/ui/0/gateway.js").status == 404

    def test_changes_require_manage(self, guarded: Guarded) -> None:
        pause, resume = STEERING
        for name, status in (("", 401), ("boss:wrong", 401), ("viewer:viewer", 403), ("pump7:pump7", 403)):
            for path in STEERING:
                assert ask(guarded.port, "POST", path, user=name).status == status
        assert not guarded.paused()
        assert ask(guarded.port, "POST", pause, user="boss:boss").status == 200
        assert guarded.paused()
        assert ask(guarded.port, "POST", resume, user="boss:boss").status == 200
        assert not guarded.paused()

    def test_health_requires_no_login(self, guarded: Guarded) -> None:
        assert ask(guarded.port, "GET", "/healthz").status == 200

    @pytest.mark.parametrize("path", ["/nothing", "/api/v1", "/api/v1/uplink/pause", "/docs", "/healthz/", "//"])
    def test_unknown_path_requires_login(self, guarded: Guarded, path: str) -> None:
        assert ask(guarded.port, "GET", path).status == 401
        assert ask(guarded.port, "GET", path, user="pump7:pump7").status in (404, 405)

    def test_device_paths_require_send_or_recv(self, guarded: Guarded) -> None:
        assert ask(guarded.port, "POST", "/t/jobs", body=b"x").status == 401
        assert ask(guarded.port, "POST", "/t/jobs", body=b"x", user="viewer:viewer").status == 403
        assert ask(guarded.port, "GET", "/c/jobs", user="boss:boss").status == 403
        assert ask(guarded.port, "POST", "/t/jobs", body=b"x", user="pump7:pump7").status == 202
        assert ask(guarded.port, "GET", "/c/jobs?wait=10", user="pump7:pump7").body == b"x"

    def test_operator_token_opens_local_paths_only(self, guarded: Guarded) -> None:
        """A reader of the data directory has the operator token, and could add a user there: it opens every path.

        It opens none through a proxy.
        """
        file = guarded.data / "operator.token"
        assert file.stat().st_mode & 0o777 == 0o600
        token = file.read_text().strip()
        for path in PAGES:
            assert ask(guarded.port, "GET", path, token=token).status == 200
        assert ask(guarded.port, "POST", STEERING[1], token=token).status == 200
        assert ask(guarded.port, "POST", "/t/jobs", body=b"x", token=token).status == 202
        for proxied in ("Forwarded", "X-Forwarded-For", "Via"):
            assert ask(guarded.port, "GET", "/metrics", {proxied: "192.0.2.7"}, token=token).status == 401
        assert ask(guarded.port, "GET", "/metrics", token=token[:-1]).status == 401

    def test_status_command_requires_the_data_directory(self, guarded: Guarded) -> None:
        command = ("status", "--json", "--http", f"127.0.0.1:{guarded.port}")
        done = run_waypost(*command, "--data", str(guarded.data))
        assert (done.returncode, item_in(done.stdout)["gateway"]) == (0, "gw1")
        refused = run_waypost(*command)
        assert refused.returncode == 1
        assert "--data" in refused.stderr


class TestPages:
    """Pages of other sites, with everything a browser adds by itself: stored credentials, and its own names."""

    @pytest.mark.parametrize(
        "headers",
        [
            FOREIGN,
            {"Host": "evil.example"},
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://127.0.0.1:1"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Host": "127.0.0.1.evil.example"},
            {"Host": "evil.example:80"},
            {"Host": "0.0.0.0"},
            {"Host": "192.0.2.7"},
            {"Host": ""},
            {"Host": "127.0.0.1@evil.example"},
        ],
    )
    @pytest.mark.parametrize("credentials", ["boss:boss", ""])
    def test_page_of_another_site_is_refused(self, guarded: Guarded, headers: dict[str, str], credentials: str) -> None:
        for path in STEERING:
            answer = ask(guarded.port, "POST", path, headers, user=credentials)
            assert answer.status in (400, 403, 421)
        for path in (*PAGES, "/healthz", "/c/jobs", "/nothing"):
            assert ask(guarded.port, "GET", path, headers, user=credentials).status in (400, 403, 421)
        assert ask(guarded.port, "POST", "/t/jobs", headers, user="pump7:pump7").status in (400, 403, 421)
        assert not guarded.paused()

    def test_own_page_is_accepted(self, guarded: Guarded) -> None:
        for host in (f"127.0.0.1:{guarded.port}", f"localhost:{guarded.port}", f"[::1]:{guarded.port}"):
            headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
            assert ask(guarded.port, "POST", STEERING[1], headers, user="boss:boss").status == 200

    def test_link_from_another_site_opens_only_the_console(self, guarded: Guarded) -> None:
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        assert ask(guarded.port, "GET", "/", link, user="viewer:viewer").status == 200
        assert ask(guarded.port, "GET", "/c/jobs", link, user="pump7:pump7").status == 403
        assert ask(guarded.port, "GET", "/api/v1/status", link, user="viewer:viewer").status == 403


def upgrade(host: str, origin: str = "") -> bytes:
    said = f"Origin: {origin}\r\n" if origin else ""
    return (
        f"GET / HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{said}"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    ).encode()


def upgraded(port: int, request: bytes) -> list[int]:
    """Return the statuses up to the end of the first head: an accepted connection stays open."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as peer:
        peer.sendall(request)
        found = b""
        while b"\r\n\r\n" not in found and (piece := peer.recv(65_536)):
            found += piece
    return statuses(found)


class TestDevelopment:
    """`--dev` has no authentication: the page as named by the browser is the only evidence."""

    def test_local_browser_and_curl_are_accepted(self, gateway: Waypost) -> None:
        port = gateway.port("http")
        for path in (*PAGES, "/healthz"):
            assert ask(port, "GET", path).status == 200
        assert ask(port, "POST", "/t/queue/a", body=b"x").status == 202
        assert ask(port, "GET", "/c/queue/a?wait=10").body == b"x"
        own = {"Origin": f"http://localhost:{port}", "Host": f"localhost:{port}", "Sec-Fetch-Site": "same-origin"}
        assert ask(port, "POST", STEERING[0], own).status == 200
        assert ask(port, "POST", STEERING[1]).status == 200

    @pytest.mark.parametrize("headers", [FOREIGN, {"Host": "evil.example"}, {"Origin": "http://evil.example"}])
    def test_dns_rebinding_is_refused(self, gateway: Waypost, headers: dict[str, str]) -> None:
        port = gateway.port("http")
        for path in (*PAGES, "/healthz", "/c/queue/b"):
            assert ask(port, "GET", path, headers).status in (403, 421)
        for path in (*STEERING, "/t/queue/b", "/t"):
            assert ask(port, "POST", path, headers, body=b"x").status in (403, 421)
        assert ask(port, "GET", "/c/queue/b").status == 204, "nothing was published"

    @pytest.mark.parametrize(
        ("host", "origin", "status"),
        [
            ("evil.example", "http://evil.example", 403),
            ("evil.example", "", 403),
            ("127.0.0.1", "http://evil.example", 403),
            ("127.0.0.1", "null", 403),
            ("127.0.0.1", "", 101),
            ("127.0.0.1", "http://127.0.0.1:8080", 101),
            ("localhost", "http://localhost", 101),
        ],
    )
    def test_websocket_upgrade_checks_host_and_origin(
        self, gateway: Waypost, host: str, origin: str, status: int
    ) -> None:
        assert upgraded(gateway.port("mqtt-ws"), upgrade(host, origin)) == [status]


def test_configured_host_names_are_accepted(tmp_path: Path) -> None:
    listed = gateway_of(authentication="{name: none}", listeners=", hostNames: [gw1.plant.example]")
    with gateway_with(tmp_path, listed) as gateway:
        port = gateway.port("http")
        assert ask(port, "GET", "/metrics", {"Host": "GW1.plant.example:8080"}).status == 200
        assert ask(port, "GET", "/metrics", {"Host": "gw2.plant.example:8080"}).status == 421
        assert upgraded(gateway.port("mqtt-ws"), upgrade("gw1.plant.example")) == [101]
