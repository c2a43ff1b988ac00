"""Tokens and certificates, on SQLite and on PostgreSQL: single use in every order of events."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bridge.enrolment import RefusalReason
from cloud.hub.groups import Presence
from cloud.hub.registry.enrolments import (
    CertificateRecord,
    EnrolmentRefused,
    Enrolments,
    ShownCertificate,
    TenantFull,
)
from cloud.hub.registry.location import sqlite_url
from tests.contract.registry.conftest import Place
from tests.contract.registry.enrolling import DAY, LIFE, claim, enrol, refusal_of, signing, token
from tests.support.medium import fast_folder
from tests.support.simulated_kill import SimulatedKill


def renew(to: Enrolments, shown: CertificateRecord, key: bytes, now: int, at_most: int = 4) -> CertificateRecord:
    return to.renew(ShownCertificate(shown.serial, shown.tenant, shown.gateway), key, now, at_most, signing(key, now))  # type: ignore[arg-type]


@pytest.fixture
def enrolments(place: Place) -> Iterator[Enrolments]:
    made = Enrolments(place.url)
    yield made
    made.close()


class TestTokens:
    def test_token_serves_one_gateway(self, enrolments: Enrolments) -> None:
        enrolments.add([token()])
        given = enrol(enrolments, claim(b"mine"))
        assert (given.tenant, given.gateway, given.key_id) == ("acme", "hall", b"mine")
        assert refusal_of(enrolments, claim(b"other")) is RefusalReason.SPENT
        assert refusal_of(enrolments, claim(b"mine", gateway="other")) is RefusalReason.SPENT
        assert [each.serial for each in enrolments.certificates()] == [given.serial]

    def test_lost_answer_is_repeated(self, enrolments: Enrolments) -> None:
        enrolments.add([token(ends=DAY)])
        given = enrol(enrolments, claim(b"mine"))
        assert enrol(enrolments, claim(b"mine"), now=DAY - 1) == given
        assert enrol(enrolments, claim(b"mine"), now=2 * DAY) == given, "the token has ended since it was used"
        assert refusal_of(enrolments, claim(b"mine"), now=1 + LIFE) is RefusalReason.SPENT, "the certificate has ended"

    def test_gateways_of_a_tenant_are_limited(self, enrolments: Enrolments) -> None:
        most = {"acme": 2, "other": 1}.__getitem__

        def enrol_one(name: str, gateway: str, tenant: str = "acme", only_for: str | None = None) -> CertificateRecord:
            enrolments.add([token(name, gateway=only_for)._replace(tenant=tenant)])
            who = claim(name.encode(), name=name, gateway=gateway)
            return enrolments.enrol(who, 1, signing(who.key_id, 1), most)  # type: ignore[arg-type]

        enrol_one("a", "gw1")
        given = enrol_one("b", "gw2")
        with pytest.raises(TenantFull) as caught:
            enrol_one("c", "gw3")
        assert (caught.value.reason, caught.value.tenant) == (RefusalReason.TENANT_FULL, "acme")
        assert enrolments.tokens()[-1].spent_at is None, "the token is still good"
        enrolments.revoke("acme", "gw1", 2)
        assert enrol_one("d", "gw1", only_for="gw1").gateway == "gw1", "one takes the place of another"
        assert enrol_one("e", "gw3", "other").tenant == "other"
        assert renew(enrolments, given, b"next", 2).gateway == "gw2"

    def test_hub_killed_before_the_commit_has_issued_nothing(self, enrolments: Enrolments, place: Place) -> None:
        enrolments.add([token()])

        def die(_tenant: str, _gateway: str) -> CertificateRecord:
            raise SimulatedKill

        with pytest.raises(SimulatedKill):
            enrolments.enrol(claim(b"mine"), 1, die)
        again = Enrolments(place.url)
        assert enrol(again, claim(b"other")).key_id == b"other", "nobody has it, so it is still good"
        again.close()

    def test_simultaneous_enrolments_use_the_token_once(self, enrolments: Enrolments, place: Place) -> None:
        """Several gateways use one token over separate connections: one gets a certificate."""
        enrolments.add([token()])
        outcomes: list[str] = []
        together = threading.Barrier(4)

        def come(key: bytes) -> None:
            mine = Enrolments(place.url)
            together.wait(30)
            try:
                outcomes.append(enrol(mine, claim(key, gateway=key.decode())).gateway)
            except EnrolmentRefused as error:
                outcomes.append(error.reason.value)
            mine.close()

        threads = [threading.Thread(target=come, args=(b"%d" % i,)) for i in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert sorted(outcomes)[1:] == [RefusalReason.SPENT.value] * 3
        assert [each.gateway for each in enrolments.certificates()] == sorted(outcomes)[:1]

    def test_invalid_claims_are_refused(self, enrolments: Enrolments) -> None:
        enrolments.add([token("a"), token("b", gateway="hall"), token("c")])
        assert refusal_of(enrolments, claim(b"k", name="x")) is RefusalReason.UNKNOWN
        assert refusal_of(enrolments, claim(b"k", name="a", secret=b"guessed")) is RefusalReason.UNKNOWN
        assert refusal_of(enrolments, claim(b"k", name="a"), now=DAY) is RefusalReason.EXPIRED
        assert refusal_of(enrolments, claim(b"k", name="b", gateway="other")) is RefusalReason.OTHER_GATEWAY
        before = enrolments.revoke_token("c", 5)
        assert before is not None
        assert before.revoked_at is None
        assert refusal_of(enrolments, claim(b"k", name="c")) is RefusalReason.REVOKED
        assert enrolments.revoke_token("x", 5) is None
        assert enrolments.certificates() == []

    def test_used_name_is_refused(self, enrolments: Enrolments, place: Place) -> None:
        enrolments.add([token("a"), token("b"), token("c", gateway="hall"), token("d")])
        first = enrol(enrolments, claim(b"first", name="a"))
        assert refusal_of(enrolments, claim(b"second", name="b")) is RefusalReason.NAME_TAKEN
        second = enrol(enrolments, claim(b"second", name="c"), now=7)
        assert {each.serial: each.revoked_at for each in enrolments.certificates()} == {
            first.serial: 7,
            second.serial: None,
        }, "one name, one key"
        assert refusal_of(enrolments, claim(b"first", name="a"), now=8) is RefusalReason.SPENT
        place.open().directory.presence({("acme", "seen"): Presence("-", True, 1, connects=1)})
        assert refusal_of(enrolments, claim(b"k", name="d", gateway="seen")) is RefusalReason.NAME_TAKEN


class TestCertificates:
    def test_certificate_is_renewed(self, enrolments: Enrolments) -> None:
        enrolments.add([token()])
        first = enrol(enrolments, claim(b"first"))
        second = renew(enrolments, first, b"second", LIFE * 2 // 3)
        assert renew(enrolments, first, b"second", LIFE * 2 // 3 + 5) == second, "the answer was lost"
        assert second.ends_at == LIFE * 2 // 3 + LIFE
        assert {each.revoked_at for each in enrolments.certificates()} == {None}, "the first is good until it ends"
        third = renew(enrolments, second, b"second", second.ends_at - 1)
        assert third.serial != second.serial, "a key may be kept; an old certificate is not given again"

    def test_invalid_renewals_are_refused(self, enrolments: Enrolments) -> None:
        enrolments.add([token()])
        first = enrol(enrolments, claim(b"first"))
        ended = first._replace(serial="beef")
        others = (first._replace(tenant="other"), first._replace(gateway="other"))  # that number of another authority
        for shown, now in ((first, 1 + LIFE), (ended, 5), *((each, 5) for each in others)):
            with pytest.raises(EnrolmentRefused) as caught:
                renew(enrolments, shown, b"second", now)
            assert caught.value.reason is RefusalReason.NO_CERTIFICATE
        for number in range(3):
            renew(enrolments, first, b"%d" % number, 5)
        with pytest.raises(EnrolmentRefused) as caught:
            renew(enrolments, first, b"one too many", 5)
        assert caught.value.reason is RefusalReason.TOO_MANY

    def test_revoked_certificate_is_listed(self, enrolments: Enrolments, place: Place) -> None:
        enrolments.add([token("a"), token("b")])
        first = enrol(enrolments, claim(b"first", name="a"))
        other = enrol(enrolments, claim(b"other", name="b", gateway="other"))
        renew(enrolments, first, b"second", 5)
        elsewhere = Enrolments(place.url)
        assert elsewhere.revoke("acme", "hall", DAY) == 2
        assert elsewhere.revoke("acme", "hall", DAY + 1) == 0
        assert elsewhere.revoke("another", "other", DAY) == 0
        elsewhere.close()
        assert {each.gateway for each in enrolments.revoked(DAY)} == {"hall"}
        assert len(enrolments.revoked(DAY)) == 2
        assert enrolments.revoked(10 * DAY) == []
        with pytest.raises(EnrolmentRefused):
            renew(enrolments, first, b"third", DAY + 5)
        assert renew(enrolments, other, b"third", DAY + 5).gateway == "other"


class SingleUse(RuleBasedStateMachine):
    """In any order of events, a token is worth one key."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=fast_folder())
        self.enrolments = Enrolments(sqlite_url(Path(self.folder.name, "registry.db")))
        self.now = 1
        self.given: dict[str, set[bytes]] = {}
        self.enrolments.add([token(name) for name in "abc"])

    @rule(name=st.sampled_from("abc"), key=st.sampled_from([b"1", b"2", b"3"]), gateway=st.sampled_from(["x", "y"]))
    def ask(self, name: str, key: bytes, gateway: str) -> None:
        try:
            made = enrol(self.enrolments, claim(key, name=name, gateway=gateway), self.now)
        except EnrolmentRefused:
            return
        assert (made.key_id, made.gateway) == (key, gateway)
        self.given.setdefault(name, set()).add(key)

    @rule(name=st.sampled_from("abc"))
    def take_back(self, name: str) -> None:
        self.enrolments.revoke_token(name, self.now)

    @rule(gateway=st.sampled_from(["x", "y"]))
    def shut_out(self, gateway: str) -> None:
        self.enrolments.revoke("acme", gateway, self.now)

    @rule(by=st.integers(1, DAY))
    def wait(self, by: int) -> None:
        self.now += by

    @invariant()
    def one_key_a_token(self) -> None:
        assert all(len(keys) == 1 for keys in self.given.values())

    @invariant()
    def one_good_certificate_a_name(self) -> None:
        good = [each.gateway for each in self.enrolments.certificates() if each.good(self.now)]
        assert len(good) == len(set(good))

    def teardown(self) -> None:
        self.enrolments.close()
        self.folder.cleanup()


TestSingleUse = SingleUse.TestCase
TestSingleUse.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)


class TestAttestations:
    """A gateway's report about itself is stored under its current certificate."""

    def test_last_attestation_counts(self, enrolments: Enrolments) -> None:
        enrolments.add([token()])
        made = enrol(enrolments, claim(b"k"))
        assert enrolments.attestation("acme", "hall") is None
        enrolments.attest(ShownCertificate(made.serial, "acme", "hall"), '{"a":"1"}', 5)
        enrolments.attest(ShownCertificate(made.serial, "acme", "hall"), '{"a":"2"}', 7)
        assert enrolments.attestation("acme", "hall") == (7, '{"a":"2"}')
        assert enrolments.attestation("other", "hall") is None

    def test_attestation_needs_a_valid_certificate(self, enrolments: Enrolments) -> None:
        enrolments.add([token()])
        made = enrol(enrolments, claim(b"k"))
        good = ShownCertificate(made.serial, "acme", "hall")
        others = (good._replace(serial="beef"), good._replace(tenant="other"), good._replace(gateway="other"))
        for shown, now in ((good, LIFE + 2), *((each, 1) for each in others)):
            with pytest.raises(EnrolmentRefused) as caught:
                enrolments.attest(shown, "{}", now)
            assert caught.value.reason is RefusalReason.NO_CERTIFICATE
        enrolments.revoke("acme", "hall", 3)
        with pytest.raises(EnrolmentRefused):
            enrolments.attest(good, "{}", 4)
        assert enrolments.attestation("acme", "hall") is None
