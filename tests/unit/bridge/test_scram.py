"""SCRAM-SHA-256 against the exchange in the RFC, and against peers that violate it."""

from __future__ import annotations

import base64

import pytest

from bridge.sasl.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramClient,
    ScramError,
    ScramServer,
    ScramVerifier,
    derive,
    prepare,
)

# RFC 7677 section 3
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
PENCIL = ScramVerifier(SALT, 4096, [derive("pencil", SALT, 4096)])


def server() -> ScramServer:
    return ScramServer(SERVER_NONCE)


def test_exchange_matches_the_rfc() -> None:
    client, peer = ScramClient("user", "pencil", CLIENT_NONCE), server()
    assert client.first() == CLIENT_FIRST
    peer.first(CLIENT_FIRST)
    assert peer.username == "user"
    assert peer.challenge(PENCIL) == SERVER_FIRST
    assert client.answer(SERVER_FIRST) == CLIENT_FINAL
    assert peer.finish(CLIENT_FINAL) == SERVER_FINAL
    client.check(SERVER_FINAL)


def test_names_are_escaped() -> None:
    peer = server()
    peer.first(ScramClient("a=b,c", "x", "n").first())
    assert peer.username == "a=b,c"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=user",
        b"n,,r=nonce,n=user",
        b"p=tls-unique,,n=user,r=x",
        b"n,a=other,n=user,r=x",
        b"n,,m=ext,n=user,r=x",
        b"n,,n=,r=x",
        b"n,,n=user,r=",
        b"n,,n=a=b,r=x",
        b"n,,n=\xff,r=x",
    ],
)
def test_invalid_first_messages_are_refused(message: bytes) -> None:
    with pytest.raises(ScramError):
        server().first(message)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        CLIENT_FINAL[:-2],
        CLIENT_FINAL.replace(b"c=biws", b"c=eSws"),
        CLIENT_FINAL.replace(b"k0,", b"k1,"),
        CLIENT_FINAL.replace(b"p=dHz", b"p=aHz"),
        CLIENT_FINAL.replace(b",p=", b",q="),
        b"c=biws,r=x,p=",
        "c=biws,r=\u00fc,p=AAAA".encode(),
        "c=\u00fc,r=x,p=AAAA".encode(),
        b"c=biws,r=" + CLIENT_NONCE.encode() + SERVER_NONCE.encode() + b",p=AAAA",
    ],
)
def test_invalid_proofs_are_refused(message: bytes) -> None:
    peer = server()
    peer.first(CLIENT_FIRST)
    peer.challenge(PENCIL)
    with pytest.raises(ScramError):
        peer.finish(message)


def test_user_without_secrets_is_refused() -> None:
    peer = server()
    peer.first(CLIENT_FIRST)
    peer.challenge(ScramVerifier(SALT, 4096, []))
    with pytest.raises(ScramError):
        peer.finish(CLIENT_FINAL)


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=other,s=AAAA,i=4096",
        SERVER_FIRST.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""),
        SERVER_FIRST.replace(b"i=4096", b"i=0"),
        SERVER_FIRST.replace(b"i=4096", b"i=1"),
        SERVER_FIRST.replace(b"i=4096", b"i=%d" % (ITERATIONS_MIN - 1)),
        SERVER_FIRST.replace(b"i=4096", b"i=-1"),
        SERVER_FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s="),
        SERVER_FIRST.replace(b"i=4096", b"i=" + b"9" * 5000),
        SERVER_FIRST.replace(b"i=4096", b"i=%d" % (ITERATIONS_MAX + 1)),
        SERVER_FIRST.replace(b"s=W", b"s=!"),
    ],
)
def test_client_refuses_invalid_challenges(challenge: bytes) -> None:
    with pytest.raises(ScramError):
        ScramClient("user", "pencil", CLIENT_NONCE).answer(challenge)


@pytest.mark.parametrize("final", [b"", b"e=other-error", SERVER_FINAL.replace(b"v=6", b"v=7")])
def test_server_must_prove_itself(final: bytes) -> None:
    client = ScramClient("user", "pencil", CLIENT_NONCE)
    with pytest.raises(ScramError):
        client.check(SERVER_FINAL)  # before there was an exchange
    client.answer(SERVER_FIRST)
    with pytest.raises(ScramError):
        client.check(final)


def test_passwords_are_prepared() -> None:
    assert prepare("I\u00adX") == "IX"  # RFC 4013 section 3
    assert prepare("\u2168") == "IX"
    assert prepare("a\u00a0b") == "a b"
    with pytest.raises(ScramError):
        prepare("\u0007")
