"""Every field of every kind declares when its change takes effect, and a running gateway behaves accordingly.

After a change of a live field the gateway equals one that started with the change. A field that needs a restart keeps
its value, and log and `apply` name it. The test finds new fields by itself. Give a field a value in `OTHER` when the
test cannot guess a value that differs from the one in `whole`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final

import pytest
import yaml
from click.testing import CliRunner

from bridge.dialer import Dialer
from bridge.resources.declaration import fields_of
from bridge.resources.diff import HIDDEN, masked
from bridge.resources.effects import in_force, restarts
from bridge.resources.fields import Effect
from bridge.resources.resource import Metadata, Resource, ResourceKinds
from bridge.sasl.scram import derive
from cloud.hub.configuration import KINDS as HUB_KINDS
from edge.appliance.gateway import Gateway
from edge.appliance.gateway_space import GatewaySpace
from edge.appliance.resource_commands import apply
from edge.broker.hono.errors import DeviceError
from edge.broker.model.authorization import Operation
from edge.broker.retention.quotas import QuotaUsage
from edge.broker.router.uplinks import AnyConnector
from edge.broker.security.issuer import Issuer
from edge.broker.security.proof import VerifiedIdentity
from edge.configuration.following import AppliedConfiguration, ConfigurationFollower
from edge.configuration.kinds import KINDS
from edge.configuration.options import RunOptions, configuration_of, resources_of
from edge.configuration.repository import Repository
from tests.support.certificates import Authority
from tests.unit.configuration.every_field import (
    EVERY,
    Documents,
    _at,
    base_of,
    documents_of,
    edit_of,
    edited,
    external,
    of_leaves,
    places,
    resources_in,
    whole,
    with_tenant,
)


@pytest.mark.parametrize("kinds", [KINDS, HUB_KINDS])
def test_every_field_declares_when_a_change_takes_effect(kinds: ResourceKinds) -> None:
    silent = [place.text for place in places(kinds) if not isinstance(place.field.effect, Effect)]
    silent += [f"metadata {field.attribute}" for field in fields_of(Metadata) if field.effect is None]
    assert silent == []


@pytest.mark.parametrize("kinds", [KINDS, HUB_KINDS])
def test_only_single_kinds_require_restarts(kinds: ResourceKinds) -> None:
    """A resource that keeps its old value is found by its kind, which fails for one of many addresses. A hub reads its
    file only at the start."""
    single = {kind.name for kind in kinds if kind.single}
    found = [place.text for place in places(kinds) if place.field.effect is Effect.RESTART and place.kind not in single]
    inside = [place.text for place in places(kinds) if place.field.effect is Effect.RESTART and 0 in place.steps]
    assert found == []
    assert kinds is HUB_KINDS or inside == []


def test_fields_hidden_by_a_part_are_not_shown(pki: Path) -> None:
    """`describe` and `diff` hide the same fields as the `repr` of a part."""
    secrets = [place for place in EVERY if place.field.secret]
    assert "MessagingUser authentication.password" in [place.text for place in secrets]
    for document in documents_of(edited(whole(pki), {})):
        shown = masked(KINDS, document)
        for place in secrets:
            if place.kind == document["kind"] and _at(document["spec"], place.steps) is not None:
                assert _at(shown["spec"], place.steps) == HIDDEN
                shown = copy.deepcopy(shown)
                _at(shown["spec"], place.steps[:-1])[place.steps[-1]] = _at(document["spec"], place.steps)
        assert shown == document


def test_hub_reads_its_file_once() -> None:
    own = [place for place in places(HUB_KINDS) if place.steps[0] != "oidc" or len(place.steps) == 1]
    assert {place.field.effect for place in own} == {Effect.RESTART}  # a gateway has `oidc` too


# --- a gateway with everything ---------------------------------------------------------------------------------------


# --- a running gateway ------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def started(data: Path, resources: Sequence[Resource]) -> AsyncIterator[tuple[Gateway, ConfigurationFollower]]:
    """Start a gateway with these resources."""
    options = RunOptions(data=data)
    gateway = Gateway(configuration_of(options, resources), data)
    await gateway.start()
    try:
        yield gateway, ConfigurationFollower(options, AppliedConfiguration(resources, Repository(data).mark))
    finally:
        await gateway.stop()


NAMES: Final = ("q", "s", "t", "dead", "dead2", "other", "command/T/d1", "command/U/d1")
USERS: Final = ("u@T", "v@T", "u@U")


def facts(gateway: Gateway) -> dict[str, object]:
    """Return the effects of the configuration, as the working parts of the gateway report them."""
    broker, router, devices = gateway.broker, gateway.broker.router, gateway.broker.devices
    issuer = broker.gate.bearer
    return {
        "rules": {(rule.pattern, rule.type) for rule in router.addresses.table.rules},
        "policies": {name: router.addresses.policy(name) for name in NAMES},
        "subscriptions": {name: router.addresses.policy_of_subscription(name) for name in ("t::s", "other::s")},
        "room": [room for room in map(_room, router.quotas.usage()) if room[1:] != (None, 0, "reject", 4)],
        "space": router.quotas.space_bytes,
        "authentication": broker.gate.mode,
        "issuer": issuer.configuration if isinstance(issuer, Issuer) else issuer,
        "users": {name: _user(gateway, name) for name in USERS},
        "devices": None if devices is None else (devices.cors_origins, [_device(gateway, name) for name in USERS]),
        "revocations": broker.listeners.revocations.path if broker.listeners.revocations is not None else None,
        "status of certificates": broker.listeners.status_settings,
        "dollar": broker.mqtt_sessions.legacy_dollar_topics,
        "name": (gateway.status()["gateway"], broker.space.amqp._container_id),
        "uplinks": {uplink.connector.name: _forwarded(uplink) for uplink in gateway.uplinks},
        "endurance": gateway.space.wear().endurance_bytes,
        "tenants": {each.served.name: _tenant(each) for each in gateway.tenants},
    }


def _tenant(space: GatewaySpace) -> object:
    router = space.served.router
    uplinks = {uplink.connector.name: _forwarded(uplink) for uplink in space.uplinks}
    return space.served.hosts, router.quotas.space_bytes, router.addresses.type_of("any"), uplinks


def _room(room: QuotaUsage) -> tuple[object, ...]:
    return room.address, room.quota, room.reserve, room.when_full, room.priority


def _forwarded(uplink: AnyConnector) -> object:
    return uplink.connector, list(uplink.forwarders.values())


def _user(gateway: Gateway, name: str) -> object:
    grant = gateway.broker.gate.grant(VerifiedIdentity(name), "client", lambda _why: None)
    if grant is None:
        return None
    allowed = {(name, operation) for name in NAMES for operation in Operation if grant.may(operation, name)}
    gateway.broker.gate.release(grant)
    verifier = gateway.broker.gate.scram(name)
    return allowed, [
        word for word in ("one", "two") if _keys(word, verifier.salt, verifier.iterations) in verifier.keys
    ]


_keys = functools.cache(derive)


def _device(gateway: Gateway, user: str) -> object:
    """Return the principal of a user, and the devices it may act for."""
    assert gateway.broker.devices is not None
    tenant = gateway.broker.devices.tenant
    try:
        principal = tenant.principal(user)
    except DeviceError as why:
        return str(why)
    return principal, [_served(gateway, device) for device in ("d1", "d2", "d3")]


def _served(gateway: Gateway, device: str) -> bool:
    assert gateway.broker.devices is not None
    try:
        gateway.broker.devices.tenant.device(None, "T", device)
    except DeviceError:
        return False
    return True


@pytest.fixture(autouse=True)
def nothing_is_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connectors do not dial in these tests."""
    monkeypatch.setattr(Dialer, "start", lambda _dialer, _predecessor=None: None)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    authority = Authority(tmp_path_factory.mktemp("pki"))
    authority.issue("gw")
    return authority.folder


@pytest.mark.parametrize("make", [whole, external, with_tenant])
def test_live_fields_take_effect_at_once(tmp_path: Path, pki: Path, make: Callable[[Path], Documents]) -> None:
    """Each field alone changes the gateway and changes it back; all together equal a start with them."""
    base = make(pki)
    chosen = [place for place in EVERY if base_of(place) is make]
    live = [place for place in chosen if place.field.effect is Effect.LIVE]
    together = resources_in(of_leaves(live, base))

    async def walk() -> list[str]:
        faults: list[str] = []
        async with started(tmp_path / "gw", resources_in(base)) as (gateway, following):
            at_first = facts(gateway)
            for place in chosen:
                if place.field.effect is Effect.RESTART:
                    continue
                changed = resources_in(edited(base, edit_of(place, base)))
                await following.take_over(gateway, changed)
                if (facts(gateway) != at_first) is not (place.field.effect is Effect.LIVE):
                    faults.append(f"{place.text} is {place.field.effect}, and is not")
                await following.take_over(gateway, resources_in(base))
                if facts(gateway) != at_first:
                    faults.append(f"{place.text} is not undone: {_difference(facts(gateway), at_first)}")
            await following.take_over(gateway, together)
            seen = facts(gateway)
        async with started(tmp_path / "fresh", together) as (fresh, _):
            assert seen == facts(fresh), _difference(seen, facts(fresh))
        return faults

    faults = asyncio.run(walk())
    assert not faults, "\n".join(faults)


def test_restart_fields_are_unchanged_and_reported(pki: Path, tmp_path: Path) -> None:
    base, options = whole(pki), RunOptions(data=tmp_path)
    before = resources_in(base)
    for place in [place for place in EVERY if place.field.effect is Effect.RESTART]:
        edit = edit_of(place, base)
        after = resources_in(edited(base, edit))
        path = (
            next(iter(edit))[1]
            if place.text in ("Gateway listeners", "Gateway limits")
            else ".".join(map(str, place.steps))
        )
        said = restarts(KINDS, before, after)
        assert f"{place.kind} spec.{path} changed: takes effect after a restart" in said
        if len(edit) == 1:
            now = configuration_of(options, in_force(KINDS, before, after))
            assert now == configuration_of(options, before), f"{place.text} counts before the restart"
        assert configuration_of(options, after) != configuration_of(options, before), f"{place.text} never counts"


def test_apply_and_log_name_fields_that_require_a_restart(
    tmp_path: Path, pki: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base, file, data = whole(pki), tmp_path / "resources.yaml", tmp_path / "gw"
    restarting = [place for place in EVERY if place.field.effect is Effect.RESTART]
    changed = of_leaves(restarting, base)

    def applied(documents: Documents) -> list[str]:
        file.write_text(yaml.safe_dump_all(documents_of(documents)))
        done = CliRunner().invoke(apply, ["--data", str(data), "-f", str(file), "--json"])
        assert done.exit_code == 0, done.output
        notes: list[str] = json.loads(done.output)["notes"]
        return notes

    async def follow() -> None:
        async with started(data, resources_of(RunOptions(data=data))) as (gateway, following):
            configuration = gateway.configuration
            said = [note for note in applied(changed) if "restart" in note]
            await following.follow(gateway)
            assert said == restarts(KINDS, resources_in(base), resources_in(changed))
            assert len(said) > 30
            assert [sentence for sentence in said if sentence not in caplog.text] == []
            assert gateway.configuration == configuration

    assert not any("restart" in note for note in applied(base))
    asyncio.run(follow())


def _difference(seen: dict[str, object], expected: dict[str, object]) -> str:
    return "; ".join(f"{name} is {seen[name]}, not {expected[name]}" for name in seen if seen[name] != expected[name])
