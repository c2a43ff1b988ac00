"""The revocation list of the hub at a gateway: the time of a fetch, and valid lists."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.proxy import PeerRoute
from bridge.resources.endpoint import ListenEndpoint
from cloud.hub.enrolment.authority import OwnAuthority, RevokedCertificate, new_key
from edge.appliance.identity import revocations
from edge.appliance.identity.exchange import WrongHub
from edge.appliance.identity.hub_request import HubRequestFailure
from edge.appliance.identity.location import REVOKED, identity_file
from edge.appliance.identity.revocation_list import ListUnusable, fetch
from edge.appliance.identity.revocations import CHECK_INTERVAL_S, FETCH_INTERVAL_S, RETRY, HubRevocations
from tests.unit.enrolment.hub import Hub

HUB = (PeerRoute(ListenEndpoint("hub", 5671)),)


class Rig:
    """A gateway with an identity, and the results of its requests."""

    def __init__(self, data: Path) -> None:
        self.list = identity_file(data).with_name(REVOKED)
        self.list.parent.mkdir(parents=True)
        self.now = 1_000_000.0
        self.answers: list[HubRequestFailure | None] = []
        self.asked = 0
        self.kept = HubRevocations(data, lambda: HUB, now=lambda: self.now, draw=lambda: 0.0)

    def fetch(self, _data: Path, _endpoint: ListenEndpoint) -> HubRequestFailure | None:
        self.asked += 1
        failure = self.answers.pop(0) if self.answers else None
        if failure is None:
            self.list.touch()
            os.utime(self.list, (self.now, self.now))
        return failure

    def check(self) -> float:
        return asyncio.run(self.kept.check())


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig(tmp_path)
    monkeypatch.setattr(revocations, "_fetch", made.fetch)
    yield made
    assert not made.answers


def test_list_is_fetched_when_missing_or_old(rig: Rig) -> None:
    assert [rig.check() for _ in range(3)] == [CHECK_INTERVAL_S] * 3
    assert rig.asked == 1
    rig.now += FETCH_INTERVAL_S - 1
    rig.check()
    assert rig.asked == 1
    rig.now += 1
    rig.check()
    assert rig.asked == 2


def test_clock_behind_the_file_fetches_once(rig: Rig) -> None:
    rig.list.touch()
    os.utime(rig.list, (rig.now + 1_000, rig.now + 1_000))
    rig.check()
    os.utime(rig.list, (rig.now + 1_000, rig.now + 1_000))
    rig.check()
    assert rig.asked == 1


def test_unreachable_hub_is_no_problem_and_one_that_refuses_is(rig: Rig) -> None:
    rig.answers = [HubRequestFailure("nobody answers", away=True), HubRequestFailure("no list", away=False), None]
    first_s = rig.check()
    assert (first_s <= RETRY.first_s, rig.kept.trouble) == (True, None)
    second_s = rig.check()
    assert (second_s <= RETRY.limit_s, rig.kept.trouble) == (True, "no list")
    assert (rig.check(), rig.kept.trouble) == (CHECK_INTERVAL_S, None)


class Lists(Hub):
    """A hub that sends this list."""

    def __init__(self, folder: Path, sent: bytes) -> None:
        super().__init__(folder)
        self.sent = sent
        self.shown_to: list[ssl.SSLContext] = []
        self.refused = ""

    def fetch(self, path: str, context: ssl.SSLContext, bytes_max: int = 0) -> bytes:
        return self.sent

    def handshake(self, context: ssl.SSLContext) -> None:
        self.shown_to.append(context)
        if self.refused:
            raise WrongHub(self.refused)


class TestValidLists:
    @pytest.fixture
    def data(self, tmp_path: Path) -> Path:
        file = identity_file(tmp_path / "gw")
        file.parent.mkdir(parents=True)
        own = OwnAuthority.make("hub", 1_800_000_000.0)
        issued = own.gateway_certificate(new_key().public_key(), "acme", "hall", 1_800_000_000.0, 1e6)
        file.write_text(issued.pem + own.pem)
        file.with_name(REVOKED).write_text("the one before")
        self.sent = own.revocations([RevokedCertificate("17", 0.0)], 1, 1_800_000_000.0)
        return tmp_path / "gw"

    def kept(self, data: Path) -> str:
        assert [each.name for each in sorted(data.glob("identity/*"))] == ["identity.pem", REVOKED]
        return identity_file(data).with_name(REVOKED).read_text()

    def test_list_is_used_in_a_handshake(self, data: Path, tmp_path: Path) -> None:
        hub = Lists(tmp_path, self.sent)
        fetch(data, hub)
        assert self.kept(data).startswith("-----BEGIN X509 CRL-----\n")
        [context] = hub.shown_to
        assert context.verify_flags & ssl.VERIFY_CRL_CHECK_LEAF
        assert context.cert_store_stats()["crl"] == 1

    def test_list_that_revokes_the_hub_is_used(self, data: Path, tmp_path: Path) -> None:
        hub = Lists(tmp_path, self.sent)
        hub.refused = "hub:5671 does not show the certificate of this hub: certificate revoked"
        fetch(data, hub)
        assert self.kept(data) != "the one before"

    @pytest.mark.parametrize("sent", [b"", b"hello", b"<html>"])
    def test_invalid_answers_are_refused(self, data: Path, tmp_path: Path, sent: bytes) -> None:
        with pytest.raises(ListUnusable):
            fetch(data, Lists(tmp_path, sent))
        assert self.kept(data) == "the one before"

    def test_list_of_another_authority_is_refused(self, data: Path, tmp_path: Path) -> None:
        hub = Lists(tmp_path, self.sent)
        hub.refused = "hub:5671 does not show the certificate of this hub: CRL signature failure"
        with pytest.raises(ListUnusable, match="CRL signature failure"):
            fetch(data, hub)
        assert self.kept(data) == "the one before"
