"""Logouts of the issuer (Back-Channel Logout 1.0): tokens of them, what they end, and what is kept of them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from edge.broker.configuration import AuthenticationMode, TokenIssuer
from edge.broker.model.authorization import Ended
from edge.broker.security import sign_out_file as sign_out_file_module
from edge.broker.security import sign_outs as sign_outs_module
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.code_flow import CodeFlow
from edge.broker.security.issuer import Issuer
from edge.broker.security.limits import LOGOUT_TOKEN_AGE_S, SIGN_OUTS_KEPT_S, TOKEN_LEEWAY_S
from edge.broker.security.logout_tokens import EVENT, verify_logout
from edge.broker.security.proof import TokenOrigin, VerifiedIdentity, renewed_origin
from edge.broker.security.sign_in import IssuedTokens, SignInFailed, SignInFault
from edge.broker.security.sign_out_file import FILE, SignOutFile
from edge.broker.security.sign_outs import EndedSignIn, SignOutNotKept, SignOuts
from edge.broker.security.token_grants import TokenGrants
from edge.broker.security.tokens import BearerTokenError, read_keys, verify, verify_person
from tests.support.issuer import AUDIENCE, SigningKey, TestIssuer

NOW = 1_700_000_000.0
URL, CLIENT = "https://id.example/realms/plant", "console"
ISSUER = TokenIssuer(issuer=URL, audience=AUDIENCE, client_id=CLIENT)
KEY = SigningKey("k1")
KEYS = read_keys({"keys": [KEY.published]})
ANN = EndedSignIn("a1", "", NOW)
SESSION = EndedSignIn("a1", "s1", NOW)


def claims(**more: Any) -> dict[str, Any]:
    base = {"iss": URL, "aud": CLIENT, "iat": NOW, "exp": NOW + 60, "jti": "j1", "sub": "a1", "sid": "s1"}
    return {name: value for name, value in {**base, "events": {EVENT: {}}, **more}.items() if value is not None}


def checked(token: str) -> EndedSignIn:
    return verify_logout(token.encode(), KEYS, ISSUER, NOW)


class TestLogoutTokens:
    @pytest.mark.parametrize(
        ("more", "expected"),
        [
            ({}, SESSION),
            ({"sid": None}, ANN),
            ({"sub": None}, EndedSignIn("", "s1", NOW)),
            ({"exp": None}, SESSION),
            ({"aud": ["other", CLIENT]}, SESSION),
            ({"iat": NOW - LOGOUT_TOKEN_AGE_S}, SESSION._replace(at_s=NOW - LOGOUT_TOKEN_AGE_S)),
        ],
        ids=str,
    )
    def test_name_a_session_or_a_person(self, more: dict[str, Any], expected: EndedSignIn) -> None:
        assert checked(KEY.token(claims(**more))) == expected
        assert checked(KEY.token(claims(**more), typ="logout+jwt")) == expected

    @pytest.mark.parametrize(
        "more",
        [
            {"iss": "https://other"},
            {"aud": AUDIENCE},
            {"aud": None},
            {"iat": None},
            {"iat": "now"},
            {"iat": NOW + TOKEN_LEEWAY_S + 1},
            {"iat": NOW - LOGOUT_TOKEN_AGE_S - 1},
            {"exp": NOW},
            {"jti": None},
            {"jti": 7},
            {"sub": None, "sid": None},
            {"sub": 7, "sid": ["s1"]},
            {"nonce": "n"},
            {"events": None},
            {"events": [EVENT]},
            {"events": {"other": {}}},
            {"events": {EVENT: "x"}},
        ],
        ids=str,
    )
    def test_with_other_claims_are_refused(self, more: dict[str, Any]) -> None:
        with pytest.raises(BearerTokenError):
            checked(KEY.token(claims(**more)))

    def test_of_a_stranger_are_refused(self) -> None:
        for token in (SigningKey("k1").token(claims()), jwt.encode(claims(), None, "none"), "", "x"):
            with pytest.raises(BearerTokenError):
                checked(token)

    def test_wait_for_a_new_key_of_the_issuer(self, tmp_path: Path) -> None:
        async def play(server: TestIssuer) -> None:
            issuer = Issuer(TokenIssuer(issuer=server.url, audience=AUDIENCE, client_id=CLIENT), tmp_path)
            issuer.start()
            flow = issuer.code_flow
            assert isinstance(flow, CodeFlow)
            shown = claims(iss=server.url, iat=time.time(), exp=None)
            assert (await flow.ended_sign_in(server.keys[0].token(shown).encode())).session == "s1"
            with pytest.raises(SignInFailed) as failed:
                await flow.ended_sign_in(server.token("ann").encode())
            assert failed.value.fault is SignInFault.TOKEN
            await issuer.stop()

        with TestIssuer() as server:
            asyncio.run(play(server))


def test_logout_token_opens_nothing() -> None:
    own = TokenIssuer(issuer=URL, audience=CLIENT, client_id=CLIENT)
    with pytest.raises(BearerTokenError, match="logout"):
        verify(KEY.token(claims()).encode(), KEYS, own, NOW)


def test_session_of_a_person_is_that_of_the_id_token() -> None:
    person = {"iss": URL, "sub": "a1", "iat": NOW, "exp": NOW + 60}
    tokens = IssuedTokens(
        KEY.token({**person, "aud": CLIENT, "nonce": "n", "sid": "s1"}), KEY.token({**person, "aud": AUDIENCE})
    )
    assert verify_person(tokens, "n", KEYS, ISSUER, NOW).origin == TokenOrigin("", "a1", "s1", NOW)


class SignOutRig:
    """A node with clients that have tokens."""

    def __init__(self) -> None:
        self.gate = Authenticator(AuthenticationMode.EXTERNAL, worker=lambda *_: None, clock=lambda: 0.0)
        self.ended: list[str] = []

    def connect(self, name: str, origin: TokenOrigin | None) -> bool:
        proven = VerifiedIdentity("ann", (), time.time() + 300, origin=origin)

        def revoke(why: Ended) -> None:
            assert why is Ended.TOKEN
            assert grant is not None
            self.gate.release(grant)
            self.ended.append(name)

        grant = self.gate.grant(proven, name, revoke)
        return grant is not None


def origin(subject: str = "a1", session: str = "s1", issued_at_s: float = NOW - 10) -> TokenOrigin:
    return TokenOrigin("", subject, session, issued_at_s)


class TestEnds:
    def test_session_with_its_connections_and_tokens(self) -> None:
        rig = SignOutRig()
        assert rig.connect("mine", origin())
        assert rig.connect("other session", origin(session="s2"))
        assert rig.connect("other person", origin("b1", "s3"))
        assert rig.connect("password", None)
        assert asyncio.run(rig.gate.sign_outs.add(SESSION)) == 1
        assert rig.ended == ["mine"]
        assert not rig.connect("again", origin(issued_at_s=NOW + 100))
        assert rig.connect("other session again", origin(session="s2"))

    def test_person_up_to_the_logout(self) -> None:
        rig = SignOutRig()
        for session in ("s1", "s2", ""):
            assert rig.connect(session, origin(session=session))
        assert rig.connect("later", origin(session="s3", issued_at_s=NOW + 1))
        assert asyncio.run(rig.gate.sign_outs.add(ANN)) == 3
        assert rig.ended == ["s1", "s2", ""]
        assert not rig.connect("again", origin(session="s4", issued_at_s=NOW))
        assert rig.connect("new sign-in", origin(session="s5", issued_at_s=NOW + 1))

    def test_token_that_is_shown_twice_ends_no_later_sign_in(self) -> None:
        rig = SignOutRig()
        asyncio.run(rig.gate.sign_outs.add(ANN))
        assert rig.connect("new sign-in", origin(session="s2", issued_at_s=NOW + 1))
        assert asyncio.run(rig.gate.sign_outs.add(ANN)) == 0
        assert asyncio.run(rig.gate.sign_outs.add(ANN._replace(at_s=NOW - 5))) == 0
        assert rig.ended == []
        assert not rig.connect("older", origin(issued_at_s=NOW)), "an older logout takes nothing back"

    def test_token_without_a_time_is_covered(self) -> None:
        kept = SignOuts(TokenGrants())
        kept.apply([ANN])
        assert kept.covers(TokenOrigin("", "a1"))
        assert not kept.covers(TokenOrigin())
        assert not kept.covers(None)

    def test_token_that_names_no_session_by_a_logout_of_one(self) -> None:
        rig = SignOutRig()
        assert rig.connect("no session", origin(session=""))
        assert rig.connect("other session", origin(session="s2"))
        assert rig.connect("other person", origin("b1", ""))
        assert asyncio.run(rig.gate.sign_outs.add(SESSION)) == 1
        assert rig.ended == ["no session"]
        assert not rig.connect("older", origin(session="", issued_at_s=NOW))
        assert rig.connect("newer", origin(session="", issued_at_s=NOW + 1))

    def test_person_with_renewed_tokens(self) -> None:
        """The time is that of the sign-in; the session is that of the id token, which a renewal may leave out."""
        fresh = VerifiedIdentity("ann", (), NOW * 2, origin=origin(session="", issued_at_s=NOW + 50))
        assert renewed_origin(origin(), fresh).origin == origin()
        other = fresh._replace(origin=origin(session="s2", issued_at_s=NOW + 50))
        assert renewed_origin(origin(), other) == other
        assert renewed_origin(None, fresh) == fresh

    def test_grant_that_has_ended_is_not_renewed(self) -> None:
        rig = SignOutRig()
        proven = VerifiedIdentity("ann", (), NOW * 2, origin=origin())
        grant = rig.gate.grant(proven, "c", lambda _: None)
        assert grant is not None
        rig.gate.release(grant)
        assert not rig.gate.renew(grant, proven)
        assert rig.gate.token_grants.origin_of(grant) is None

    def test_connection_with_a_renewed_token(self) -> None:
        rig = SignOutRig()
        grant = rig.gate.grant(VerifiedIdentity("ann", (), NOW * 2, origin=origin()), "c", lambda _: None)
        assert grant is not None
        assert rig.gate.renew(grant, VerifiedIdentity("ann", (), NOW * 2, origin=origin(issued_at_s=NOW)))
        rig.gate.sign_outs.apply([SESSION])
        assert not rig.gate.renew(grant, VerifiedIdentity("ann", (), NOW * 2, origin=origin(issued_at_s=NOW + 9)))

    def test_number_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sign_outs_module, "SIGN_OUTS_MAX", 2)
        kept = SignOuts(TokenGrants())
        kept.apply([EndedSignIn("", name, NOW) for name in ("s1", "s2", "s3")])
        assert [kept.covers(origin(session=name)) for name in ("s1", "s2", "s3")] == [False, True, True]


class TestFile:
    def test_logouts_count_after_a_restart(self, tmp_path: Path) -> None:
        async def play() -> None:
            sign_outs = SignOuts(TokenGrants())
            sign_outs.keep_in(SignOutFile(tmp_path, URL, lambda: NOW))
            await asyncio.gather(*(sign_outs.add(SESSION._replace(session=f"s{i}")) for i in range(5)))

        asyncio.run(play())
        assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
        assert {each.session for each in SignOutFile(tmp_path, URL, lambda: NOW).load()} == {f"s{i}" for i in range(5)}
        assert SignOutFile(tmp_path, "https://other", lambda: NOW).load() == []
        assert SignOutFile(tmp_path, URL, lambda: NOW + SIGN_OUTS_KEPT_S).load() == []

    @pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
    def test_damaged_file_keeps_nothing(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / FILE).write_bytes(content)
        kept = SignOutFile(tmp_path, URL, lambda: NOW)
        assert kept.load() == []
        asyncio.run(kept.add(SESSION))
        assert SignOutFile(tmp_path, URL, lambda: NOW).load() == [SESSION]

    def test_logout_that_cannot_be_written_counts_and_is_reported(self, tmp_path: Path) -> None:
        rig = SignOutRig()
        rig.connect("mine", origin())
        rig.gate.sign_outs.keep_in(SignOutFile(tmp_path / "missing", URL, lambda: NOW))
        with pytest.raises(SignOutNotKept):
            asyncio.run(rig.gate.sign_outs.add(SESSION))
        assert rig.ended == ["mine"]
        (tmp_path / "missing").mkdir()
        assert asyncio.run(rig.gate.sign_outs.add(SESSION)) == 0, "the issuer sends it again"
        assert SignOutFile(tmp_path / "missing", URL, lambda: NOW).load() == [SESSION]

    def test_logout_that_could_not_be_written_is_written_later(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sign_out_file_module, "SIGN_OUTS_RETRY_S", 0.001)

        async def play() -> None:
            kept = SignOutFile(tmp_path / "missing", URL, lambda: NOW)
            with pytest.raises(SignOutNotKept):
                await kept.add(SESSION)
            (tmp_path / "missing").mkdir()
            async with asyncio.timeout(20):
                while SignOutFile(tmp_path / "missing", URL, lambda: NOW).load() != [SESSION]:
                    await asyncio.sleep(0.001)

        asyncio.run(play())

    def test_logout_that_comes_again_takes_no_room(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sign_outs_module, "SIGN_OUTS_MAX", 2)

        async def play() -> None:
            kept = SignOutFile(tmp_path, URL, lambda: NOW)
            for each in (ANN, SESSION, SESSION, SESSION._replace(at_s=NOW - 1)):
                await kept.add(each)

        asyncio.run(play())
        assert set(SignOutFile(tmp_path, URL, lambda: NOW).load()) == {ANN, SESSION}
