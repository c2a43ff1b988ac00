"""Many idle connections: their memory, and the rate at which they connect."""

from __future__ import annotations

import resource
import socket
import ssl
import time
from contextlib import ExitStack

from tests.bench.brokers import Broker
from tests.bench.load import LoadFailed
from tests.bench.packages import say

_CONNACK = b"\x20\x02\x00\x00"
_SUBACK = b"\x90\x03\x00\x01\x01"
SPARE_FILES = 200
"""File descriptors of this process in addition to the sockets."""
WARM = 100
"""Connections that load the code that only a connection needs."""
BATCH = 500
"""Connections started before the first answer is read: less than a listener's backlog."""


def raise_file_limit(files: int) -> None:
    """Raise the limit of open files for this process and its later child processes. Raises LoadFailed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= files:
        return
    if hard != resource.RLIM_INFINITY and hard < files:
        raise LoadFailed(f"{files} sockets are wanted, and `ulimit -Hn` allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


def connect(
    stack: ExitStack,
    port: int,
    number: int,
    *,
    name: str = "idle",
    keep_alive_s: int = 0,
    tls: ssl.SSLContext | None = None,
) -> list[socket.socket]:
    """Open `number` MQTT 3.1.1 connections, which close with `stack`. Raises LoadFailed when one is refused."""
    devices: list[socket.socket] = []
    for first in range(0, number, BATCH):
        opened = []
        for i in range(first, min(first + BATCH, number)):
            device = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            if tls is not None:
                device = stack.enter_context(tls.wrap_socket(device, server_hostname="localhost"))
            client_id = b"%s-%05d" % (name.encode(), i)
            head = b"\x00\x04MQTT\x04\x02" + keep_alive_s.to_bytes(2, "big") + len(client_id).to_bytes(2, "big")
            device.sendall(bytes((0x10, len(head) + len(client_id))) + head + client_id)
            opened.append(device)
        if any(device.recv(4) != _CONNACK for device in opened):
            raise LoadFailed(f"one of {number} connections was refused")
        devices += opened
    return devices


def subscribe(devices: list[socket.socket]) -> None:
    """Subscribe each to its own topic, QoS 1. Raises LoadFailed when one is refused."""
    for number, device in enumerate(devices):
        topic_filter = b"command/%05d/#" % number
        body = b"\x00\x01" + len(topic_filter).to_bytes(2, "big") + topic_filter + b"\x01"
        device.sendall(bytes((0x82, len(body))) + body)
    if any(device.recv(5) != _SUBACK for device in devices):
        raise LoadFailed("a subscription was refused")


def connections_resident_mib(broker: Broker, number: int) -> float:
    """Return the broker's resident memory with `number` idle MQTT connections, in MiB. Raises LoadFailed."""
    raise_file_limit(number + SPARE_FILES)
    with ExitStack() as stack:
        before_mib = broker.resident_mib
        begin = time.monotonic()
        connect(stack, broker.port("mqtt"), number)
        took_s = time.monotonic() - begin
        time.sleep(1)  # memory of a burst is released now: this is the figure of an idle gateway
        resident_mib = broker.resident_mib
        each_kib = (resident_mib - before_mib) * 1024 / number
        rate = number / took_s
        say(f"  {broker.name}: {before_mib:.1f} MiB before, {each_kib:.2f} KiB a connection, {rate:,.0f} a second")
        return resident_mib


def tls_connection_kib(broker: Broker, number: int) -> float:
    """Return the broker's resident memory for each idle MQTT connection over TLS, in KiB. Raises LoadFailed."""
    raise_file_limit(number + WARM + SPARE_FILES)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with ExitStack() as stack:
        connect(stack, broker.port("mqtts"), WARM, name="warm", tls=context)
        before_mib = broker.resident_mib
        connect(stack, broker.port("mqtts"), number, tls=context)
        time.sleep(1)  # as above
        return (broker.resident_mib - before_mib) * 1024 / number
