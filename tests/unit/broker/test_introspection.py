"""Introspection of tokens (RFC 7662): answers that count for a time, ended tokens, floods, an absent issuer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from edge.broker.configuration import TokenIntrospection, TokenIssuer
from edge.broker.model.authorization import AccessRule, Ended, Grant, Operation
from edge.broker.security import introspection as introspection_module
from edge.broker.security import known_tokens as known_module
from edge.broker.security.introspection import Introspection
from edge.broker.security.issuer_requests import IssuerError, IssuerUnreachable, TokenUnreadable
from edge.broker.security.known_tokens import FILE
from edge.broker.security.limits import (
    INACTIVE_KEPT_S,
    INACTIVE_TOKENS_MAX,
    INTROSPECTION_BURST_S,
    INTROSPECTION_REFRESH_SHARE,
    INTROSPECTION_RETRY_S,
    INTROSPECTIONS_PER_ADDRESS_MAX,
    INTROSPECTIONS_PER_S_MAX,
    INTROSPECTIONS_WAITING_MAX,
    KNOWN_TOKEN_LIFE_S_MIN,
    KNOWN_TOKENS_WRITTEN_PER_S_MAX,
    TOKEN_LEEWAY_S,
)
from edge.broker.security.proof import LoginVerdict, TokenOrigin, VerifiedIdentity
from edge.broker.security.token_grants import TokenGrants
from edge.broker.security.token_questions import QuestionPace, TokenQuestions, WaitingToken
from edge.broker.security.tokens import digest_of

URL, AUDIENCE = "https://id.example", "waypost"
INTERVAL_S, GRACE_S, LIFE_S = 60.0, 1_000.0, 90_000.0
UTC_S = 1_700_000_000.0
RULE = AccessRule(("up/#",), frozenset({Operation.SEND}))
ACCEPTED, REFUSED, BUSY, ENDED = LoginVerdict.ACCEPTED, LoginVerdict.REFUSED, LoginVerdict.BUSY, LoginVerdict.ENDED


class AskedIssuer:
    """Issuer as its questions see it; they come on threads."""

    def __init__(self) -> None:
        self.active: dict[bytes, dict[str, Any]] = {}
        self.asked: list[bytes] = []
        """Tokens of clients that were asked about."""
        self.probes = 0
        self.away = False
        self.broken: set[bytes] = set()
        """Tokens for which the issuer fails."""
        self.refuses = False
        """The issuer fails for every token."""
        self.fault: type[IssuerError] = IssuerError
        self.answers = threading.Event()
        self.answers.set()

    def __call__(self, token: bytes) -> Mapping[str, Any]:
        mine = len(token) < 20  # made-up ones are longer
        if mine:
            self.asked.append(token)
            self.answers.wait(20)
        else:
            self.probes += 1
        if self.away:
            raise IssuerUnreachable("it is away")
        if token in self.broken or self.refuses:
            raise self.fault("no answer about it")
        claims = self.active.get(token)
        return {"active": False} if claims is None else {"active": True, **claims}


class IntrospectionRig:
    """Introspection over an issuer of the test, with clocks that the test moves, and connections."""

    def __init__(self, data: Path, issuer: AskedIssuer | None = None, *, grace_s: float = GRACE_S) -> None:
        self.data = data
        self.issuer = issuer or AskedIssuer()
        self.now = 0.0
        self.offset_s = 0.0
        self.grants = TokenGrants()
        self.ended: list[str] = []
        settings = TokenIntrospection(client_id="node", client_secret="s3cret", interval=INTERVAL_S, grace_s=grace_s)
        configuration = TokenIssuer(issuer=URL, audience=AUDIENCE, introspection=settings)
        self.introspection = Introspection(
            configuration,
            settings,
            data,
            utc_s=lambda: UTC_S + self.now + self.offset_s,
            clock=lambda: self.now,
            ask=self.issuer,
        )

    async def __aenter__(self) -> IntrospectionRig:
        self.introspection.start(self.grants)
        await self.until(lambda: self.issuer.probes > 0 or self.introspection.problem is not None)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.issuer.answers.set()
        await self.introspection.stop()

    @staticmethod
    async def until(state: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not state():
                await asyncio.sleep(0.001)

    def proven(self, life_s: float = LIFE_S) -> VerifiedIdentity:
        return VerifiedIdentity("ann", (RULE,), UTC_S + life_s, origin=TokenOrigin(subject="a1"))

    def ask(
        self, token: bytes, *, signed: bool = True, source: str = "", life_s: float = LIFE_S
    ) -> asyncio.Future[Any]:
        """Show a token; the result is the verdict with the identity."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.introspection.confirm(
            token,
            self.proven(life_s) if signed else None,
            lambda said, who: done.set_result((said, who)),
            source,
        )
        return done

    async def verdict(self, token: bytes, **more: Any) -> LoginVerdict:
        said, _ = await asyncio.wait_for(self.ask(token, **more), 20)
        assert isinstance(said, LoginVerdict)
        return said

    async def connect(self, token: bytes) -> None:
        """Open a connection; `ended` gets the token when it ends."""
        said, who = await asyncio.wait_for(self.ask(token), 20)
        assert said is ACCEPTED
        self.hold(token, who)

    def hold(self, token: bytes, who: VerifiedIdentity) -> None:
        """Hold the grant of a verified client."""
        grant = Grant(who.user, "c", who.rules)

        def revoke(why: Ended) -> None:
            assert why is Ended.TOKEN
            self.grants.release(grant)
            self.ended.append(token.decode())

        grant.revoke = revoke
        self.grants.hold(grant, who.origin)

    def activate(self, *tokens: bytes) -> None:
        for token in tokens:
            self.issuer.active[token] = {"aud": AUDIENCE, "sub": "ann", "exp": UTC_S + LIFE_S, "scope": "send:up/#"}

    async def file_has(self, *tokens: bytes) -> None:
        """Wait until exactly these tokens are in the file."""
        wanted = {digest_of(token) for token in tokens}

        def has() -> bool:
            try:
                return {each["digest"] for each in json.loads((self.data / FILE).read_bytes())["tokens"]} == wanted
            except FileNotFoundError:
                return False

        await self.until(has)

    async def go_away(self) -> None:
        self.issuer.away = True
        await self.verdict(b"t-never-seen")
        assert self.introspection.problem is not None


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(introspection_module, "TICK_S", 0.001)
    monkeypatch.setattr(introspection_module, "INTROSPECTION_TIMEOUT_S", 600.0)
    monkeypatch.setattr(introspection_module, "INTROSPECTION_PATIENCE_S", 600.0)


def run(play: Coroutine[Any, Any, None]) -> None:
    asyncio.run(play)


class TestAnswers:
    def test_active_token_is_asked_about_once_in_an_interval(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1")
                said, who = await rig.ask(b"t1")
                assert (said, who.user) == (ACCEPTED, "ann")
                assert who.origin == TokenOrigin(digest_of(b"t1"), "a1", text=b"t1")
                assert "t1" not in repr(who.origin)
                rig.now = INTERVAL_S - 1
                assert await rig.verdict(b"t1") is ACCEPTED
                assert rig.issuer.asked == [b"t1"]
                rig.now = INTERVAL_S
                assert await rig.verdict(b"t1") is ACCEPTED
                assert rig.issuer.asked == [b"t1"] * 2

        run(play())

    def test_ended_token_with_a_valid_signature_is_refused(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                assert await rig.verdict(b"t1") is ENDED
                rig.now = INACTIVE_KEPT_S - 1
                assert await rig.verdict(b"t1") is ENDED
                assert await rig.verdict(b"t1", signed=False) is REFUSED
                assert rig.issuer.asked == [b"t1"]
                rig.now = INACTIVE_KEPT_S
                assert await rig.verdict(b"t1") is ENDED
                assert rig.issuer.asked == [b"t1"] * 2

        run(play())

    def test_concurrent_logins_with_one_token_make_one_question(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1")
                rig.issuer.answers.clear()
                shown = [rig.ask(b"t1") for _ in range(50)]
                await rig.until(lambda: rig.issuer.asked == [b"t1"])
                shown += [rig.ask(b"t1") for _ in range(50)]
                rig.issuer.answers.set()
                assert {said for said, _ in await asyncio.gather(*shown)} == {ACCEPTED}
                assert rig.issuer.asked == [b"t1"]

        run(play())

    def test_opaque_token_gets_user_and_rights_of_the_answer(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1")
                rig.issuer.active[b"t1"]["sid"] = "s1"
                said, who = await rig.ask(b"t1", signed=False)
                origin = TokenOrigin(digest_of(b"t1"), "ann", "s1", text=b"t1")
                assert (said, who) == (ACCEPTED, VerifiedIdentity("ann", (RULE,), UTC_S + LIFE_S, origin=origin))

        run(play())

    @pytest.mark.parametrize(
        "claims",
        [{"aud": "other"}, {"aud": None}, {"iss": "https://other"}, {"exp": UTC_S}, {"exp": None}, {"sub": ""}],
        ids=str,
    )
    def test_opaque_token_for_another_purpose_is_refused(self, tmp_path: Path, claims: dict[str, Any]) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1")
                changed = rig.issuer.active[b"t1"] | claims
                rig.issuer.active[b"t1"] = {name: value for name, value in changed.items() if value is not None}
                assert await rig.verdict(b"t1", signed=False) is REFUSED

        run(play())

    def test_logins_that_wait_are_answered_at_the_end(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.issuer.answers.clear()
                shown = [rig.ask(b"t%d" % i) for i in range(20)]
                await rig.until(lambda: len(rig.issuer.asked) > 0)
                await rig.introspection.stop()
                assert {said for said, _ in await asyncio.gather(*shown)} == {BUSY}
                assert await rig.verdict(b"t-later") is BUSY

        run(play())


class TestConnections:
    def test_end_with_their_token_within_the_interval(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1", b"t2")
                await rig.connect(b"t1")
                await rig.connect(b"t2")
                del rig.issuer.active[b"t1"]
                rig.now = INTERVAL_S
                await rig.until(lambda: rig.issuer.asked.count(b"t2") == 2 and rig.ended == ["t1"])
                assert await rig.verdict(b"t1") is ENDED
                assert rig.issuer.asked.count(b"t1") == 2

        run(play())

    def test_that_opens_long_after_its_login_is_asked_about(self, tmp_path: Path) -> None:
        """An AMQP client authenticates, and opens its connection later; until then nothing holds the token."""

        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1", b"t2")
                said, who = await rig.ask(b"t1")
                assert said is ACCEPTED
                rig.now = 10 * INTERVAL_S
                assert await rig.verdict(b"t2") is ACCEPTED  # looks were taken meanwhile
                rig.hold(b"t1", who)
                del rig.issuer.active[b"t1"]
                await rig.until(lambda: rig.ended == ["t1"])

        run(play())

    @pytest.mark.parametrize(
        "changed", [{"sub": "bob"}, {"scope": "recv:x"}, {"exp": UTC_S + LIFE_S - TOKEN_LEEWAY_S - 1}], ids=str
    )
    def test_end_when_the_issuer_gives_an_opaque_token_less(self, tmp_path: Path, changed: dict[str, Any]) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1")
                said, who = await rig.ask(b"t1", signed=False)
                assert said is ACCEPTED
                rig.hold(b"t1", who)
                rig.issuer.active[b"t1"] |= changed
                rig.now = INTERVAL_S
                await rig.until(lambda: rig.ended == ["t1"])
                assert await rig.verdict(b"t1", signed=False) is ACCEPTED

        run(play())

    @pytest.mark.parametrize("same", [{"scope": "send:b send:a"}, {"exp": UTC_S + LIFE_S - 1}], ids=str)
    def test_stay_when_the_issuer_says_the_same_in_other_words(self, tmp_path: Path, same: dict[str, Any]) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1")
                rig.issuer.active[b"t1"] |= {"scope": "send:a send:b"}
                said, who = await rig.ask(b"t1", signed=False)
                assert said is ACCEPTED
                rig.hold(b"t1", who)
                rig.issuer.active[b"t1"] |= same
                asked = len(rig.issuer.asked)
                rig.now = INTERVAL_S
                await rig.until(lambda: len(rig.issuer.asked) > asked)
                assert await rig.verdict(b"t1", signed=False) is ACCEPTED
                assert rig.ended == []

        run(play())

    def test_login_that_fails_with_an_error_concerns_no_other(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(*(b"t%d" % i for i in range(9)))

                def fail(*_: object) -> None:
                    raise RuntimeError("of a connection")

                rig.issuer.answers.clear()
                for i in range(8):
                    rig.introspection.confirm(b"t%d" % i, rig.proven(), fail)
                shown = [rig.ask(b"t%d" % i) for i in range(9)]
                rig.issuer.answers.set()
                assert {said for said, _ in await asyncio.gather(*shown)} == {ACCEPTED}

        run(play())

    def test_are_asked_about_while_logins_wait(self) -> None:
        questions = TokenQuestions()
        for i in range(8):
            questions.add_login(f"login {i}", b"", WaitingToken(lambda *_: None, "", None))
        questions.add_refresh("refresh", b"")
        taken = [question.digest for _ in range(9) if (question := questions.take()) is not None]
        assert taken.index("refresh") == INTROSPECTION_REFRESH_SHARE - 1
        assert len(taken) == 9

    def test_token_that_is_not_known_any_more_ends_its_connection(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1")
                await rig.connect(b"t1")
                rig.introspection._known.forget(digest_of(b"t1"))
                await rig.until(lambda: rig.ended == ["t1"])

        run(play())


class TestIssuerAway:
    def test_known_tokens_count_for_the_grace_and_others_come_again(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1", b"t2")
                await rig.connect(b"t1")
                await rig.go_away()
                rig.now = INTERVAL_S + GRACE_S
                assert await rig.verdict(b"t1") is ACCEPTED
                assert await rig.verdict(b"t2") is BUSY
                assert await rig.verdict(b"t2", signed=False) is BUSY
                assert rig.ended == []
                rig.now += 1
                await rig.until(lambda: rig.ended == ["t1"])
                assert await rig.verdict(b"t1") is BUSY
                assert b"t2" not in rig.issuer.asked

        run(play())

    def test_token_counts_until_it_expires_at_most(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1")
                assert await rig.verdict(b"t1", life_s=500.0) is ACCEPTED
                await rig.go_away()
                rig.now = 499.0
                assert await rig.verdict(b"t1", life_s=500.0) is ACCEPTED
                rig.now = 500.0
                assert await rig.verdict(b"t1", life_s=500.0) is BUSY

        run(play())

    def test_without_grace_tokens_count_for_the_interval(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path, grace_s=0.0) as rig:
                rig.activate(b"t1")
                await rig.connect(b"t1")
                await rig.go_away()
                rig.now = INTERVAL_S
                assert await rig.verdict(b"t1") is ACCEPTED
                rig.now += 1
                await rig.until(lambda: rig.ended == ["t1"])

        run(play())

    def test_it_is_asked_again_once_it_is_back(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1", b"t2")
                await rig.connect(b"t1")
                await rig.go_away()
                probes = rig.issuer.probes
                rig.issuer.away = False
                del rig.issuer.active[b"t1"]
                rig.now = max(INTERVAL_S, INTROSPECTION_RETRY_S)
                await rig.until(lambda: rig.introspection.problem is None and rig.ended == ["t1"])
                assert rig.issuer.probes > probes
                assert await rig.verdict(b"t2") is ACCEPTED

        run(play())

    def test_known_client_does_not_wait_for_a_silent_issuer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1")
                assert await rig.verdict(b"t1") is ACCEPTED
                rig.now = INTERVAL_S
                rig.issuer.answers.clear()
                unknown = rig.ask(b"t2")
                monkeypatch.setattr(introspection_module, "INTROSPECTION_PATIENCE_S", 0.0)
                assert await rig.verdict(b"t1") is ACCEPTED
                assert not unknown.done()

        run(play())

    def test_answer_that_takes_too_long_counts_as_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.issuer.answers.clear()
                monkeypatch.setattr(introspection_module, "INTROSPECTION_TIMEOUT_S", 0.0)
                assert await rig.verdict(b"t1") is BUSY
                assert rig.introspection.problem is not None
                assert rig.issuer.probes == 1, "it was not reached: no second question"

        run(play())

    def test_issuer_that_refuses_every_question_ends_nothing(self, tmp_path: Path) -> None:
        """Such as a proxy that answers 400."""

        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1")
                await rig.connect(b"t1")
                rig.issuer.fault, rig.issuer.refuses = TokenUnreadable, True
                rig.now = INTERVAL_S
                await rig.until(lambda: rig.introspection.problem is not None)
                assert await rig.verdict(b"t1") is ACCEPTED
                assert await rig.verdict(b"t2") is BUSY
                assert rig.ended == []

        run(play())

    def test_token_that_only_this_issuer_cannot_read_is_refused(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1")
                await rig.connect(b"t1")
                rig.issuer.fault = TokenUnreadable
                rig.issuer.broken |= {b"t1", b"t2"}
                assert await rig.verdict(b"t2", signed=False) is REFUSED
                assert rig.introspection.problem is None
                rig.now = INTERVAL_S
                assert await rig.verdict(b"t1") is ACCEPTED, "it was active before"
                assert rig.ended == []
                rig.now = INTERVAL_S + GRACE_S + 1
                await rig.until(lambda: rig.ended == ["t1"])

        run(play())

    def test_failure_for_one_token_does_not_count_for_others(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1")
                rig.issuer.broken.add(b"t-bad")
                assert await rig.verdict(b"t-bad", signed=False) is BUSY
                assert rig.introspection.problem is None
                assert await rig.verdict(b"t1") is ACCEPTED

        run(play())


class TestStored:
    def test_tokens_count_offline_after_a_restart(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1", b"t2")
                assert await rig.verdict(b"t1") is ACCEPTED
                assert await rig.verdict(b"t2", signed=False) is ACCEPTED
            stored = (tmp_path / FILE).read_bytes()
            assert b'"t1"' not in stored
            assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
            away = AskedIssuer()
            away.away = True
            async with IntrospectionRig(tmp_path, away) as rig:
                assert await rig.verdict(b"t1") is ACCEPTED
                said, who = await rig.ask(b"t2", signed=False)
                assert (said, who.user, who.rules) == (ACCEPTED, "ann", (RULE,))
                assert await rig.verdict(b"t3") is BUSY
            async with IntrospectionRig(tmp_path, away) as rig:
                rig.offset_s = INTERVAL_S + GRACE_S + 1
                assert await rig.verdict(b"t1") is BUSY

        run(play())

    def test_ended_token_leaves_the_file_at_once(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1", b"t2")
                assert await rig.verdict(b"t1") is ACCEPTED
                await rig.file_has(b"t1")
                await rig.until(lambda: rig.introspection._save_at > 0)
                written = (tmp_path / FILE).stat().st_size
                assert rig.introspection._save_at == pytest.approx(written / KNOWN_TOKENS_WRITTEN_PER_S_MAX)
                assert await rig.verdict(b"t2") is ACCEPTED
                assert rig.introspection._known.changed
                rig.now = INTERVAL_S
                await rig.file_has(b"t1", b"t2")
                await rig.until(lambda: rig.introspection._save_at > rig.now)
                del rig.issuer.active[b"t1"]
                assert await rig.verdict(b"t1") is ENDED
                rig.now += INTERVAL_S
                await rig.file_has(b"t2")

        run(play())

    def test_token_with_a_short_life_is_not_stored(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1", b"t2")
                assert await rig.verdict(b"t1", life_s=KNOWN_TOKEN_LIFE_S_MIN - 1) is ACCEPTED
                assert await rig.verdict(b"t2", life_s=KNOWN_TOKEN_LIFE_S_MIN) is ACCEPTED
            await rig.file_has(b"t2")

        run(play())

    @pytest.mark.parametrize("content", [b"{", b'{"issuer": "https://other", "audience": "waypost"}', b"\xff"])
    def test_other_files_are_no_fault(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / FILE).write_bytes(content)

        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1")
                assert await rig.verdict(b"t1") is ACCEPTED

        run(play())

    def test_folder_that_cannot_be_written_is_tried_again(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def play() -> None:
            data = tmp_path / "missing"
            async with IntrospectionRig(data) as rig:
                rig.activate(b"t1")
                assert await rig.verdict(b"t1") is ACCEPTED
                await rig.until(lambda: "cannot store" in caplog.text)
                data.mkdir()
                rig.now += INTROSPECTION_RETRY_S
                await rig.file_has(b"t1")

        run(play())


class TestLimits:
    def test_waiting_tokens_of_one_address(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.issuer.answers.clear()
                shown = [rig.ask(b"t%d" % i, source="10.0.0.1") for i in range(INTROSPECTIONS_PER_ADDRESS_MAX)]
                assert await rig.verdict(b"t-more", source="10.0.0.1") is BUSY
                other = rig.ask(b"t-other", source="10.0.0.2")
                rig.issuer.answers.set()
                assert {said for said, _ in await asyncio.gather(*shown, other)} == {ENDED}
                assert await rig.verdict(b"t-more", source="10.0.0.1") is ENDED

        run(play())

    def test_waiting_tokens_of_all(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.issuer.answers.clear()
                shown = [rig.ask(b"t%d" % i, source=f"10.0.0.{i}") for i in range(INTROSPECTIONS_WAITING_MAX)]
                assert await rig.verdict(b"t-more") is BUSY
                await rig.introspection.stop()
                assert {said for said, _ in await asyncio.gather(*shown)} == {BUSY}

        run(play())

    def test_token_that_the_issuer_hangs_up_on_keeps_no_other_out(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1")
                rig.issuer.broken, rig.issuer.fault = {b"bad"}, IssuerUnreachable
                assert await rig.verdict(b"bad") is BUSY
                await rig.until(lambda: rig.introspection.problem is None)
                assert await rig.verdict(b"t1") is ACCEPTED

        run(play())

    def test_known_client_is_admitted_while_strangers_take_all_places(self, tmp_path: Path) -> None:
        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1")
                assert await rig.verdict(b"t1") is ACCEPTED
                rig.now = INTERVAL_S
                rig.issuer.answers.clear()
                shown = [rig.ask(b"u%d" % i, source=f"10.0.0.{i}") for i in range(INTROSPECTIONS_WAITING_MAX)]
                assert await rig.verdict(b"t1") is ACCEPTED
                del rig.issuer.active[b"t1"]  # asked about as well, although no connection is open
                rig.issuer.answers.set()
                await rig.until(lambda: rig.introspection._known.is_inactive(digest_of(b"t1"), rig.now))
                assert await rig.verdict(b"t1") is ENDED
                await rig.introspection.stop()
                await asyncio.gather(*shown)

        run(play())

    def test_addresses_of_one_network_share_places(self) -> None:
        questions = TokenQuestions()
        places = [
            questions.add_login(str(i), b"", WaitingToken(lambda *_: None, f"2001:db8::{i:x}", None))
            for i in range(INTROSPECTIONS_PER_ADDRESS_MAX + 1)
        ]
        assert places == [True] * INTROSPECTIONS_PER_ADDRESS_MAX + [False]

    def test_questions_in_a_second(self) -> None:
        pace, burst = QuestionPace(), round(INTROSPECTION_BURST_S * INTROSPECTIONS_PER_S_MAX)
        delays = [pace.delay_s(0.0) for _ in range(burst + 41)]
        assert delays[burst] == pytest.approx(0.0)
        assert delays[-1] == pytest.approx(40 / INTROSPECTIONS_PER_S_MAX)
        assert pace.delay_s(100.0) == 0.0

    def test_known_tokens(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(known_module, "KNOWN_TOKENS_MAX", 2)

        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1", b"t2", b"t3")
                assert await rig.verdict(b"t1") is ACCEPTED
                await rig.connect(b"t2")
                await rig.connect(b"t3")  # makes room: nothing uses t1
                assert await rig.verdict(b"t1") is BUSY
                assert rig.ended == []

        run(play())

    def test_bytes_of_known_tokens(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(introspection_module, "KNOWN_TOKENS_BYTES_MAX", 3)

        async def play() -> None:
            async with IntrospectionRig(tmp_path) as rig:
                rig.activate(b"t1", b"t2")
                await rig.connect(b"t1")
                assert await rig.verdict(b"t1") is ACCEPTED
                assert await rig.verdict(b"t2") is BUSY
                del rig.issuer.active[b"t1"]
                rig.now = INTERVAL_S
                await rig.until(lambda: rig.ended == ["t1"])
                assert rig.grants.text_bytes == 0
                assert await rig.verdict(b"t2") is ACCEPTED

        run(play())

    def test_inactive_tokens(self, tmp_path: Path) -> None:
        known = known_module.KnownTokens(URL, AUDIENCE, tmp_path, GRACE_S)
        for i in range(INACTIVE_TOKENS_MAX + 1):
            known.end(str(i), 10.0)
        assert not known.is_inactive("0", 0.0)
        assert known.is_inactive("1", 0.0)
        assert not known.is_inactive("1", 10.0)
