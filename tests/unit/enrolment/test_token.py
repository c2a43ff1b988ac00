"""Tokens in text form."""

from __future__ import annotations

import pytest

from bridge.enrolment import EnrolmentToken, EnrolmentTokenError

AUTHORITY = b"\xfb" * 32


def test_token_survives_a_round_trip() -> None:
    made = EnrolmentToken.make(AUTHORITY)
    assert EnrolmentToken.parse(f" {made.text}\n") == made
    assert made != EnrolmentToken.make(AUTHORITY)
    assert all(character.isalnum() or character in "._-" for character in made.text), (
        "nothing a shell takes for its own"
    )


def test_token_shows_no_secret() -> None:
    made = EnrolmentToken.make(AUTHORITY)
    assert made.text.split(".")[2] not in repr(made)
    assert made.digest != made.secret


@pytest.mark.parametrize(
    "broken",
    [
        "", "wpt1", "wpt2.{id}.{secret}.{authority}", "wpt1.{id}.{secret}", "wpt1.{id}.{secret}.",
        "wpt1..{secret}.{authority}",
        "wpt1.{id}.{secret}x.{authority}", "wpt1.{id}.{secret}.{authority}AA", "wpt1.{id}.ä{secret}.{authority}",
        "wpt1.{id}.{secret}.{authority}.more", "wpt1.{id}.!!!!.{authority}",
    ],
)  # fmt: skip
def test_incomplete_token_is_refused(broken: str) -> None:
    _, name, secret, authority = EnrolmentToken.make(AUTHORITY).text.split(".")
    with pytest.raises(EnrolmentTokenError) as error:
        EnrolmentToken.parse(broken.format(id=name, secret=secret, authority=authority))
    assert secret not in str(error.value)
