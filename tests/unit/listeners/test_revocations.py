"""Lists of revoked client certificates, made by openssl: valid lists, and lists that refuse all clients."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import Final

import pytest

from edge.broker.listeners.revocations import CRL_BYTES_MAX, GRACE_S, ClientRevocations
from tests.support.certificates import Authority, Issued

DAY_S: Final = 86_400.0
ENDS: Final = datetime.datetime(2027, 3, 2, tzinfo=datetime.UTC).timestamp()
TIMES: Final = {"begins": "20270301000000Z", "ends": "20270302000000Z"}
GOOD, REVOKED, NO_LIST, ENDED = (
    None,
    "it was revoked",
    "no revocation list of its authority",
    "the revocation list of its authority has expired",
)


class World:
    """An authority with a valid device, a revoked device and a revocation list."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "ca")
        self.good, self.bad = (self.authority.issue(name) for name in ("good", "bad"))
        self.authority.revoke(self.bad)
        self.file = folder / "revoked.crl"
        self.now = ENDS - DAY_S / 2

    def write(self, content: bytes) -> None:
        """Replace the list by a rename, as a careful program does."""
        fresh = self.file.with_suffix(".new")
        fresh.write_bytes(content)
        fresh.replace(self.file)

    def opened(self) -> ClientRevocations:
        return ClientRevocations(str(self.file), self.authority.certificate, lambda: self.now)


def der(issued: Issued) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(issued.certificate).read_text())


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.write(made.authority.revocations(**TIMES))
    return made


@pytest.mark.parametrize("binary", [False, True], ids=["PEM", "DER"])
def test_revoked_client_is_refused(world: World, binary: bool) -> None:
    world.write(world.authority.revocations(der=binary, **TIMES))
    known = world.opened()
    assert (known.refusal(der(world.good)), known.refusal(der(world.bad))) == (GOOD, REVOKED)
    assert (known.trouble, known.closed, known.check()) == (None, False, False)


def test_list_is_read_again_when_it_changes(world: World) -> None:
    known = world.opened()
    world.authority.revoke(world.good)
    world.write(world.authority.revocations(**TIMES))
    assert known.check()
    assert known.refusal(der(world.good)) == REVOKED
    assert known.is_revoked(der(world.good))
    assert not known.check()


@pytest.mark.parametrize("ruin", [b"", b"half a list", None, "torn", "another authority", "large"])
def test_unusable_list_leaves_the_previous_one(world: World, tmp_path: Path, ruin: bytes | str | None) -> None:
    known, content = world.opened(), world.file.read_bytes()
    if ruin is None:
        world.file.unlink()
    elif isinstance(ruin, bytes):
        world.write(ruin)
    elif ruin == "torn":
        world.write(content[: len(content) // 2])
    elif ruin == "large":
        world.write(content + b"\n" * CRL_BYTES_MAX)
    else:
        world.write(Authority(tmp_path / "other").revocations(**TIMES))
    assert not known.check()
    assert (known.refusal(der(world.good)), known.refusal(der(world.bad))) == (GOOD, REVOKED)
    assert "the previous lists apply" in (known.trouble or "")
    assert str(world.file) in (known.trouble or "")
    assert not known.closed
    world.write(content)
    assert known.check()
    assert known.trouble is None


def test_largest_allowed_list_is_read(world: World) -> None:
    content = world.file.read_bytes()
    world.write(content + b"\n" * (CRL_BYTES_MAX - len(content)))
    assert world.opened().trouble is None


@pytest.mark.parametrize("content", [None, b"torn"])
def test_missing_list_refuses_all_clients(world: World, content: bytes | None) -> None:
    world.write(content or b"")
    if content is None:
        world.file.unlink()
    known = world.opened()
    assert known.refusal(der(world.good)) == NO_LIST
    assert known.closed
    assert "client certificates are refused" in (known.trouble or "")


def test_list_applies_for_a_day_after_its_end_and_then_refuses_all_clients(world: World) -> None:
    known = world.opened()
    world.now = ENDS
    assert "ended at 2027-03-02T00:00:00Z: it applies until 2027-03-03T00:00:00Z" in (known.trouble or "")
    world.now = ENDS + GRACE_S - 1
    assert (known.refusal(der(world.good)), known.refusal(der(world.bad)), known.closed) == (GOOD, REVOKED, False)
    world.now = ENDS + GRACE_S
    assert (known.refusal(der(world.good)), known.refusal(der(world.bad)), known.closed) == (ENDED, ENDED, True)
    assert "ended at 2027-03-02T00:00:00Z: client certificates are refused" in (known.trouble or "")
    assert known.is_revoked(der(world.bad)), "who is connected, and on it, leaves all the same"
    world.write(world.authority.revocations(begins="20270303000000Z", ends="20270304000000Z"))
    assert known.check()
    assert (known.refusal(der(world.good)), known.trouble) == (GOOD, None)


def test_each_authority_has_its_own_list(world: World, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other", "other authority")
    device = other.issue("device")
    both = tmp_path / "both.pem"
    both.write_text(Path(world.authority.certificate).read_text() + Path(other.certificate).read_text())
    known = ClientRevocations(str(world.file), str(both), lambda: world.now)
    assert (known.refusal(der(world.good)), known.refusal(der(device))) == (GOOD, NO_LIST)
    world.write(world.file.read_bytes() + other.revocations(**TIMES))
    assert known.check()
    assert (known.refusal(der(world.bad)), known.refusal(der(device))) == (REVOKED, GOOD)


def test_list_with_a_forged_signature_is_refused(world: World, tmp_path: Path) -> None:
    """The forging authority has the same name."""
    world.write(Authority(tmp_path / "forger").revocations(**TIMES))
    known = world.opened()
    assert "its signature is not of" in (known.trouble or "")
    assert known.closed


def test_another_file_applies_at_once(world: World, tmp_path: Path) -> None:
    known = ClientRevocations(None, world.authority.certificate, lambda: world.now)
    assert (known.refusal(der(world.bad)), known.trouble, known.check()) == (GOOD, None, False)
    assert known.follow(str(world.file))
    assert not known.follow(str(world.file))
    assert known.refusal(der(world.bad)) == REVOKED
    assert known.follow(str(tmp_path / "nothing"))
    assert known.refusal(der(world.bad)) == REVOKED, "until another one can be read"
    assert "No such file" in (known.trouble or "")
    assert known.follow(None)
    assert known.refusal(der(world.bad)) is GOOD
