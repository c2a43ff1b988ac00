"""API of balena, as far as `waypost balena` uses it: one account, one fleet, in memory.

It answers as api.balena-cloud.com documents (version 7; OData queries) and records every request. Unknown requests get
404 and are listed in `unknown`.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "token-of-ada"
FLEET = "acme/gateways"
FLEET_ID = 7
DEVICE_TYPE = "raspberrypi4-64"
IMAGE = b"image of balenaOS" * 70_000


@dataclass
class Request:
    method: str
    path: str
    query: str
    body: Any
    authorization: str


@dataclass
class Cloud:
    """State of the API."""

    devices: list[dict[str, Any]] = field(default_factory=list)
    variables: dict[tuple[str, int, str], str] = field(default_factory=dict)
    tags: dict[tuple[int, str], str] = field(default_factory=dict)
    releases: list[dict[str, Any]] = field(default_factory=list)
    fleet: dict[str, Any] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    unknown: list[Request] = field(default_factory=list)
    fails: dict[str, int] = field(default_factory=dict)
    """Status of the next answer, by method and start of the path, such as `POST /device`."""
    says: str = "the test requested this fault"
    """Text of these answers."""
    breaks: set[str] = field(default_factory=set)
    """Method and start of the path of the next requests that break the connection instead of an answer."""
    short_of: int = 0
    """Bytes missing at the end of the image."""
    url: str = ""
    actor: str = "user"

    def answer(self, request: Request) -> tuple[int, Any]:
        for what, status in self.fails.items():
            if f"{request.method} {request.path}".startswith(what):
                del self.fails[what]
                return status, self.says
        if not request.authorization.startswith("Bearer "):
            return 401, "Unauthorized"
        if request.authorization not in (f"Bearer {TOKEN}", "Bearer provisioning"):
            return 401, "Unauthorized"
        for pattern, function in ROUTES.items():
            if found := re.fullmatch(pattern, f"{request.method} {request.path}"):
                return 200, function(self, request, *found.groups())
        self.unknown.append(request)
        return 404, "Not Found"

    def whoami(self, _: Request) -> Any:
        return {"id": 1, "actorType": self.actor, "actorTypeId": 11, "username": "ada", "email": "ada@example.org"}

    def application(self, request: Request) -> Any:
        if "is_host" in request.query:
            releases = [
                {
                    "id": n,
                    "raw_version": version,
                    "variant": "",
                    "phase": None,
                    "known_issue_list": None,
                    "release_tag": [],
                }
                for n, version in enumerate(("6.1.0", "6.0.10"))
            ]
            return {
                "d": [
                    {"is_for__device_type": [{"slug": DEVICE_TYPE}], "application_tag": [], "owns__release": releases}
                ]
            }
        if f"slug eq '{FLEET}'" not in request.query and f"({FLEET_ID})" not in request.path:
            return {"d": []}
        kind = {"slug": DEVICE_TYPE, "is_of__cpu_architecture": [{"slug": "aarch64"}]}
        return {
            "d": [{"id": FLEET_ID, "slug": FLEET, "is_for__device_type": [kind], "owns__release": self.releases[:1]}]
        }

    def change_fleet(self, request: Request) -> Any:
        self.fleet |= request.body
        return "OK"

    def device_types(self, _: Request) -> Any:
        return {"d": [{"slug": DEVICE_TYPE}]}

    def provisioning_key(self, _: Request) -> Any:
        return "provisioning"

    def register(self, request: Request) -> Any:
        assert request.body["application"] == FLEET_ID
        assert request.authorization == "Bearer provisioning"
        device = {"id": 100 + len(self.devices), "uuid": request.body["uuid"], "device_name": "restless-fog"}
        self.devices.append(device)
        return {"id": device["id"], "uuid": device["uuid"], "api_key": "key-of-the-device"}

    def list_devices(self, request: Request) -> Any:
        named = re.search(r"uuid(?: eq |=)'(\w+)'", f"{request.path} {request.query}")
        return {"d": [self.seen(each) for each in self.devices if named is None or each["uuid"] == named[1]]}

    def seen(self, device: dict[str, Any]) -> dict[str, Any]:
        tag = self.tags.get((device["id"], "tenant"))
        return {
            **device,
            "is_online": device["id"] % 2 == 0,
            "os_version": "balenaOS 6.1.0",
            "belongs_to__application": {"__id": FLEET_ID},
            "device_tag": [] if tag is None else [{"value": tag}],
            "is_running__release": self.releases[:1],
        }

    def change_device(self, request: Request) -> Any:
        numbers = {int(number) for number in re.findall(r"\bid eq (\d+)", request.query)}
        numbers |= {int(number) for number in re.findall(r"\((\d+)\)", request.path)}
        uuids = set(re.findall(r"uuid eq '(\w+)'", request.query)) | set(re.findall(r"uuid='(\w+)'", request.path))
        chosen = [each for each in self.devices if each["id"] in numbers or each["uuid"] in uuids]
        assert len(chosen) == 1, (request.path, request.query)
        chosen[0].update(request.body)
        return "OK"

    def set_variable(self, request: Request, kind: str) -> Any:
        self.variables[kind, request.body[kind], request.body["name"]] = request.body["value"]
        return {"id": 1}

    def set_tag(self, request: Request) -> Any:
        self.tags[request.body["device"], request.body["tag_key"]] = request.body["value"]
        return {"id": 1}

    def list_releases(self, request: Request) -> Any:
        named = re.search(r"commit eq '(\w+)'|startswith\(commit,'(\w+)'\)", request.query)
        wanted = (named[1] or named[2]) if named else ""
        return {"d": [each for each in self.releases if each["commit"].startswith(wanted)]}

    def device_key(self, _: Request, number: str) -> Any:
        return f"key-of-{number}"

    def configuration(self, request: Request) -> Any:
        assert request.body["appId"] == FLEET_ID
        kept = ("version", "network", "wifiSsid", "wifiKey")
        made = {"applicationId": FLEET_ID, "apiEndpoint": self.url, "deviceType": DEVICE_TYPE, "apiKey": "of the fleet"}
        return made | {key: request.body[key] for key in kept if key in request.body}


ROUTES: dict[str, Any] = {
    r"GET /actor/v1/whoami": Cloud.whoami,
    r"GET /v7/application(?:\(\d+\))?": Cloud.application,
    r"PATCH /v7/application\(\d+\)": Cloud.change_fleet,
    r"GET /v7/device_type": Cloud.device_types,
    r"POST /api-key/v1/": Cloud.provisioning_key,
    r"POST /device/register": Cloud.register,
    r"GET /v7/device(?:\(.*\))?": Cloud.list_devices,
    r"PATCH /v7/device(?:\(.*\))?": Cloud.change_device,
    r"POST /v7/(device)_environment_variable": Cloud.set_variable,
    r"POST /v7/(application)_environment_variable": Cloud.set_variable,
    r"POST /v7/device_tag": Cloud.set_tag,
    r"GET /v7/release": Cloud.list_releases,
    r"POST /api-key/device/(\d+)/device-key": Cloud.device_key,
    r"POST /download-config": Cloud.configuration,
}


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnects before it has received everything."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def cloud() -> Iterator[Cloud]:
    """Run the API on a free loopback port, at `url`."""
    known = Cloud()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            url = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            sent = Request(self.command, url.path, unquote(url.query), body, self.headers.get("Authorization", ""))
            known.requests.append(sent)
            if broken := [each for each in known.breaks if f"{sent.method} {sent.path}".startswith(each)]:
                known.breaks -= set(broken)
                self.close_connection = True
                return
            if sent.path == "/download":
                asked = parse_qs(url.query)
                assert asked["deviceType"] == [DEVICE_TYPE]
                assert asked["fileType"] == [".img"]
                self.reply(200, IMAGE[: len(IMAGE) - known.short_of], length=len(IMAGE))
                return
            status, answer = known.answer(sent)
            self.reply(status, answer.encode() if isinstance(answer, str) else json.dumps(answer).encode())

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = handle_one  # noqa: N815

        def reply(self, status: int, content: bytes, length: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content) if length is None else length))
            self.end_headers()
            self.wfile.write(content)
            self.close_connection = length not in (None, len(content))

        def log_message(self, *_: Any) -> None:
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        known.url = f"http://127.0.0.1:{server.server_address[1]}/"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield known
        finally:
            server.shutdown()
            thread.join(10)
            assert not thread.is_alive()
