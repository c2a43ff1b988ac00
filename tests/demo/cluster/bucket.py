"""S3 server in memory: moto's. It checks conditional writes, as the hubs need."""

from __future__ import annotations

import signal
import sys
from typing import Final

import httpx

from tests.demo.cluster.launching import Launcher, until
from tests.demo.ports import free_ports
from tests.demo.processes import Child

BUCKET: Final = "fleet"
KEY: Final = {"AWS_ACCESS_KEY_ID": "cluster", "AWS_SECRET_ACCESS_KEY": "demonstration", "AWS_REGION": "us-east-1"}
STOP_S: Final = 10.0


class ObjectStoreServer:
    """One server with one bucket."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        [self.port] = free_ports(1)
        self.process: Child | None = None

    @property
    def lake(self) -> str:
        """Place of the lake."""
        return f"s3://{BUCKET}/lake"

    @property
    def environment(self) -> dict[str, str]:
        """Environment of processes that use the bucket."""
        return {**KEY, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}

    async def start(self) -> None:
        """Start it, and make the bucket. Raises DemoError."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = await self._launcher.start("bucket", command)
        await until(self.process, self._makes_the_bucket)

    async def stop(self) -> None:
        """End it: it keeps everything in memory."""
        if self.process is not None:
            await self._launcher.end(self.process, signal.SIGKILL, STOP_S)

    async def _makes_the_bucket(self) -> bool:
        async with httpx.AsyncClient() as client:
            try:
                made = await client.put(f"http://127.0.0.1:{self.port}/{BUCKET}")
            except httpx.HTTPError:
                return False
            return made.status_code == httpx.codes.OK
