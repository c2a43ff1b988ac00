"""Routes of the console over a stubbed status."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

import httpx
import pytest
from starlette.requests import Request

from edge.appliance.console.app import make_app
from edge.appliance.console.series import SeriesSample, StatusSeries
from edge.broker.http.access import HttpAccess
from edge.broker.http.guard import Guard
from edge.broker.http.refusal import RequestRefused
from edge.broker.security.site import Site
from tests.support.console_status import FULL, SOON, STATUS, RecordingControl

SERIES = StatusSeries(lambda: SeriesSample(received=100, acked=0, waiting=20, linked=False))


class Client:
    """Client at `host` that sends requests to the application."""

    def __init__(
        self,
        status: Mapping[str, object],
        control: RecordingControl | None,
        host: str,
        access: HttpAccess | None = None,
    ) -> None:
        app = make_app(lambda: status, SERIES, access or HttpAccess(), control)
        self._app = Guard(app, Site(["gw"], exposed=True), lambda: False)
        self._host = host

    def get(self, path: str) -> httpx.Response:
        return self._ask("GET", path, {})

    def post(self, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        return self._ask("POST", path, headers or {})

    def _ask(self, method: str, path: str, headers: Mapping[str, str]) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._app, client=(self._host, 4711))
            async with httpx.AsyncClient(transport=transport, base_url="http://gw:8080") as client:
                return await client.request(method, path, headers=dict(headers))

        return asyncio.run(ask())


def client_of(
    status: Mapping[str, object] = STATUS, control: RecordingControl | None = None, *, host: str = "127.0.0.1"
) -> Client:
    return Client(status, control, host)


def test_page_loads_no_external_resources() -> None:
    answer = client_of().get("/")
    assert answer.status_code == 200
    loaded = re.findall(r"""(?:src|href)="([^"]*)\"""", answer.text)
    assert loaded
    for path in loaded:
        assert path.startswith("/ui/")
        assert client_of().get(path).status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy


def test_status_is_passed_on_unchanged() -> None:
    answer = client_of().get("/api/v1/status")
    assert answer.json() == STATUS
    assert answer.headers["cache-control"] == "no-store"


def test_metrics_name_what_the_status_contains() -> None:
    text = client_of().get("/metrics").text
    assert 'waypost_gateway_info{epoch="5f0e",gateway="gw1",version="0.1.0"} 1.0' in text
    assert 'waypost_clients{protocol="mqtt"} 2.0' in text
    assert "waypost_messages_received_total 100.0" in text
    assert 'waypost_uplink_state{state="connecting"} 1.0' in text
    assert 'waypost_uplink_state{state="connected"} 0.0' in text
    assert "waypost_uplink_backlog_messages 20.0" in text
    assert 'waypost_store_commit_seconds_bucket{le="0.1"} 4.0' in text
    assert 'waypost_store_commit_seconds_bucket{le="+Inf"} 5.0' in text
    assert "waypost_store_commit_seconds_sum 0.25" in text
    assert 'waypost_address_received_total{address="plant/\\"7\\"/temp",subscription=""} 100.0' in text
    assert "waypost_store_payload_bytes_total 1000.0" in text
    assert "waypost_process_written_bytes_total 2500.0" in text
    assert 'waypost_device_written_bytes_total{device="mmcblk0"} 9000.0' in text
    assert 'waypost_device_written_bytes_per_day{window="hour"} 50.0' in text
    assert 'waypost_device_endurance_bytes{device="mmcblk0"} 6e+13' in text
    assert 'waypost_device_used_ratio{device="mmcblk0"} 0.25' in text
    assert 'waypost_device_days_left{device="mmcblk0"} 1000.5' in text


def test_metrics_of_a_minimal_status_are_valid() -> None:
    text = client_of({}).get("/metrics").text
    assert "waypost_store_messages 0.0" in text
    assert "waypost_uplink" not in text
    for unknown in ("store_payload_bytes", "process_written", "device_written_bytes_total", "device_days_left"):
        assert f"waypost_{unknown}" not in text


def test_health_follows_the_problems() -> None:
    assert client_of().get("/healthz").status_code == 200
    sick = client_of({**STATUS, "problems": [FULL]})
    assert sick.get("/healthz").status_code == 503
    assert sick.get("/healthz").json() == {"ok": False, "problems": [FULL]}
    text = sick.get("/metrics").text
    assert 'waypost_problems{severity="error"} 1.0' in text
    labels = 'problem="store",severity="error",what="it is full"'
    assert f"waypost_problem_since_timestamp_seconds{{{labels}}} 1.78e+09" in text
    assert 'waypost_problems{severity="error"} 0.0' in client_of().get("/metrics").text


def test_remote_client_gets_only_the_state() -> None:
    class Closed(HttpAccess):
        async def require_view(self, request: Request) -> None:
            raise RequestRefused(401, "who are you?")

    status = {**STATUS, "problems": [FULL]}
    stranger = Client(status, None, "192.0.2.7", Closed())
    assert stranger.get("/healthz").status_code == 503
    assert stranger.get("/healthz").json() == {"ok": False}


def test_warning_is_reported_and_the_gateway_serves() -> None:
    warned = client_of({**STATUS, "problems": [SOON]})
    assert warned.get("/healthz").status_code == 200
    assert warned.get("/healthz").json() == {"ok": True, "problems": [SOON]}
    assert 'waypost_problems{severity="warning"} 1.0' in warned.get("/metrics").text


class TestUplinkControl:
    def test_local_client_may_pause_and_resume(self) -> None:
        control = RecordingControl()
        client = client_of(control=control)
        assert client.post("/api/v1/uplink/pause").json() == STATUS
        assert client.post("/api/v1/uplink/resume", headers={"origin": "http://gw:8080"}).status_code == 200
        assert control.calls == ["pause", "resume"]

    @pytest.mark.parametrize(
        ("host", "origin"), [("10.0.0.7", None), ("127.0.0.1", "http://elsewhere"), ("nonsense", None)]
    )
    def test_other_clients_are_refused(self, host: str, origin: str | None) -> None:
        control = RecordingControl()
        headers = {"origin": origin} if origin else {}
        answer = client_of(control=control, host=host).post("/api/v1/uplink/pause", headers=headers)
        assert answer.status_code == 403
        assert control.calls == []

    def test_control_without_an_uplink_is_refused(self) -> None:
        assert client_of().post("/api/v1/uplink/pause").status_code == 404

    def test_reading_does_not_control(self) -> None:
        assert client_of(control=RecordingControl()).get("/api/v1/uplink/pause").status_code == 405


class TestHistory:
    def test_console_shows_the_samples(self) -> None:
        answer = client_of().get("/api/v1/series?span=24h")
        assert answer.status_code == 200
        assert answer.json()["step_s"] == 60
        assert len(answer.json()["waiting"]) == 1_440

    def test_history_is_bounded(self) -> None:
        assert client_of().get("/api/v1/series?span=1y").status_code == 400
