"""Further address spaces of a running broker: one that cannot be served concerns no other one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

import pytest

from bridge.resources.endpoint import ListenEndpoint
from bridge.transport.driver import ConnectionDriver
from edge.appliance.clock import ClockQuality
from edge.appliance.gateway_space import GatewaySpace
from edge.appliance.store.offline import offline
from edge.appliance.tenant_spaces import TenantSpaces
from edge.broker.configuration import AuthenticationMode, BrokerConfiguration, DeviceTls, Listener, Protocol
from edge.broker.server import Broker
from edge.broker.spaces.virtual_hosts import VirtualHosts
from edge.broker.store.lock import is_held
from edge.broker.store.sqlite import open_store
from tests.support.certificates import Authority

ACME, UMBRELLA = (
    BrokerConfiguration(space=name, hosts=(name,), quota_bytes=1 << 20, authentication=AuthenticationMode.STANDARD)
    for name in ("acme", "umbrella")
)
BOTH = (ACME, UMBRELLA)


class Rig:
    """A broker, and its further spaces."""

    def __init__(self, data: Path, **more: object) -> None:
        store = open_store(data, post=asyncio.get_running_loop().call_soon_threadsafe)
        self.configuration = BrokerConfiguration(authentication=AuthenticationMode.STANDARD, **more)  # type: ignore[arg-type]
        self.broker = Broker(self.configuration, store)
        self.spaces = TenantSpaces(data, self.broker, ClockQuality())
        self.folder = data / "spaces"
        self.pools = self.broker.admission.budget.spaces

    @property
    def served(self) -> list[str]:
        return sorted(self.broker.further)

    @property
    def problems(self) -> list[str]:
        return [found.name for found in self.spaces.problems()]


@asynccontextmanager
async def rig(data: Path, **more: object) -> AsyncIterator[Rig]:
    made = Rig(data, **more)
    try:
        yield made
    finally:
        await made.broker.stop()
        await made.spaces.stop()
        made.broker.store.close()


def spoil(folder: Path, name: str) -> None:
    """Make a row that the session registry cannot read, as on a damaged page."""
    with offline(folder / name) as opened:
        opened.store.state.put("session", "device", b"\xc1")
        opened.settle()


def mend(folder: Path, name: str) -> None:
    with offline(folder / name) as opened:
        opened.store.state.delete("session", "device")
        opened.settle()


def test_damaged_row_of_one_space_stops_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with rig(tmp_path) as site:
            await site.spaces.follow(BOTH)
            await site.spaces.follow(())
            await asyncio.to_thread(spoil, site.folder, "acme")
            await site.spaces.follow(BOTH)
            assert site.served == ["umbrella"]
            assert site.problems == ["space acme"]
            assert len(site.pools) == 2  # the pool of the failed space does not take a share
            assert not is_held(site.folder / "acme")
            await asyncio.to_thread(mend, site.folder, "acme")
            await site.spaces.follow(BOTH)
            assert site.served == ["acme", "umbrella"]
            assert not site.problems

    asyncio.run(scenario())


@pytest.mark.parametrize("step", ["start_users", "reconfigure", "stop_users"])
def test_failure_of_one_space_is_its_own_problem(tmp_path: Path, step: str) -> None:
    """Whichever step fails, the other space follows, and the store is not left open."""
    original = getattr(GatewaySpace, step)

    async def failing(space: GatewaySpace, *arguments: object) -> None:
        await original(space, *arguments)
        if space.configuration.space == "acme":
            raise KeyError("a damaged row")

    async def scenario() -> None:
        async with rig(tmp_path) as site:
            if step != "start_users":
                await site.spaces.follow(BOTH)
            wanted = {
                "start_users": BOTH,
                "reconfigure": tuple(_renamed(each) for each in BOTH),
                "stop_users": (),
            }[step]
            with mock.patch.object(GatewaySpace, step, failing):
                await site.spaces.follow(wanted)
            assert site.problems[0] == "space acme"
            hosts = [space.hosts for space in site.broker.further.values()]
            if step == "reconfigure":
                assert hosts == [("acme2",), ("umbrella2",)]
            else:
                assert hosts == ([("umbrella",)] if step == "start_users" else [])
                assert not is_held(site.folder / "acme")
            await site.spaces.follow(BOTH)
            assert site.served == ["acme", "umbrella"]
            assert not site.problems

    asyncio.run(scenario())


def _renamed(configuration: BrokerConfiguration) -> BrokerConfiguration:
    hosts = tuple(f"{host}2" for host in configuration.hosts)
    return BrokerConfiguration(
        space=configuration.space, hosts=hosts, quota_bytes=1 << 20, authentication=configuration.authentication
    )


@pytest.mark.parametrize("space", ["acme", "umbrella"])
def test_cancelled_change_leaves_no_store_open(tmp_path: Path, space: str) -> None:
    """The gateway restarts in this process while a change is applied: it would find its own lock."""

    async def scenario() -> None:
        async with rig(tmp_path) as site:
            change = asyncio.create_task(site.spaces.follow(BOTH))
            while not is_held(site.folder / space):
                await asyncio.sleep(0)
            change.cancel()
            with pytest.raises(asyncio.CancelledError):
                await change
            await site.spaces.stop_uplinks()
            await site.spaces.stop()
            assert [is_held(site.folder / each.space) for each in BOTH] == [False, False]

    asyncio.run(scenario())


def test_space_is_choosable_when_its_users_are_loaded(tmp_path: Path) -> None:
    before: list[list[str]] = []
    original = GatewaySpace.start_users

    async def observed(space: GatewaySpace) -> None:
        before.append(site_of[0].served)
        await original(space)

    site_of: list[Rig] = []

    async def scenario() -> None:
        async with rig(tmp_path) as site:
            site_of.append(site)
            with mock.patch.object(GatewaySpace, "start_users", observed):
                await site.spaces.follow((ACME,))
            assert before == [[]]
            assert site.served == ["acme"]

    asyncio.run(scenario())


def test_server_names_are_read_only_with_further_spaces(tmp_path: Path) -> None:
    """Python fails a handshake with a server name beyond ASCII while a callback is set."""
    (tmp_path / "pki").mkdir()
    issued = Authority(tmp_path / "pki").issue("gw")
    tls = DeviceTls(certificate=str(issued.certificate), key=str(issued.key))
    listener = Listener(Protocol.MQTT, ListenEndpoint("127.0.0.1", 0), tls=True)

    async def scenario() -> None:
        async with rig(tmp_path / "data", listeners=(listener,), tls=tls) as site:
            certificates = site.broker.listeners.certificates("mqtts")
            read = [certificates.context.sni_callback is not None]
            for wanted in ((ACME,), ()):
                await site.spaces.follow(wanted)
                read.append(certificates.context.sni_callback is not None)
            assert read == [False, True, False]

    asyncio.run(scenario())


def test_name_of_an_unserved_space_never_leads_into_the_own_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with rig(tmp_path) as site:
            own, secured = site.broker.space, mock.Mock()
            closed = mock.Mock()
            hosts = VirtualHosts(own, closed, lambda _driver, _space: None)
            plain, named = mock.Mock(spec=ConnectionDriver), mock.Mock(spec=ConnectionDriver)
            plain.transport = None
            named.transport.get_extra_info.return_value = secured
            hosts.follow((), ["Acme."])
            hosts.note_server_name(secured, "ACME", mock.Mock())
            assert hosts.shared
            assert hosts.choose(plain, "acme", "alice") == (closed, "alice")
            assert hosts.choose(plain, "", "alice@acme") == (closed, "alice")
            assert hosts.choose(plain, "elsewhere", "alice") == (own, "alice")
            assert hosts.choose(named, "", "alice") == (closed, "alice")
            hosts.follow((), [])  # the space goes between the handshake and CONNECT
            assert hosts.choose(named, "", "alice") == (closed, "alice")
            assert hosts.choose(plain, "acme", "alice") == (own, "alice")

    asyncio.run(scenario())
