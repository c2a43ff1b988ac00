"""Independent object store: moto's server in its own process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

from tests.support.processes import READY_S, free_port, wait_until

BUCKET = "fleet"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI-example", "AWS_REGION": "us-east-1"}


class ObjectStore:
    """Store with one bucket in memory, at an address of this machine; a context manager."""

    def __init__(self, log: Path, host: str = "127.0.0.1") -> None:
        self.host = host
        self.port = free_port()
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "moto.server", "-H", self.host, "-p", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(self._made, timeout_s=READY_S, what="the object store answers")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(READY_S)

    @property
    def pid(self) -> int:
        """Return its process."""
        assert self._process is not None
        return self._process.pid

    def _made(self) -> bool:
        request = urllib.request.Request(f"http://{self.host}:{self.port}/{BUCKET}", method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def keys(self, prefix: str) -> list[str]:
        """Return the names of at most 1,000 objects of the bucket."""
        query = urlencode({"list-type": 2, "prefix": prefix})
        with urllib.request.urlopen(f"http://{self.host}:{self.port}/{BUCKET}?{query}", timeout=READY_S) as answer:
            return re.findall("<Key>(.*?)</Key>", answer.read().decode())

    def requests(self) -> list[tuple[str, str]]:
        """Return method and path of each request so far."""
        return re.findall(r'"(?:\x1b\[[0-9;]*m)*([A-Z]+) ([^ ?]+)', self._log.read_text())

    def environment(self, port: int | None = None) -> dict[str, str]:
        """Return the environment of a process that uses it, with another port for a proxy in between."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return {**kept, **KEYS, "AWS_ENDPOINT_URL": f"http://{self.host}:{port or self.port}"}
