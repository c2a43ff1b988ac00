"""The stamps of a connector's certificate, key and authority change when the files do."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.broker.configuration import TlsFiles
from edge.broker.security.peer_tls import peer_stamps


@pytest.mark.parametrize(("name", "counts"), [("ca", True), ("certificate", True), ("key", True), ("crl", False)])
def test_replaced_file_has_another_stamp(tmp_path: Path, name: str, *, counts: bool) -> None:
    paths = {each: tmp_path / each for each in ("ca", "certificate", "key", "crl")}
    for path in paths.values():
        path.write_text("old")
    files = TlsFiles(**{each: str(path) for each, path in paths.items()})
    before = peer_stamps(files)
    assert peer_stamps(files) == before
    (tmp_path / "next").write_text("replaced")
    (tmp_path / "next").rename(paths[name])
    assert (peer_stamps(files) != before) is counts


def test_file_that_appears_has_a_stamp(tmp_path: Path) -> None:
    assert peer_stamps(None) == ()
    files = TlsFiles(ca=str(tmp_path / "ca"))
    before = peer_stamps(files)
    (tmp_path / "ca").write_text("there")
    assert peer_stamps(files) != before
