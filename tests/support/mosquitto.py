"""Mosquitto as an independent peer: a broker that keeps acknowledged messages over restarts."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest

from tests.support.paho_loop import running_loop
from tests.support.processes import free_port, wait_until

installed = pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not installed")


class Mosquitto:
    """Mosquitto that saves its state at its end, and has no limit on its queues (with one it drops acknowledged
    messages).
    """

    def __init__(self, folder: Path, *settings: str) -> None:
        self.port = free_port()
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)  # started as root it switches to another user
        self._file = folder / "mosquitto.conf"
        self._file.write_text(
            "\n".join(
                (
                    f"listener {self.port} 127.0.0.1",
                    "allow_anonymous true",
                    "persistence true",
                    f"persistence_location {folder}/",
                    "max_queued_messages 0",
                    "max_inflight_messages 100",
                    *([f"user {os.environ.get('USER', 'root')}"] if os.geteuid() == 0 else []),
                    *settings,
                    "",
                )
            )
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            ["mosquitto", "-c", str(self._file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self._listens, timeout_s=20, what="mosquitto listens")

    def stop(self) -> None:
        """Send SIGTERM and wait until it has saved and ended."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
            self._process = None

    def configure(self, *settings: str) -> None:
        """Add settings, and restart with them."""
        self._file.write_text("\n".join((self._file.read_text(), *settings, "")))
        self.restart()

    def restart(self) -> None:
        self.stop()
        self.start()

    @contextlib.contextmanager
    def running(self) -> Iterator[Mosquitto]:
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class Listener:
    """Paho with a kept session: every message of some topics, in the order of arrival."""

    def __init__(self, port: int, *filters: str) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self._subscribed = threading.Event()
        self._filters: Sequence[str] = filters
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, "listener", clean_session=False)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", port, keepalive=10)

    @contextlib.contextmanager
    def listening(self) -> Iterator[Listener]:
        with running_loop(self._client):
            assert self._subscribed.wait(20), "the broker answers no SUBSCRIBE"
            yield self

    def _on_connect(self, client: paho.Client, *_: Any) -> None:
        client.subscribe([(name, 1) for name in self._filters])

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self.messages.append((message.topic, message.payload))
