"""`waypost artefact keygen | sign | verify`, as a maker runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge.appliance.main import run
from edge.output.errors import Exit
from tests.support.artefacts import IMAGE

Say = Any


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Folder with a key and an image."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blinker.bin").write_bytes(IMAGE)
    assert run(["artefact", "keygen", "--out", "maker.pem"]) == Exit.DONE
    capsys.readouterr()
    return tmp_path


def sign(*more: str) -> int:
    words = "artefact sign --key maker.pem --name blinker --version 1.2.0 --sequence 12 --board pico-w blinker.bin"
    return run([*words.split(), *more])


def verify(*more: str, key: str = "maker.pub.pem") -> int:
    return run(["artefact", "verify", "--key", key, "blinker.bin.cose", "blinker.bin", *more])


def test_sign_and_verify(maker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sign("--from", "1.1.0", "--not-before", "2026-01-01T00:00:00Z") == Exit.DONE
    capsys.readouterr()
    assert verify("--board", "pico-w", "--installed", "1.1.0", "--json") == Exit.DONE
    [found] = json.loads(capsys.readouterr().out)["items"]
    assert (found["name"], found["sequence"], found["size"]) == ("blinker", 12, len(IMAGE))
    assert (found["from_versions"], found["not_before"]) == (["1.1.0"], "2026-01-01T00:00:00+00:00")


def test_private_key_is_the_owners_alone(maker: Path) -> None:
    assert (maker / "maker.pem").stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in (maker / "maker.pub.pem").read_text()


@pytest.mark.parametrize(
    ("more", "reason"),
    [(["--board", "esp32"], "wrong-board"), (["--installed", "1.0.0"], "wrong-from-version")],
)
def test_what_does_not_fit_is_refused(
    maker: Path, more: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sign("--from", "1.1.0")
    assert verify(*more) == Exit.INTEGRITY
    assert f"reason: {reason}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "reason"), [(IMAGE[:-1], "truncated"), (IMAGE + b"x", "too-large"), (b"x" + IMAGE[1:], "forged")]
)
def test_other_image_is_refused(maker: Path, content: bytes, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    sign()
    (maker / "blinker.bin").write_bytes(content)
    assert verify() == Exit.INTEGRITY
    assert f"reason: {reason}" in capsys.readouterr().err


def test_other_key_is_refused(maker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sign()
    assert run(["artefact", "keygen", "--out", "other.pem", "--algorithm", "es256"]) == Exit.DONE
    assert verify(key="other.pub.pem") == Exit.INTEGRITY
    assert "reason: unknown-key" in capsys.readouterr().err


def test_nothing_is_overwritten(maker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = (maker / "maker.pem").read_bytes()
    assert run(["artefact", "keygen", "--out", "maker.pem"]) == Exit.USAGE
    assert sign() == Exit.DONE
    assert sign() == Exit.USAGE
    assert capsys.readouterr().err.count("error[file-exists]") == 2
    assert (maker / "maker.pem").read_bytes() == key


def test_key_with_a_password(maker: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("cloud.fleet.artefacts.read_password", lambda: "secret")
    (maker / "maker.pem").unlink()
    (maker / "maker.pub.pem").unlink()
    assert run(["artefact", "keygen", "--out", "maker.pem", "--password-stdin"]) == Exit.DONE
    assert sign() == Exit.USAGE
    assert "error[invalid-artefact-key]" in capsys.readouterr().err
    assert sign("--password-stdin") == Exit.DONE
    assert verify() == Exit.DONE


@pytest.mark.parametrize("more", [["--name", "Not Allowed"], ["--not-before", "tomorrow"], ["--sequence", "0"]])
def test_invalid_fields_leave_no_file(maker: Path, more: list[str]) -> None:
    assert sign(*more) == Exit.USAGE
    assert not (maker / "blinker.bin.cose").exists()
