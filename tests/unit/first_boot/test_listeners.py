"""Listeners with TLS that the set-up of a card adds after the enrolment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge.appliance.first_boot.enrolling import FirstBoot
from edge.appliance.identity.location import identity_file
from edge.appliance.initial.defaults import HTTP, HTTPS
from tests.support.certificates import Authority

CARD = {"mqtts": "0.0.0.0:8883", "https": "0.0.0.0:443"}
ANY: Any = None


@pytest.mark.parametrize(
    ("found", "added"),
    [
        ({"http": HTTP}, True),
        ({"http": HTTP, "https": HTTPS}, True),
        ({"https": "0.0.0.0:9000"}, False),
        ({"mqtts": "0.0.0.0:9000"}, False),
        ({"https": HTTPS, "tls": {"certificate": "c", "key": "k"}}, False),
    ],
    ids=["none", "the default of init", "another https", "another mqtts", "another certificate"],
)
def test_they_replace_the_default_and_nothing_else(tmp_path: Path, found: dict[str, Any], added: bool) -> None:
    issued = Authority(tmp_path / "authority").issue("hall", usage="serverAuth")
    identity = identity_file(tmp_path)
    identity.parent.mkdir()
    identity.write_bytes(Path(issued.key).read_bytes() + Path(issued.certificate).read_bytes())
    own = {"certificate": str(identity), "key": str(identity)}
    wanted = {"hostNames": ["localhost"], **found, **CARD, "tls": own} if added else found
    assert FirstBoot(tmp_path, ANY, lambda: 0.0, tls=CARD)._listeners(found) == wanted
