"""Hashes of other brokers verify the passwords of their users, and only these."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.broker.security.credentials import CredentialUser, new_user, verify, with_hash
from edge.broker.security.password_hashes import ITERATIONS_MAX, SALT_BYTES_MAX, matches, parse_hash
from tests.support.mosquitto_passwords import mosquitto_hash


def of_bytes(count: int) -> str:
    return base64.b64encode(bytes(count)).decode()


@pytest.mark.parametrize(("algorithm", "start"), [("sha512-pbkdf2", "$7$101$"), ("sha512", "$6$")])
def test_passwords_of_mosquitto_are_verified(tmp_path: Path, algorithm: str, start: str) -> None:
    file = tmp_path / "passwords"
    command = ["mosquitto_passwd", "-H", algorithm, "-c", "-b", str(file), "pump7", "pass word"]
    subprocess.run(command, check=True, timeout=30)
    name, _, hashed = file.read_text().strip().partition(":")
    assert name == "pump7"
    assert hashed.startswith(start)
    assert matches(hashed, b"pass word")
    assert not matches(hashed, b"password")


@pytest.mark.parametrize("hashed", [
    "", "$", "secret", "$5$YQ==$YQ==", "$7$101$YQ==", "$7$101$YQ==$YQ==$YQ==", f"x$6$YQ==${of_bytes(64)}",
    f"$7$0$YQ==${of_bytes(64)}", f"$7${ITERATIONS_MAX + 1}$YQ==${of_bytes(64)}", f"$7$\u0663$YQ==${of_bytes(64)}",
    f"$6$YQ==${of_bytes(63)}", f"$6$${of_bytes(64)}", f"$6${of_bytes(SALT_BYTES_MAX + 1)}${of_bytes(64)}",
    f"$6$Y\u00e4==${of_bytes(64)}", f"$7$-1$YQ==${of_bytes(64)}", f"$7$1000000000$YQ==${of_bytes(64)}",
    "ENC()", "ENC(1024:aa)", f"ENC(1024:aa:{'00' * 63})", f"ENC(0:aa:{'00' * 64})", f"ENC(1:xx:{'00' * 64})",
    f"ENC(1::{'00' * 64})", f"ENC({ITERATIONS_MAX + 1}:aa:{'00' * 64})", f"ENC(1:aa:{'00' * 64}",
])  # fmt: skip
def test_other_texts_are_refused(hashed: str) -> None:
    with pytest.raises(ValueError, match="hash"):
        parse_hash(hashed)
    assert not matches(hashed, b"")


def test_limits_are_allowed() -> None:
    assert parse_hash(f"$7${ITERATIONS_MAX}${of_bytes(SALT_BYTES_MAX)}${of_bytes(64)}").iterations == ITERATIONS_MAX


@given(st.text(max_size=40), st.text(max_size=40), st.sampled_from([0, 1, 101]))
def test_one_password_matches(password: str, other: str, iterations: int) -> None:
    password, other = (each.encode("utf-8", "replace").decode() for each in (password, other))
    hashed = mosquitto_hash(password, iterations)
    assert matches(hashed, password.encode())
    assert matches(hashed, other.encode()) == (password == other)


def test_imported_secret_is_marked() -> None:
    user: CredentialUser = with_hash(new_user("pump7"), mosquitto_hash("s3cret"))
    assert [each.imported for each in user.secrets] == [True]
    assert verify(user, b"s3cret", 0.0) is user.secrets[0]
    with pytest.raises(ValueError, match="hash"):
        with_hash(user, "s3cret")
