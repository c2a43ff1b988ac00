"""Addresses that webhooks of tenants may reach."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import pytest

from cloud.hub.webhooks import reach
from cloud.hub.webhooks.limits import NAMES_TENANT_MAX
from cloud.hub.webhooks.reach import AddressRefused, AnyAddresses, PublicAddresses, ReachableNetwork, connect_first

LOOPBACK = ReachableNetwork.parse("127.0.0.0/8")


@pytest.fixture
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(NAMES_TENANT_MAX + 1) as made:
        yield made


@pytest.mark.parametrize(
    ("address", "covered"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::a00:1", False),
        ("64:ff9b::5db8:d822", True),
        ("2002:7f00:1::", False),
        ("fec0::1", False),
        ("::93.184.216.34", False),
        ("64:ff9b:1::5db8:d822", False),
    ],
)
def test_only_public_addresses_are_covered(threads: Executor, address: str, covered: bool) -> None:
    assert PublicAddresses(threads).cover(address) is covered


def test_networks_of_the_configuration_are_covered_too(threads: Executor) -> None:
    addresses = PublicAddresses(threads, [ReachableNetwork.parse(each) for each in ("10.1.0.0/16", "fd00::/64")])
    covered = ["10.1.2.3", "::ffff:10.1.2.3", "fd00::9", "93.184.216.34"]
    assert [each for each in (*covered, "10.2.0.1", "fd01::1") if addresses.cover(each)] == covered


@pytest.mark.parametrize("text", ["10.0.0.1/8", "lan", "", "10.0.0.0/33"])
def test_invalid_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        ReachableNetwork.parse(text)


def test_name_that_leads_inside_is_not_connected(threads: Executor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        with pytest.raises(AddressRefused):
            asyncio.run(PublicAddresses(threads).connect("acme", "localhost", port))
        with pytest.raises(BlockingIOError):
            server.accept()

        async def connect() -> None:
            (await PublicAddresses(threads, [LOOPBACK]).connect("acme", "127.0.0.1", port)).close()
            (await AnyAddresses(threads).connect("127.0.0.1", port)).close()

        asyncio.run(connect())
        for _ in range(2):
            server.accept()[0].close()


def test_closed_port_is_an_error_of_the_connection(threads: Executor) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # it does not listen
        with pytest.raises(ConnectionRefusedError):
            asyncio.run(PublicAddresses(threads, [LOOPBACK]).connect("acme", *bound.getsockname()))


def test_silent_name_servers_of_a_tenant_hold_up_no_other(threads: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, known = threading.Event(), socket.getaddrinfo

    def resolve(host: str, *rest: int) -> object:
        if host == "silent.example":
            assert answers.wait(30)
        return known("127.0.0.1", *rest)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    async def story(port: int) -> None:
        addresses = PublicAddresses(threads, [LOOPBACK])
        waiting = [
            asyncio.create_task(addresses.connect("evil", "silent.example", port)) for _ in range(NAMES_TENANT_MAX)
        ]
        await asyncio.sleep(0)
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)
        with pytest.raises(AddressRefused, match="name servers"):
            await addresses.connect("evil", "silent.example", port)
        (await addresses.connect("acme", "quick.example", port)).close()
        answers.set()
        while addresses._resolving:
            await asyncio.sleep(0.01)

    with socket.create_server(("127.0.0.1", 0)) as server:
        asyncio.run(story(server.getsockname()[1]))


def test_address_that_does_not_answer_is_followed_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "ADDRESS_S_MAX", 1.0)

    async def story(port: int) -> None:
        loop, known = asyncio.get_running_loop(), asyncio.get_running_loop().sock_connect

        async def connect(opened: socket.socket, address: tuple[str, int]) -> None:
            if address[0] == "192.0.2.1":
                await asyncio.Event().wait()
            await known(opened, address)

        monkeypatch.setattr(loop, "sock_connect", connect)
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (each, port)) for each in ("192.0.2.1", "127.0.0.1")]
        (await connect_first(found)).close()
        with pytest.raises(OSError, match="does not answer"):
            await connect_first(found[:1])

    with socket.create_server(("127.0.0.1", 0)) as server:
        asyncio.run(story(server.getsockname()[1]))
