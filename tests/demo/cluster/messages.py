"""RabbitMQ for applications: one node of Debian's version, with AMQP 1.0 by its plugin, and quorum queues."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any, Final

from tests.demo.cluster.launching import Launcher, until
from tests.demo.cluster.programs import RabbitPrograms
from tests.demo.ports import free_ports
from tests.demo.processes import Child

STOP_S: Final = 30.0
"""Longest end of the server: it closes its queues."""
QUEUE_MESSAGES_MAX: Final = 100_000
"""Messages that a queue holds; then senders are refused."""
DEAD: Final = "waypost.dead"
"""Queue of commands that can never be sent."""
COPIES_MAX: Final = 20_000
"""Live copies that wait for an application; then the oldest ones are dropped."""
COMMANDS, OUTCOMES, COPIES = (f"/amq/queue/waypost.default.{name}" for name in ("commands", "outcomes", "copies"))
"""Addresses of applications, as the plugin names existing queues."""


def definitions() -> dict[str, Any]:
    """Return what the server has from its start: a user without a password of worth, on loopback only, and queues."""
    names = [*(f"waypost.default.{name}" for name in ("commands", "outcomes", "replies.app")), DEAD]
    arguments = {"x-queue-type": "quorum"}
    queues = [
        {"name": name, "vhost": "/", "durable": True, "auto_delete": False, "arguments": arguments} for name in names
    ]
    limits = {
        "max-length": QUEUE_MESSAGES_MAX,
        "overflow": "reject-publish",
        "dead-letter-exchange": "",
        "dead-letter-routing-key": DEAD,
    }
    copies = "waypost.default.copies"
    newest = {"x-max-length": COPIES_MAX, "x-overflow": "drop-head"}
    queues.append({"name": copies, "vhost": "/", "durable": False, "auto_delete": False, "arguments": newest})
    exchange = {
        "name": copies,
        "vhost": "/",
        "type": "fanout",
        "durable": True,
        "auto_delete": False,
        "internal": False,
    }
    binding = {"source": copies, "vhost": "/", "destination": copies, "destination_type": "queue", "routing_key": ""}
    own = r"^waypost\.default\.(commands|outcomes|replies\.)"
    policy = {"name": "waypost", "vhost": "/", "pattern": own, "apply-to": "queues"}
    return {
        "vhosts": [{"name": "/"}],
        "users": [{"name": "guest", "password": "guest", "tags": []}],
        "permissions": [{"user": "guest", "vhost": "/", "configure": "", "write": ".*", "read": ".*"}],
        "queues": queues,
        "exchanges": [{**exchange, "arguments": {}}],
        "bindings": [{**binding, "arguments": {}}],
        "policies": [{**policy, "priority": 0, "definition": limits}],
    }


class MessageBroker:
    """One server in a folder."""

    def __init__(self, folder: Path, launcher: Launcher, programs: RabbitPrograms) -> None:
        self._folder = folder
        self._launcher = launcher
        self._programs = programs
        self.port, self._names_port, self._nodes_port = free_ports(3)
        self._names: Child | None = None
        self._server: Child | None = None

    @property
    def url(self) -> str:
        """URL for hubs and applications."""
        return f"amqp://127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        """Field `messaging` of the hubs' configuration."""
        replies = "/amq/queue/waypost.{tenant}.replies."
        queues = {name: f"/amq/queue/waypost.{{tenant}}.{name}" for name in ("commands", "outcomes")}
        return {"url": self.url, **queues, "replies": replies, "copies": "/exchange/waypost.{tenant}.copies"}

    @property
    def processes(self) -> tuple[Child, ...]:
        """Running processes."""
        return tuple(filter(None, (self._names, self._server)))

    async def start(self) -> None:
        """Start it; return when it accepts connections. Raises DemoError."""
        self._write_files()
        # Without a name server of the demo's own, the server would start one that outlives it.
        command = [str(self._programs.epmd), "-port", str(self._names_port), "-address", "127.0.0.1"]
        names = self._names = await self._launcher.start("epmd", command)
        await until(names, lambda: _accepts(self._names_port))
        self._server = await self._launcher.start(
            "rabbitmq", [str(self._programs.server)], environment=self._environment(), last_signal="TERM"
        )
        await until(self._server, lambda: _accepts(self.port))

    async def stop(self) -> None:
        """End it. Raises DemoError when it does not end in time."""
        for child in filter(None, (self._server, self._names)):
            await self._launcher.end(child, signal.SIGTERM, STOP_S)

    def _write_files(self) -> None:
        self._folder.mkdir()
        file = self._folder / "definitions.json"
        file.write_text(json.dumps(definitions()))
        settings = (
            f"listeners.tcp.default = 127.0.0.1:{self.port}",
            f"load_definitions = {file}",
            "log.console = true",
            "log.console.level = warning",
            "log.file = false",
        )
        (self._folder / "rabbitmq.conf").write_text("".join(f"{line}\n" for line in settings))
        (self._folder / "plugins").write_text("[rabbitmq_amqp1_0].\n")

    def _environment(self) -> dict[str, str]:
        loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
        return {
            "HOME": str(self._folder),
            "ERL_EPMD_PORT": str(self._names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_NODENAME": "waypost-demo@localhost",
            "RABBITMQ_CONFIG_FILE": str(self._folder / "rabbitmq"),
            "RABBITMQ_MNESIA_BASE": str(self._folder / "data"),
            "RABBITMQ_LOG_BASE": str(self._folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._folder / "plugins"),
            "RABBITMQ_DIST_PORT": str(self._nodes_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"+S 1:1 {loopback}",
        }


async def _accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
