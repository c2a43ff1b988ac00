"""Listeners with TLS that the set-up of a card adds after the enrolment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.resources.parse import parse, to_yaml
from edge.appliance.first_boot.enrolling import FirstBoot
from edge.appliance.first_boot.journal import FirstBootSettings
from edge.appliance.identity.location import hub_tls, identity_file
from edge.appliance.initial.defaults import HTTP, HTTPS
from edge.configuration.first_gateway import document_of
from edge.configuration.kinds import KINDS
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


def test_pace_of_the_hub_stays(tmp_path: Path) -> None:
    """No card sets it; the settings of the card replace the rest of `spec.hub`."""
    hub = {"url": "amqps://old.example", "pace": {"rate": "20Ki"}, "proxy": {"host": "old.example", "port": 3128}}
    [found] = parse(KINDS, to_yaml(document_of("Gateway", "hall", {"hub": hub})), "test")
    wanted = FirstBootSettings(
        settings="", name="hall", url="amqps://new.example", token=None, forward=(), keep_free=None
    )
    [made] = FirstBoot(tmp_path, ANY, lambda: 0.0)._resources(wanted, found)
    assert made.document["spec"]["hub"] == {
        "pace": {"rate": "20Ki"},
        "url": "amqps://new.example",
        "tls": hub_tls(identity_file(tmp_path)),
        "gateway": "hall",
    }
