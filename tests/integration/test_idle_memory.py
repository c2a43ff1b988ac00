"""What a connection that does nothing costs a gateway, so that it does not creep back.

`./waypost bench idle` has the figure that counts (8 000 connections); this looks at the growth per connection only.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.bench.idle import SPARE_FILES, connect, raise_file_limit, subscribe
from tests.support.processes import edge, resident_mib

WARM = 200
"""Connections before the first look: they load what only a connection loads."""
COUNT = 1_500


def growth_kib(folder: Path, *, keep_alive_s: int, subscribed: bool) -> float:
    """Resident memory a gateway takes for each of `COUNT` connections, KiB."""
    raise_file_limit(WARM + COUNT + SPARE_FILES)
    with edge(folder, "gateway") as gateway, ExitStack() as stack:
        port = gateway.port("mqtt")
        warm = connect(stack, port, WARM, name="warm", keep_alive_s=keep_alive_s)
        if subscribed:
            subscribe(warm)
        before = resident_mib(gateway.pid)
        devices = connect(stack, port, COUNT, keep_alive_s=keep_alive_s)
        if subscribed:
            subscribe(devices)
        return (resident_mib(gateway.pid) - before) * 1024 / COUNT


def test_a_connection(tmp_path: Path) -> None:
    assert growth_kib(tmp_path, keep_alive_s=0, subscribed=False) < 2.7


def test_a_device_with_a_keep_alive_that_waits_for_commands(tmp_path: Path) -> None:
    assert growth_kib(tmp_path, keep_alive_s=60, subscribed=True) < 4.2


def test_what_closed_connections_leave_is_used_again(tmp_path: Path) -> None:
    raise_file_limit(COUNT + SPARE_FILES)
    with edge(tmp_path, "gateway") as gateway:
        rounds = []
        for _ in range(4):
            with ExitStack() as stack:
                connect(stack, gateway.port("mqtt"), COUNT)
                rounds.append(resident_mib(gateway.pid))
        assert rounds[-1] - rounds[0] < 2.5, rounds
