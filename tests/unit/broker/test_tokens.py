"""Bearer tokens: valid ones, and known kinds of forgery."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from edge.broker.configuration import TokenIssuer
from edge.broker.model.authorization import AccessRule, Operation
from edge.broker.security import issuer as issuer_module
from edge.broker.security.issuer import FILE, Issuer
from edge.broker.security.issuer_requests import IssuerError, fetch_keys
from edge.broker.security.limits import (
    ISSUER_DOCUMENT_BYTES_MAX,
    ISSUER_KEYS_MAX,
    RULES_PER_USER_MAX,
    TOKEN_LEEWAY_S,
    TOKENS_WAITING_MAX,
)
from edge.broker.security.proof import LoginVerdict, TokenOrigin, VerifiedIdentity
from edge.broker.security.tokens import BearerTokenError, UnknownIssuerKey, read_keys, rights, verify
from tests.support.issuer import AUDIENCE, SigningKey, TestIssuer

NOW = 1_700_000_000.0
URL = "https://issuer.example/realms/plant"
CONFIGURATION = TokenIssuer(issuer=URL, audience=AUDIENCE)
KEYS = {name: SigningKey(name, name) for name in ("RS256", "PS384", "ES256", "EdDSA")}
PUBLIC = read_keys({"keys": [key.published for key in KEYS.values()]})


def claims(**more: Any) -> dict[str, Any]:
    base = {"iss": URL, "aud": AUDIENCE, "sub": "ann", "iat": NOW, "exp": NOW + 60, "scope": "openid send:up/#"}
    return {name: value for name, value in {**base, **more}.items() if value is not None}


def checked(token: str, configuration: TokenIssuer = CONFIGURATION) -> VerifiedIdentity:
    return verify(token.encode(), PUBLIC, configuration, NOW)


def encoded(part: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


class TestValidTokens:
    @pytest.mark.parametrize("algorithm", KEYS)
    def test_all_algorithms_are_accepted(self, algorithm: str) -> None:
        proven = checked(KEYS[algorithm].token(claims()))
        assert proven == VerifiedIdentity(
            "ann",
            (AccessRule(("up/#",), frozenset({Operation.SEND})),),
            NOW + 60,
            origin=TokenOrigin("", "ann", "", NOW),
        )

    def test_several_audiences_without_a_key_id_are_accepted(self) -> None:
        token = jwt.encode(claims(aud=["other", AUDIENCE]), KEYS["ES256"].private, "ES256")
        assert checked(token).user == "ann"

    def test_claims_of_other_names_are_read(self) -> None:
        configuration = TokenIssuer(
            issuer=URL, audience=AUDIENCE, user_claim="preferred_username", rights_claim="realm_access.roles"
        )
        more = {"preferred_username": "bob", "realm_access": {"roles": ["recv:x", "admin", 7, "send:"]}}
        proven = checked(KEYS["ES256"].token(claims(**more)), configuration)
        assert proven[:2] == ("bob", (AccessRule(("x",), frozenset({Operation.RECV})),))

    def test_rights_are_bounded(self) -> None:
        assert len(rights([f"send:a/{i}" for i in range(RULES_PER_USER_MAX + 1)])) == RULES_PER_USER_MAX
        assert rights(7) == rights(None) == rights({"send": "#"}) == ()


class TestRefusedTokens:
    @pytest.mark.parametrize(
        "more",
        [
            {"exp": NOW},
            {"exp": None},
            {"exp": "soon"},
            {"exp": 10**400},
            {"exp": True},
            {"nbf": NOW + TOKEN_LEEWAY_S + 1},
            {"iat": NOW + TOKEN_LEEWAY_S + 1},
            {"aud": "other"},
            {"aud": None},
            {"iss": "https://issuer.example/realms/other"},
            {"iss": None},
            {"sub": None},
            {"sub": ""},
            {"sub": "a\nb"},
            {"sub": 7},
            {"sub": "x" * 256},
        ],
        ids=str,
    )
    def test_wrong_claims_are_refused(self, more: dict[str, Any]) -> None:
        with pytest.raises(BearerTokenError):
            checked(KEYS["ES256"].token(claims(**more)))

    def test_unsigned_token_is_refused(self) -> None:
        token = jwt.encode(claims(), None, "none")
        with pytest.raises(BearerTokenError, match="'none'"):
            checked(token)
        head = encoded({"alg": "None", "kid": "ES256"})
        with pytest.raises(BearerTokenError):
            checked(f"{head}.{encoded(claims())}.")

    def test_mac_with_the_public_key_is_refused(self) -> None:
        public = KEYS["RS256"].private.public_key()
        pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        body = f"{encoded({'alg': 'HS256', 'kid': 'RS256'})}.{encoded(claims())}"
        mac = hmac.digest(pem, body.encode(), hashlib.sha256)
        with pytest.raises(BearerTokenError, match="'HS256'"):
            checked(f"{body}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}")

    def test_key_of_another_kind_is_refused(self) -> None:
        token = jwt.encode(claims(), KEYS["RS256"].private, "RS256", {"kid": "ES256"})
        with pytest.raises(UnknownIssuerKey):
            checked(token)

    def test_key_inside_the_token_is_refused(self) -> None:
        stranger = SigningKey("ES256")
        with pytest.raises(BearerTokenError, match="signature"):
            checked(stranger.token(claims(), jwk=stranger.published, jku="https://evil.example"))

    def test_changed_claims_are_refused(self) -> None:
        head, _, signature = KEYS["ES256"].token(claims()).split(".")
        with pytest.raises(BearerTokenError):
            checked(f"{head}.{encoded(claims(sub='root'))}.{signature}")

    @pytest.mark.parametrize(
        "token", ["", "x", "a.b.c", "....", "\xff", f"{encoded([])}.e30.", f"{encoded({'alg': 7})}.e30."]
    )
    def test_nonsense_is_refused(self, token: str) -> None:
        with pytest.raises(BearerTokenError):
            checked(token)

    def test_key_for_another_use_is_refused(self) -> None:
        published = KEYS["ES256"].published
        keys = [{**published, "use": "enc"}, {**published, "alg": "ES512"}, {"kty": "oct", "k": "AAAA"}, "x"]
        found = read_keys({"keys": keys})
        assert [key.algorithm for key in found] == ["ES512"]
        with pytest.raises(UnknownIssuerKey):
            verify(KEYS["ES256"].token(claims()).encode(), found, CONFIGURATION, NOW)

    @pytest.mark.parametrize("document", [None, [], {}, {"keys": 7}])
    def test_invalid_key_set_is_refused(self, document: object) -> None:
        with pytest.raises(BearerTokenError):
            read_keys(document)

    def test_key_sets_are_bounded(self) -> None:
        assert len(read_keys({"keys": [KEYS["ES256"].published] * (ISSUER_KEYS_MAX + 1)})) == ISSUER_KEYS_MAX


class Rig:
    """An `Issuer` over a real one, with a clock that the test moves."""

    def __init__(self, server: TestIssuer, data: Path, **more: Any) -> None:
        self.offset_s = 0.0
        configuration = TokenIssuer(issuer=server.url, audience=AUDIENCE, grace_s=1000.0)
        self.issuer = Issuer(configuration, data, utc_s=lambda: time.time() + self.offset_s, **more)
        self.issuer.start()

    async def verdict(self, token: str) -> tuple[LoginVerdict, VerifiedIdentity | None]:
        done: asyncio.Future[tuple[LoginVerdict, VerifiedIdentity | None]] = asyncio.get_running_loop().create_future()
        self.issuer.check(token.encode(), lambda said, proven: done.set_result((said, proven)))
        return await asyncio.wait_for(done, 10)


def playing(play: Callable[[TestIssuer, Path], Any], path: Path) -> None:
    with TestIssuer() as server:
        asyncio.run(play(server, path))


class TestIssuerFollowed:
    def test_rotated_key_is_fetched(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(issuer_module, "ISSUER_ASKED_S_MIN", 0.0)

        async def play(server: TestIssuer, path: Path) -> None:
            rig = Rig(server, path)
            said, proven = await rig.verdict(server.token("ann"))  # before the issuer answered
            assert said is LoginVerdict.ACCEPTED
            assert proven is not None
            assert proven.user == "ann"
            old = server.token("ann")
            server.keys.append(SigningKey("k2", "RS256"))
            assert (await rig.verdict(server.token("bob")))[0] is LoginVerdict.ACCEPTED  # the issuer is queried at once
            assert (await rig.verdict(old))[0] is LoginVerdict.ACCEPTED
            del server.keys[0]
            assert (await rig.verdict(SigningKey("k3").token(server.claims())))[
                0
            ] is LoginVerdict.REFUSED  # queried again
            assert (await rig.verdict(old))[0] is LoginVerdict.REFUSED
            await rig.issuer.stop()

        playing(play, tmp_path)

    def test_invented_keys_cause_no_fetch(self, tmp_path: Path) -> None:
        async def play(server: TestIssuer, path: Path) -> None:
            rig = Rig(server, path)
            await rig.verdict(server.token())
            asked = len(server.requests)
            stranger = SigningKey("made-up")
            for _ in range(20):
                assert (await rig.verdict(stranger.token(server.claims())))[0] is LoginVerdict.REFUSED
            assert len(server.requests) == asked
            await rig.issuer.stop()

        playing(play, tmp_path)

    def test_login_during_a_fetch_waits(self, tmp_path: Path) -> None:
        async def play(server: TestIssuer, path: Path) -> None:
            rig = Rig(server, path)
            while not rig.issuer._requesting:
                await asyncio.sleep(0)
            assert (await rig.verdict(server.token()))[0] is LoginVerdict.ACCEPTED
            await rig.issuer.stop()

        playing(play, tmp_path)

    def test_keys_are_valid_offline_for_a_grace_period_and_after_a_restart(self, tmp_path: Path) -> None:
        async def play(server: TestIssuer, path: Path) -> None:
            rig = Rig(server, path)
            assert (await rig.verdict(server.token()))[0] is LoginVerdict.ACCEPTED
            await rig.issuer.stop()
            assert (path / FILE).exists()
            server.answering = False
            rig = Rig(server, path)
            assert (await rig.verdict(server.token()))[0] is LoginVerdict.ACCEPTED
            assert rig.issuer.overdue is None
            rig.offset_s = 1001.0
            assert (await rig.verdict(server.token(expires_in_s=5000)))[0] is LoginVerdict.BUSY
            assert "no bearer token is accepted" in str(rig.issuer.overdue)
            await rig.issuer.stop()

        playing(play, tmp_path)

    def test_waiting_logins_are_bounded(self, tmp_path: Path) -> None:
        async def play(server: TestIssuer, path: Path) -> None:
            server.answering = False
            rig = Rig(server, path)
            verdicts: list[LoginVerdict] = []
            for _ in range(TOKENS_WAITING_MAX + 1):
                rig.issuer.check(server.token().encode(), lambda said, _: verdicts.append(said))
            assert verdicts == [LoginVerdict.BUSY]
            await rig.issuer.stop()
            assert verdicts == [LoginVerdict.BUSY] * (TOKENS_WAITING_MAX + 1)

        playing(play, tmp_path)

    def test_unusable_key_file_is_logged(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        (tmp_path / FILE).write_text("{")

        async def play(server: TestIssuer, path: Path) -> None:
            rig = Rig(server, path)
            assert (await rig.verdict(server.token()))[0] is LoginVerdict.ACCEPTED
            await rig.issuer.stop()

        playing(play, tmp_path)
        assert "cannot read" in caplog.text


class TestFetch:
    @pytest.mark.parametrize(
        ("document", "why"),
        [
            ({"issuer": "http://127.0.0.1/other", "jwks_uri": "x"}, "another issuer"),
            ({"jwks_uri": "x"}, "another issuer"),
            ([], "another issuer"),
            ("x" * ISSUER_DOCUMENT_BYTES_MAX, "bytes"),
        ],
        ids=["other", "none", "list", "large"],
    )
    def test_invalid_documents_raise(self, document: Any, why: str) -> None:
        with TestIssuer() as server:
            server.document = lambda path: document  # type: ignore[method-assign]
            with pytest.raises(IssuerError, match=why):
                fetch_keys(TokenIssuer(issuer=server.url, audience=AUDIENCE))

    def test_keys_of_another_scheme_raise(self) -> None:
        with TestIssuer() as server:
            server.document = lambda path: {"issuer": server.url, "jwks_uri": "file:///etc/passwd"}  # type: ignore[method-assign]
            with pytest.raises(IssuerError, match="scheme"):
                fetch_keys(TokenIssuer(issuer=server.url, audience=AUDIENCE))

    def test_unreachable_issuer_raises(self) -> None:
        with pytest.raises(IssuerError, match=r"127\.0\.0\.1:1"):
            fetch_keys(TokenIssuer(issuer="http://127.0.0.1:1/x", audience=AUDIENCE))
