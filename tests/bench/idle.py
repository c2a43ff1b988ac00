"""Many connections that do nothing: what they cost in memory."""

from __future__ import annotations

import resource
import socket
import time
from contextlib import ExitStack

from tests.bench.brokers import Broker
from tests.bench.load import LoadFailed

_CONNACK = b"\x20\x02\x00\x00"
SPARE_FILES = 200
"""File descriptors this process needs beside the sockets."""
BATCH = 500
"""Connections begun before the first answer is read: less than a listener's backlog."""


def raise_file_limit(files: int) -> None:
    """Let this process, and those it starts from now on, have so many files open. Raises LoadFailed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= files:
        return
    if hard != resource.RLIM_INFINITY and hard < files:
        raise LoadFailed(f"{files} sockets are wanted, and `ulimit -Hn` allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


def connections_resident_mib(broker: Broker, number: int) -> float:
    """Resident memory of the broker with `number` idle MQTT connections, MiB. Raises LoadFailed."""
    raise_file_limit(number + SPARE_FILES)
    with ExitStack() as stack:
        for first in range(0, number, BATCH):
            opened = []
            for i in range(first, min(first + BATCH, number)):
                device = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port("mqtt")), timeout=30))
                client_id = b"idle-%05d" % i
                head = b"\x00\x04MQTT\x04\x02\x00\x00" + len(client_id).to_bytes(2, "big")
                device.sendall(bytes((0x10, len(head) + len(client_id))) + head + client_id)
                opened.append(device)
            if any(device.recv(4) != _CONNACK for device in opened):
                raise LoadFailed(f"{broker.name} refused one of {number} connections")
        time.sleep(1)  # what is freed after a burst is freed now: this is the figure of a quiet gateway
        return broker.resident_mib
