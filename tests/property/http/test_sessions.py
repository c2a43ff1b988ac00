"""The table of sessions against a model: idle ends, limits, requests in progress and revocations, in any order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edge.broker.http.limits import SESSION_IDLE_S, SESSION_STAY_S, SESSIONS_OF_ONE_MAX
from edge.broker.http.sessions import BrowserSession, BrowserSessions
from edge.broker.model.authorization import Ended, Grant

ALL_MAX = 6
USERS = ("ann", "amy", "bob", "cay")
"""Users; the first letter is the group."""
INDEX = st.integers(0, 1_000)


@dataclass
class ModelRequest:
    """A request in progress."""

    ended: asyncio.Future[Ended]
    serving: object


@dataclass
class ModelSession:
    """One session as it should be."""

    token: str
    session: BrowserSession
    used_at_s: float
    idle_s: float
    why: Ended | None = None
    requests: list[ModelRequest] = field(default_factory=list)

    def used(self, now: float) -> float:
        return now if self.requests else self.used_at_s


class SessionMachine(RuleBasedStateMachine):
    """Random operations on a table with room for six sessions."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now = 0.0
        self.released: list[Grant] = []
        self.table = BrowserSessions(self.released.append, most=ALL_MAX, group_of=lambda user: user[0])
        self.every: list[ModelSession] = []

    def teardown(self) -> None:
        self.loop.close()

    @property
    def live(self) -> list[ModelSession]:
        return [each for each in self.every if each.why is None]

    def end_idle(self) -> None:
        for each in self.live:
            if each.used(self.now) + each.idle_s <= self.now:
                each.why = Ended.SIGNED_OUT

    def shed(self, known: list[ModelSession], most: int) -> None:
        if len(known) >= most:
            oldest = min(known, key=lambda each: each.used(self.now))
            oldest.why = Ended.SIGNED_OUT

    @rule(user=st.sampled_from(USERS), stays=st.booleans(), seconds=st.floats(0.001, 1))
    def sign_in(self, user: str, stays: bool, seconds: float) -> None:
        self.now += seconds  # so that no two were used at the same time
        self.end_idle()
        opened = self.table.open(lambda revoke: Grant(user, "", (), revoke), stays=stays, now=self.now)
        assert opened is not None
        self.shed([each for each in self.live if each.session.user == user], SESSIONS_OF_ONE_MAX)
        if len(self.live) >= ALL_MAX:
            names = [*(each.session.user for each in self.live), user]
            share = {name: (sum(each[0] == name[0] for each in names), names.count(name)) for name in names}
            first = max(share[each.session.user][0] for each in self.live)
            second = max(share[each.session.user][1] for each in self.live if share[each.session.user][0] == first)
            self.shed([each for each in self.live if share[each.session.user] == (first, second)], 1)
        idle_s = SESSION_STAY_S if stays else SESSION_IDLE_S
        self.every.append(ModelSession(opened.token, opened.session, self.now, idle_s))

    @rule()
    def unknown_user(self) -> None:
        self.end_idle()
        assert self.table.open(lambda _: None, stays=False, now=self.now) is None

    @precondition(lambda self: self.every)
    @rule(index=INDEX)
    def request(self, index: int) -> None:
        one = self.every[index % len(self.every)]
        if one.why is None and one.used(self.now) + one.idle_s <= self.now:
            one.why = Ended.SIGNED_OUT
        found = self.table.find(one.token, self.now)
        assert (found is one.session) if one.why is None else found is None
        if found is None:
            return
        one.used_at_s = self.now
        ended: asyncio.Future[Ended] = self.loop.create_future()
        serving = found.serving(ended, lambda: self.now)
        serving.__enter__()
        one.requests.append(ModelRequest(ended, serving))

    @precondition(lambda self: any(each.requests for each in self.every))
    @rule(index=INDEX)
    def answer(self, index: int) -> None:
        busy = [each for each in self.every if each.requests]
        one = busy[index % len(busy)]
        made = one.requests.pop()
        assert made.ended.done() is (one.why is not None)
        made.serving.__exit__(None, None, None)  # type: ignore[attr-defined]
        one.used_at_s = self.now

    @precondition(lambda self: self.every)
    @rule(index=INDEX)
    def sign_out(self, index: int) -> None:
        one = self.every[index % len(self.every)]
        self.table.end(one.session)
        one.why = one.why or Ended.SIGNED_OUT

    @rule(user=st.sampled_from(USERS), why=st.sampled_from([Ended.CHANGED, Ended.EXPIRED]))
    def revoke(self, user: str, why: Ended) -> None:
        for each in self.every:
            if each.session.user == user:
                each.session.grant.revoke(why)
                each.why = each.why or why

    @rule(seconds=st.sampled_from([1.0, SESSION_IDLE_S - 1, SESSION_IDLE_S, SESSION_STAY_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(token=st.text(max_size=50))
    def guess(self, token: str) -> None:
        assert self.table.find(token, self.now) is None

    @invariant()
    def they_agree(self) -> None:
        self.table.end_idle(self.now)
        self.end_idle()
        assert {each.key for each in self.table} == {each.session.key for each in self.live}
        assert len(self.table) <= ALL_MAX
        assert all(sum(each.user == user for each in self.table) <= SESSIONS_OF_ONE_MAX for user in USERS)
        over = [each.session.grant for each in self.every if each.why is not None]
        assert sorted(map(id, self.released)) == sorted(map(id, over)), "each grant is released once"
        for each in self.every:
            for made in each.requests:
                assert made.ended.done() is (each.why is not None)
                if made.ended.done():
                    assert made.ended.result() is each.why


TestSessions = SessionMachine.TestCase
TestSessions.settings = SessionMachine.TestCase.settings


def test_a_group_signs_out_only_itself() -> None:
    table = BrowserSessions(most=10, group_of=lambda user: user.partition("@")[2])

    def sign_in(user: str, now: float) -> BrowserSession:
        opened = table.open(lambda _: Grant(user, "", ()), stays=False, now=now)
        assert opened is not None
        return opened.session

    others = [sign_in(f"user{number}@small", number) for number in range(5)]
    flood = [sign_in(f"user{number}@big", 10 + number) for number in range(50)]
    assert all(each in table for each in others)
    assert [each for each in flood if each in table] == flood[-5:]
    newcomer = sign_in("first@third", 100)
    assert newcomer in table
    assert sum(each in table for each in others) >= 4
    more = [sign_in("first@third", 101 + number) for number in range(2)]
    assert [sum(each.user.endswith(name) for each in table) for name in ("@small", "@big", "@third")] in (
        [4, 3, 3],
        [3, 4, 3],
    )
    assert more[-1] in table


def test_tokens_are_random_and_not_kept() -> None:
    table = BrowserSessions()
    users = iter("abcdefghij")
    opened = [table.open(lambda _: Grant(next(users), "", ()), stays=False, now=0.0) for _ in range(10)]
    tokens = {each.token for each in opened if each is not None}
    assert len(tokens) == 10
    assert all(len(token) == 43 for token in tokens), "256 bits in Base64"
    held = repr(vars(table)) + "".join(repr(each.key) for each in table)
    assert not [token for token in tokens if token in held]


@pytest.mark.parametrize("stays", [False, True])
def test_an_idle_session_ends(stays: bool) -> None:
    table = BrowserSessions()
    opened = table.open(lambda _: Grant("ann", "", ()), stays=stays, now=0.0)
    assert opened is not None
    idle_s = SESSION_STAY_S if stays else SESSION_IDLE_S
    assert table.find(opened.token, idle_s - 1) is opened.session
    assert table.find(opened.token, 2 * idle_s - 2) is opened.session
    assert table.find(opened.token, 3 * idle_s - 2) is None
