"""Process with the key of the authority, which nothing connects to: hubs have its certificate alone."""

from __future__ import annotations

import json
import signal
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cloud.hub.enrolment.authority import OwnAuthority
from tests.demo.cluster.launching import Launcher
from tests.demo.processes import Child, waypost
from tests.demo.stage import READY_S

STOP_S: Final = 30.0


class AuthorityProcess:
    """An authority in a folder, and the process that signs for it."""

    def __init__(self, folder: Path, launcher: Launcher) -> None:
        self._folder = folder
        self._launcher = launcher
        self.process: Child | None = None

    @property
    def settings(self) -> dict[str, str]:
        """Field `authority` of the hubs' configuration."""
        return {"certificate": str(self._folder / "ca.crt")}

    @property
    def context(self) -> ssl.SSLContext:
        """TLS settings that trust the authority."""
        return ssl.create_default_context(cafile=self.settings["certificate"])

    async def start(self, spec: Mapping[str, Any]) -> None:
        """Make the authority, and start the process. `spec`: configuration of the hubs. Raises DemoError."""
        self._folder.mkdir(mode=0o700)
        made = OwnAuthority.make("cluster demo", time.time())
        (self._folder / "ca.crt").write_text(made.pem)
        key = self._folder / "ca.key"
        key.touch(0o600)
        key.write_text(made.key_pem)
        own = {**spec, "authority": {**self.settings, "key": str(key)}}
        file = self._folder / "authority.yaml"
        file.write_text(json.dumps({"apiVersion": "waypost/v1", "kind": "Hub", "spec": own}))
        command = waypost("hub", "authority", "--config", str(file), "--http", "127.0.0.1:0")
        self.process = await self._launcher.start("authority", command)
        await self.process.ready(READY_S)

    async def stop(self) -> None:
        """End the process. Raises DemoError when it does not end in time."""
        if self.process is not None:
            await self._launcher.end(self.process, signal.SIGTERM, STOP_S)
