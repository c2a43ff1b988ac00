"""Devices of a hub at the gate of a gateway: names, passwords, changes, and limits."""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bridge.device_pages import (
    ARGON2ID,
    DeviceAccount,
    DeviceEntry,
    DevicePage,
    DevicePageError,
    DeviceRange,
    DeviceSecretHash,
    OfferedUpdate,
    digest_of,
    read_page,
    read_signed,
)
from bridge.sasl import SaslClient, SaslServer
from bridge.sasl.scram import ScramClient, ScramServer
from edge.broker.configuration import AuthenticationMode
from edge.broker.listeners.tls import subject_name
from edge.broker.model.authorization import AccessRule, Ended, Operation
from edge.broker.security import hub_devices
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.credentials import CredentialsError, CredentialSnapshot, new_user, with_secret
from edge.broker.security.device_offers import offers_in
from edge.broker.security.hub_device_file import FILE, HubDeviceFile, PageOutOfStep
from edge.broker.security.hub_devices import FittedPage, HubDevices
from edge.broker.security.proof import LoginVerdict, VerifiedIdentity
from edge.broker.security.sasl_credentials import SaslCredentials
from tests.unit.mqtt.gated_sessions import GatedPeer, GatedSite

NOW = 1_000_000.0
RULE = AccessRule(("plant/%u/#",), frozenset({Operation.SEND}))
PASSWORD = "s3cret"
_MADE = with_secret(new_user("any"), PASSWORD, at_s=NOW)


def secret(name: str = "one", **more: Any) -> DeviceSecretHash:
    (made,) = _MADE.secrets
    keys = {"stored_key": made.keys.stored, "server_key": made.keys.server}
    return DeviceSecretHash(id=name, function=ARGON2ID, hashed=made.hashed, **keys, **more)


def device(name: str, *secrets: DeviceSecretHash, login: str = "", enabled: bool = True) -> DeviceEntry:
    account = DeviceAccount(auth_id=login or name, salt=_MADE.salt, iterations=_MADE.iterations, secrets=secrets)
    return DeviceEntry(device=name, enabled=enabled, logins=(account,))


class HubSide:
    """Pages of a hub for the gateway of a directory, and the gate there."""

    def __init__(self, data: Path, hono_tenant: str | None = None) -> None:
        self.data = data
        self.devices = HubDevices(data, [RULE], hono_tenant)
        self.utc_s = NOW
        self.pages = 0
        self.ended: list[str] = []
        self.gate = Authenticator(
            AuthenticationMode.STANDARD,
            worker=lambda work, done: done(work()),
            clock=lambda: 0.0,
            utc_s=lambda: self.utc_s,
        )
        self.gate.look_up_devices(self.devices)

    def page(self, *entries: DeviceEntry, tenant: str = "acme", **more: Any) -> DevicePage:
        self.pages += 1
        return DevicePage(
            tenant="acme",
            gateway="gw",
            base=digest_of(self.devices.cursor),
            cursor=f"cursor {self.pages}",
            devices_of=tenant,
            entries=entries,
            **more,
        )

    def send(self, *entries: DeviceEntry, tenant: str = "acme", **more: Any) -> None:
        page = self.devices.fit(self.page(*entries, tenant=tenant, **more))
        names = self.devices.take(page, self.devices.store(page))
        self.gate.update_devices(names.identities, names.users)

    def log_in(self, username: str, password: str = PASSWORD) -> str | None:
        """Return the identity of a client; None if it is refused."""
        found: list[VerifiedIdentity | None] = []
        self.gate.check(username, password.encode(), lambda _verdict, proven: found.append(proven))
        (proven,) = found
        return None if proven is None else proven.user

    def connect(self, username: str) -> None:
        proven = self.gate.identify(username)

        def revoke(why: Ended) -> None:
            self.ended.append(f"{username}: {why.name}")

        assert self.gate.grant(proven, username, revoke) is not None


@pytest.fixture
def hub(tmp_path: Path) -> HubSide:
    return HubSide(tmp_path)


class TestNames:
    """User names and identities."""

    def test_a_device_of_the_own_tenant_has_its_id(self, hub: HubSide) -> None:
        hub.send(device("pump", secret(), login="sensor1"))
        assert [hub.log_in(name) for name in ("sensor1", "sensor1@acme", "pump", "sensor1@else")] == [
            "pump",
            "pump",
            None,
            None,
        ]

    def test_one_of_another_tenant_has_id_and_tenant(self, hub: HubSide) -> None:
        hub.send(device("4711", secret(), login="sensor1"), tenant="DEFAULT_TENANT")
        assert hub.log_in("sensor1@DEFAULT_TENANT") == "4711@DEFAULT_TENANT"
        assert hub.log_in("sensor1") is None
        assert hub.devices.user("4711") is None

    def test_the_tenant_of_the_hono_api_has_id_and_tenant(self, tmp_path: Path) -> None:
        hub = HubSide(tmp_path, "acme")
        hub.send(device("4711", secret()))
        assert hub.log_in("4711") == hub.log_in("4711@acme") == "4711@acme"

    def test_scram_gives_the_identity_and_not_the_user_name(self, hub: HubSide) -> None:
        hub.send(device("pump", secret(), login="fan"), device("fan", secret(), login="pump"))
        asked = SaslCredentials(hub.gate)
        assert asked.scram("fan") is not None
        assert (asked.succeeded("fan"), asked.proven) == ("pump", VerifiedIdentity("pump", login="fan"))
        server, client = ScramServer(), ScramClient("fan", PASSWORD)
        server.first(client.first())
        client.check(server.finish(client.answer(server.challenge(hub.gate.scram("fan")))))

    def test_a_connection_over_amqp_has_the_identity(self, hub: HubSide) -> None:
        hub.send(device("pump", secret(), login="sensor1"))
        asked = SaslCredentials(hub.gate)
        asked.connected(lambda: None, "192.0.2.1")
        server, client = SaslServer(credentials=asked), SaslClient("sensor1", PASSWORD)
        while not server.done or not client.done:
            server.receive(client.take())
            client.receive(server.take())
        assert server.identity == "pump"

    def test_a_client_certificate_names_the_device(self, hub: HubSide) -> None:
        """TLS has verified it; its common name is the id of the device, and no user name."""
        hub.send(device("pump", secret(), login="sensor1"), device("gone", secret(), enabled=False))
        site, codes = GatedSite(), dict[str, int]()
        site.gate.look_up_devices(hub.devices)
        for name in ("pump", "sensor1", "gone", "fan"):
            identity = subject_name({"subject": ((("organizationName", "acme"),), (("commonName", name),))})
            codes[name] = GatedPeer(site, 5, identity=identity, client_id=name).sent()[0].reason
        assert codes == {"pump": 0, "sensor1": 0x87, "gone": 0x87, "fan": 0x87}

    def test_a_user_of_the_gateway_wins(self, hub: HubSide) -> None:
        hub.send(device("pump", secret(), login="sensor1"))
        hub.connect("sensor1")
        local = with_secret(new_user("pump", [RULE]), "local", at_s=NOW)
        hub.gate.update(CredentialSnapshot({"pump": local}))
        assert hub.ended == ["sensor1: CHANGED"]
        assert (hub.log_in("sensor1"), hub.log_in("pump", "local")) == (None, "pump")
        hub.gate.update(CredentialSnapshot())
        assert hub.log_in("sensor1") == "pump"


class TestPasswords:
    """Secrets and their validity."""

    def test_several_passwords_and_their_times(self, hub: HubSide) -> None:
        hub.send(device("pump", secret("late", not_before=NOW + 10), secret("early", not_after=NOW + 5)))
        assert hub.log_in("pump") == "pump"
        hub.utc_s = NOW + 7
        assert hub.log_in("pump") is None
        hub.utc_s = NOW + 11
        assert hub.log_in("pump") == "pump"

    @pytest.mark.parametrize("function", ["sha-256", "sha-512"])
    def test_hashes_of_hono(self, hub: HubSide, function: str) -> None:
        digest = hashlib.new(function.replace("-", ""), b"salt" + PASSWORD.encode()).digest()
        hashed = base64.b64encode(digest).decode()
        hub.send(device("pump", DeviceSecretHash(id="a", function=function, hashed=hashed, salt=b"salt")))
        assert [hub.log_in("pump", each) for each in (PASSWORD, "other")] == ["pump", None]
        assert hub.gate.scram("pump") == hub.gate.scram("pump")
        assert (list(hub.gate.scram("pump").keys), bool(hub.gate.scram("pump").salt)) == ([], True)

    def test_an_unknown_function_is_ignored(self, hub: HubSide) -> None:
        hub.send(device("pump", DeviceSecretHash(id="a", function="later", hashed="x")))
        assert hub.log_in("pump") is None


class TestChanges:
    """Connected devices."""

    def test_a_new_password_keeps_connections(self, hub: HubSide) -> None:
        hub.send(device("pump", secret()))
        hub.connect("pump")
        hub.send(device("pump", secret("two")))
        assert (hub.ended, hub.log_in("pump")) == ([], "pump")

    @pytest.mark.parametrize("more", [{"removed": ("pump",)}, {"range": DeviceRange("", None)}, {"enabled": False}])
    def test_one_that_is_gone_is_disconnected(self, hub: HubSide, more: dict[str, Any]) -> None:
        hub.send(device("pump", secret()))
        hub.connect("pump")
        hub.send(**more)
        assert (hub.ended, hub.log_in("pump")) == (["pump: CHANGED"], None)

    def test_one_that_is_disabled_is_disconnected(self, hub: HubSide) -> None:
        hub.send(device("pump", secret()))
        hub.connect("pump")
        hub.send(device("pump", secret(), enabled=False))
        assert hub.ended == ["pump: CHANGED"]
        assert hub.gate.grant(VerifiedIdentity("pump"), "c", lambda _: None) is None  # by its certificate

    def test_earlier_failures_are_forgotten(self, hub: HubSide) -> None:
        for _ in range(40):
            hub.gate.failed("10.0.0.1", "pump")
        assert hub.gate.too_many_failures("10.0.0.1", "pump")
        hub.send(device("pump", secret()))
        verdicts: list[LoginVerdict] = []
        hub.gate.succeeded("10.0.0.1", "pump")
        hub.gate.check("pump", PASSWORD.encode(), lambda verdict, _: verdicts.append(verdict), "10.0.0.1")
        assert verdicts == [LoginVerdict.ACCEPTED]


class TestFile:
    """The file of the devices."""

    def names(self, devices: HubDevices, users: Sequence[str]) -> list[str | None]:
        return [None if (found := devices.login(user)) is None else found.name for user in users]

    def test_a_user_name_that_moves_is_found_after_a_restart(self, hub: HubSide) -> None:
        hub.send(device("a", secret(), login="x"))
        hub.send(device("b", secret(), login="x"))  # the page about `a` is still to come
        again = HubDevices(hub.data, [RULE])
        assert self.names(again, ["x"]) == self.names(hub.devices, ["x"]) == ["b"]
        hub.send(device("a", secret(), login="y"))
        assert self.names(hub.devices, ["x", "y"]) == ["b", "a"]
        assert self.names(HubDevices(hub.data, [RULE]), ["x", "y"]) == ["b", "a"]

    def test_a_page_applies_once(self, hub: HubSide) -> None:
        fitted = FittedPage(hub.page(device("a", secret())), 0)
        hub.devices.take(fitted, hub.devices.store(fitted))
        with pytest.raises(PageOutOfStep) as refused:
            hub.devices.store(fitted)
        assert refused.value.cursor == fitted.page.cursor

    def test_a_file_that_is_ahead_of_the_memory_is_read_again(self, hub: HubSide) -> None:
        hub.send(device("a", secret()))
        hub.connect("a")
        hub.devices.store(FittedPage(hub.page(device("b", secret()), removed=("a",)), 0))  # and its end was not seen
        assert self.names(hub.devices, ["a", "b"]) == ["a", None]
        names = hub.devices.replace(hub.devices.read())
        hub.gate.update_devices(names.identities, names.users)
        assert (self.names(hub.devices, ["a", "b"]), hub.ended) == ([None, "b"], ["a: CHANGED"])

    def test_a_failed_transaction_changes_nothing(self, hub: HubSide, monkeypatch: pytest.MonkeyPatch) -> None:
        hub.send(device("a", secret()))

        def fail(*_: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(HubDeviceFile, "_put", fail)
        with pytest.raises(CredentialsError):
            hub.devices.store(FittedPage(hub.page(device("b", secret()), range=DeviceRange("", None)), 0))
        assert self.names(HubDevices(hub.data, []), ["a", "b"]) == ["a", None]

    def test_there_is_no_file_before_the_first_page(self, hub: HubSide) -> None:
        assert not (hub.data / FILE).exists()

    def test_a_newer_or_damaged_file_is_refused(self, hub: HubSide) -> None:
        hub.send(device("a", secret()))
        connection = sqlite3.connect(hub.data / FILE)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
        with pytest.raises(CredentialsError, match="upgrade"):
            HubDevices(hub.data, [])
        (hub.data / FILE).write_bytes(b"no database" * 1_000)
        with pytest.raises(CredentialsError, match="remove the file"):
            HubDevices(hub.data, [])


class TestLimits:
    """Bounds of what a gateway holds and reads."""

    def held(self, hub: HubSide) -> list[str]:
        return [name for name in "abcdef" if hub.devices.user(name) is not None]

    def test_a_full_gateway_leaves_out_new_devices_only(self, hub: HubSide, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hub_devices, "HUB_DEVICES_MAX", 2)
        hub.send(device("a"), device("b"))
        hub.connect("b")
        hub.send(device("b", enabled=False), device("c"))
        assert (self.held(hub), hub.ended, hub.devices.count) == (["a"], ["b: CHANGED"], 2)
        assert HubDevices(hub.data, []).shortage is not None
        assert not hub.devices.wants_all
        hub.send(device("d"), removed=("a",))
        assert self.held(hub) == ["d"]
        hub.send(removed=("b",))
        assert hub.devices.wants_all  # and gets all again over its next link
        hub.send(device("c"), device("d"), range=DeviceRange("", None))
        assert (self.held(hub), hub.devices.shortage) == (["c", "d"], None)

    def test_a_snapshot_of_other_devices_fits(self, hub: HubSide, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hub_devices, "HUB_DEVICES_MAX", 3)
        hub.send(device("a"), device("b"), device("c"))
        hub.send(device("d"), device("e"), device("f"), range=DeviceRange("", None))
        assert (self.held(hub), hub.devices.shortage) == (["d", "e", "f"], None)

    def test_bytes_are_limited(self, hub: HubSide, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hub_devices, "HUB_DEVICES_BYTES_MAX", 500)
        hub.send(device("a", secret()))
        hub.send(device("b", secret()))
        assert (self.held(hub), hub.devices.count) == (["a"], 1)

    def test_pages_that_cannot_be_read(self) -> None:
        good = {"tenant": "t", "gateway": "g", "base": "", "cursor": "c", "devices_of": "t"}
        for bad in (
            {"format": 2},
            {"cursor": ""},
            {"cursor": "x" * (48 * 1024 + 1)},
            {"range": {"after": "b", "until": None}, "entries": [{"device": "a"}]},
        ):
            with pytest.raises(DevicePageError):
                read_page(json.dumps({**good, **bad}))
        with pytest.raises(DevicePageError):
            read_page("[")
        for body in (b"{}", b"x" * (512 * 1024 + 1)):
            with pytest.raises(DevicePageError):
                read_signed(body)


class TestOffers:
    """Offers of campaigns, and the number that changes with them."""

    OFFER = OfferedUpdate(artefact="blinker", version="1.2.0", campaign="c1")

    @staticmethod
    def offering(name: str, *offers: OfferedUpdate, enabled: bool = True, **more: Any) -> DeviceEntry:
        return msgspec.structs.replace(device(name, secret(), enabled=enabled), offers=offers, **more)

    def test_number_changes_with_offers_only(self, hub: HubSide) -> None:
        done = msgspec.structs.replace(self.OFFER, done=True)
        steps: list[tuple[dict[str, Any], list[Any], bool]] = [
            ({}, [device("a", secret())], False),
            ({}, [self.offering("b", self.OFFER)], True),
            ({}, [msgspec.structs.replace(self.offering("b", self.OFFER), logins=())], False),
            ({}, [device("a", secret("two"))], False),
            ({}, [self.offering("a", self.OFFER), self.offering("b", done)], True),
            ({}, [self.offering("b", done, enabled=False)], True),
            ({}, [self.offering("b", done)], True),
            ({"removed": ("b",)}, [], True),
            ({"removed": ("c",)}, [], False),
            ({"enabled": False}, [], True),
            ({"enabled": True}, [], True),
            ({"range": DeviceRange("", None)}, [self.offering("a", self.OFFER)], False),
            ({"range": DeviceRange("", None)}, [], True),
        ]
        for number, (more, entries, changes) in enumerate(steps):
            before = hub.devices.offers_revision
            hub.send(*entries, **more)
            assert (hub.devices.offers_revision != before) is changes, number
        assert (list(hub.devices.offers()), hub.devices.offered_devices) == ([], 0)

    def test_devices_that_are_let_in_have_offers(self, hub: HubSide, tmp_path: Path) -> None:
        hub.send(self.offering("a", self.OFFER), self.offering("b", self.OFFER, enabled=False), device("c", secret()))
        hub.send(self.offering("a", self.OFFER), tenant="other")
        hub.send(self.offering("z", self.OFFER), tenant="closed", enabled=False)
        wanted = [("a", self.OFFER), ("a@other", self.OFFER)]
        assert sorted(hub.devices.offers()) == wanted
        assert hub.devices.offered_devices == 2
        again = HubDevices(tmp_path, [RULE])
        assert sorted(again.offers()) == wanted, "after a start"
        again.close()

    def test_devices_of_the_hono_tenant_only(self, tmp_path: Path) -> None:
        hub = HubSide(tmp_path, "FLOOR")
        hub.send(self.offering("a", self.OFFER))
        hub.send(self.offering("b", self.OFFER), tenant="FLOOR")
        assert list(hub.devices.offers()) == [("b", self.OFFER)]

    def test_offers_are_those_of_the_moment(self, hub: HubSide) -> None:
        """A thread reads them while pages come."""
        hub.send(self.offering("a", self.OFFER))
        taken = hub.devices.offers()
        hub.send(self.offering("b", self.OFFER))
        assert list(taken) == [("a", self.OFFER)]

    def test_file_that_was_ahead_changes_the_number(self, hub: HubSide) -> None:
        hub.send(self.offering("a", self.OFFER))
        before = hub.devices.offers_revision
        hub.devices.replace(hub.devices.read())
        assert hub.devices.offers_revision > before
        assert list(hub.devices.offers()) == [("a", self.OFFER)]

    @pytest.mark.parametrize("damaged", [b'{"offers":', b'{"offers":[{"artefact":1}]}', b'{"offers":"\xff"}', b"[]"])
    def test_damaged_entry_has_none(self, damaged: bytes) -> None:
        assert offers_in(damaged) == ()
