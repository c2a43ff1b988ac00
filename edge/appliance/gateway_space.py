"""One address space of the running gateway: its store, users, issuer and uplinks, in a folder of its own."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bridge.version import VERSION
from edge.appliance.accounts.users import apply_resources
from edge.appliance.clock import ClockQuality
from edge.appliance.crossing.documents import BridgeStatus
from edge.appliance.crossing.status import BridgeWatch
from edge.appliance.devices.following import HubDeviceFollower, follow_hub_devices
from edge.appliance.wear import Outlook, outlook
from edge.broker.configuration import BrokerConfiguration, TokenIssuer
from edge.broker.hono.addresses import with_addresses
from edge.broker.hono.hub_commands import HubCommandAddresses
from edge.broker.model.address_policy import DurabilityMode
from edge.broker.retention import summaries
from edge.broker.router.commands.addresses import PLAIN, CommandAddresses, with_commands
from edge.broker.router.landing.addresses import with_receipts
from edge.broker.router.uplinks import Uplinks
from edge.broker.security.credentials import CredentialsError, CredentialSnapshot
from edge.broker.security.followed_users import FollowedUsers
from edge.broker.security.statement_key import StatementKey
from edge.broker.served_space import ServedSpace
from edge.broker.store.limits import PAGE_BYTES_WAITING, StoreLimits
from edge.broker.store.records import Summary
from edge.broker.store.sqlite import SqliteStore, open_store
from edge.broker.store.wear import BlockDevice
from edge.health.storage_life import read_storage_life

if TYPE_CHECKING:
    from edge.broker.router.connector_uplink import ConnectorUplink
    from edge.broker.security.issuer import Issuer
    from edge.broker.security.sign_outs import SignOuts

log = logging.getLogger(__name__)


class GatewaySpace:
    """Address space in the folder `data`. Construct it inside a running loop; the caller ends it with `stop_users`,
    `follow_issuer` and `store.close`."""

    def __init__(
        self,
        configuration: BrokerConfiguration,
        data: Path,
        store: SqliteStore,
        serve: Callable[[SqliteStore], ServedSpace],
        apply: Callable[[BrokerConfiguration], None],
        *,
        clock: ClockQuality,
        made: Callable[[ConnectorUplink], None] = lambda _uplink: None,
    ) -> None:
        """Open the users. `configuration` has the addresses of `with_implied_addresses`. `store` is by
        `open_space_store`; an error here closes it.

        `serve` makes what serves the clients with this store; `apply` applies a changed configuration there. `made` is
        called with each connector to a hub before it dials. Raises CredentialsError.
        """
        self.configuration = configuration
        self.data = data
        self.store: Final = store
        self.issuer: Issuer | None = None
        """Issuer of accepted tokens; None: no token is accepted."""
        self._apply = apply
        self._key = StatementKey(data)
        with contextlib.ExitStack() as undo:
            undo.callback(store.close)
            self.served = serve(store)
            gate = self.served.gate
            self.hub_devices = follow_hub_devices(data, gate, configuration.device_api)
            undo.callback(self.hub_devices.devices.close)
            self.users = FollowedUsers(data, self._apply_users)
            undo.callback(self.users.close)
            gate.call_when_unknown(self.users.reload_if_changed)
            self.uplinks = Uplinks(
                self.served.router,
                store,
                self._key,
                commands=_command_addresses(configuration),
                knows=self._knows_device,
                made=partial(_announce, made, self.hub_devices),
                clock=clock,
            )
            self.bridge = self._make_bridge()
            undo.pop_all()

    def _apply_users(self, snapshot: CredentialSnapshot) -> None:
        """Apply changed users, and tell the hub the devices among them."""
        self.served.gate.update(snapshot)
        self.hub_devices.teller.look()

    def _make_bridge(self) -> BridgeWatch:
        """Return the figures of the uplinks."""
        medium = self.store.medium
        return BridgeWatch(
            self.uplinks, self.store, stored_bytes=lambda: medium.written[0].payload_bytes, room_bytes=self._room
        )

    async def start_users(self) -> None:
        """Load the users, and accept the tokens of the issuer. Raises CredentialsError."""
        await self.users.start(partial(apply_resources, configured=self.configuration.users))
        await self.follow_issuer(self.configuration.issuer)

    async def stop_users(self) -> None:
        """Stop to follow the users and the hub's devices."""
        await self.users.stop()
        await self.hub_devices.stop()

    async def reconfigure(self, configuration: BrokerConfiguration) -> None:
        """Apply the `Live` fields of a new configuration without a pause. The others must be unchanged."""
        await self.uplinks.load(configuration)
        before, self.configuration = self.configuration, configuration
        try:
            await self.users.change(partial(apply_resources, configured=configuration.users))
        except CredentialsError as error:
            log.warning("the users are unchanged: %s", error)
        if before.issuer != configuration.issuer:
            await self.follow_issuer(configuration.issuer)
        self._apply(configuration)
        await asyncio.gather(*(uplink.dialer.close() for uplink in self.uplinks.configure(configuration)))

    async def follow_issuer(self, wanted: TokenIssuer | None) -> None:
        """Accept tokens of this issuer only. Clients that logged in by the previous one are disconnected."""
        gate = self.served.gate
        before, self.issuer = self.issuer, None
        gate.accept_tokens(None)
        if before is not None:
            await before.stop()
            gate.revoke_all()
        if wanted is not None:
            from edge.broker.security.issuer import Issuer  # noqa: PLC0415 - cryptography takes 10 MiB

            await _load_sign_outs(gate.sign_outs, wanted, self.data)
            self.issuer = Issuer(wanted, self.data)
            gate.accept_tokens(self.issuer)
            self.issuer.start(gate.token_grants)

    # --- figures ------------------------------------------------------------------------------------------------

    def bridge_status(self) -> BridgeStatus:
        """Return the status of each connector and forwarder."""
        configuration = self.configuration
        return self.bridge.status(configuration.gateway, self._key.known, configuration.forwarders)

    def status_document(self, *, clock_good: bool) -> dict[str, Any]:
        """Return the status for the peers of the uplinks."""
        bridge = self.bridge_status()
        oldest = [each.backlog_oldest_at for each in bridge.connectors if each.backlog_oldest_at is not None]
        return {
            "epoch": self.store.lineage.epoch,
            "backlog_messages": self.uplinks.backlog,
            "devices_connected": self.served.connections,
            "messages_accepted": self.served.router.figures.acknowledged,
            "clock_quality": "good" if clock_good else "unknown",
            "state": "running",
            "reported_at": datetime.datetime.now(datetime.UTC).isoformat(),
            "version": VERSION,
            "backlog_bytes": sum(each.backlog_bytes for each in bridge.connectors),
            "backlog_oldest_at": int(min(oldest) * 1e9) if oldest else None,
            "room_hours": bridge.autonomy_hours,
            "manifest_waiting": sum(each.manifest_waiting for each in bridge.connectors),
        }

    def wear(self) -> Outlook:
        """Return the wear of the medium, as far as it is known."""
        device, (totals, rows) = self.store.medium.device, self.store.medium.written
        return outlook(
            totals,
            rows,
            endurance_bytes=self.configuration.endurance_bytes,
            life_used=_life_used(device),
            device=device.name if device is not None else None,
        )

    # --- inside -------------------------------------------------------------------------------------------------

    def _knows_device(self, device: str) -> bool:
        """Return True when a device of this name may connect for its commands."""
        api = self.served.devices
        if api is None:
            return self.served.gate.knows(device)
        return api.tenant.knows(device) and not self.hub_devices.devices.has_left(device)

    def _room(self) -> int | None:
        """Return how many bytes of bodies can still be stored; None for a store without a medium."""
        quotas, free = self.served.router.quotas, self.store.retention.free_bytes()
        if free is None:
            return None
        left = free - quotas.floor_bytes
        if quotas.space_bytes is not None:
            left = min(left, quotas.space_bytes - self.store.totals().bytes)
        return max(0, left)


def open_space_store(configuration: BrokerConfiguration, data: Path, loop: asyncio.AbstractEventLoop) -> SqliteStore:
    """Open the store of a space; takes some 50 ms. `loop`: that of the gateway. Raises StoreError."""
    return open_store(
        data,
        post=loop.call_soon_threadsafe,
        limits=_store_limits(configuration),
        summary=Summary(summaries.kind, summaries.summarise),
    )


def with_implied_addresses(configuration: BrokerConfiguration) -> BrokerConfiguration:
    """Return the configuration with the addresses that exist without being configured."""
    return with_receipts(with_commands(with_addresses(configuration), _command_addresses(configuration)))


def _command_addresses(configuration: BrokerConfiguration) -> CommandAddresses:
    api = configuration.device_api
    return PLAIN if api is None else HubCommandAddresses(api.tenant)


def _store_limits(configuration: BrokerConfiguration) -> StoreLimits:
    """Return the store's limits: small pages, for little wear, when an address is configured to batch its commits or
    to keep messages in memory."""
    waits = any(address.policy.durability.mode is not DurabilityMode.FSYNC for address in configuration.addresses)
    return StoreLimits(page_bytes=PAGE_BYTES_WAITING) if waits else StoreLimits()


def _announce(made: Callable[[ConnectorUplink], None], devices: HubDeviceFollower, uplink: ConnectorUplink) -> None:
    """Receive over this connector what the hub of the enrolment sends, if it leads there."""
    made(uplink)
    devices.bind(uplink)


def _life_used(device: BlockDevice | None) -> float | None:
    """Return the used share of a device's life as it reports it; None when unknown."""
    if device is None:
        return None
    percent = read_storage_life(device.folder).used_percent  # of an NVMe disk too
    used = device.life_used()
    return percent / 100 if used is None and percent is not None else used


async def _load_sign_outs(sign_outs: SignOuts, issuer: TokenIssuer, data: Path) -> None:
    """Keep the logouts of people who sign in at the console, and let those of before count."""
    sign_outs.clear()
    if issuer.client_id is not None:
        from edge.broker.security.sign_out_file import SignOutFile  # noqa: PLC0415 - only with sign-ins

        kept = SignOutFile(data, issuer.issuer)
        sign_outs.apply(await asyncio.to_thread(kept.load))
        sign_outs.keep_in(kept)
