"""Independent object store: moto's server in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Self

from tests.support.processes import READY_S, free_port, wait_until

BUCKET = "fleet"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI-example", "AWS_REGION": "us-east-1"}


class ObjectStore:
    """Store with one bucket in memory; a context manager."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(self._made, timeout_s=READY_S, what="the object store answers")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(READY_S)

    def _made(self) -> bool:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{BUCKET}", method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def environment(self, port: int | None = None) -> dict[str, str]:
        """Return the environment of a process that uses it, with another port for a proxy in between."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return {**kept, **KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}"}
