"""Requests to a hub with enrolment, as the operator of its data directory."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
from typing import Any

from tests.support.command import PROGRAM
from tests.support.http_client import Answer, ask
from tests.support.processes import Waypost


class HubOperator:
    """Local operator of a running hub."""

    def __init__(self, hub: Waypost) -> None:
        self.hub = hub
        self.context = ssl.create_default_context(cafile=str(hub.data / "authority" / "ca.pem"))

    @property
    def base(self) -> str:
        """URL of the console."""
        return f"https://localhost:{self.hub.port('https')}/"

    def send(self, method: str, path: str, body: Any = None, kind: str = "application/json", **fields: str) -> Answer:
        """Send a request below ``/api/v1/``; `body`: a document, or bytes; `fields`: of the header."""
        return self.ask(method, f"/api/v1/{path}", body, kind, **fields)

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json", **fields: str) -> Answer:
        """Send a request."""
        token = (self.hub.data / "operator.token").read_text().strip()
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        more = {name.replace("_", "-"): value for name, value in fields.items()}
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind, **more}
        return ask(self.hub, method, path, content, headers, tls=self.context)

    def get(self, path: str) -> Any:
        """Return a document."""
        answer = self.send("GET", path)
        assert answer.status == 200, answer
        return answer.document

    def link(self) -> str:
        """Return the link that signs a browser in, once."""
        command = [*PROGRAM, "open", "--data", str(self.hub.data), "--print"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        found = re.search(r"https?://\S+(#link=\S+)", printed)
        assert found is not None, printed
        return self.base + found[1]
