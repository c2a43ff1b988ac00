"""A container's variables are settings under the same rules as a card's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.enrolment import EnrolmentToken
from bridge.proxy import Proxy
from bridge.resources.errors import ConfigurationRejected
from edge.appliance.first_boot.environment import card_of
from edge.appliance.first_boot.journal import FirstBootJournal
from edge.appliance.first_boot.settings import digest, write_gateway_settings

TOKEN = EnrolmentToken.make(bytes(32)).text
VARIABLES = {"WAYPOST_NAME": "hall", "WAYPOST_HUB": "amqps://hub.example:5671", "WAYPOST_TOKEN": TOKEN}


def refused(**variables: str) -> str:
    with pytest.raises(ConfigurationRejected) as caught:
        card_of({**VARIABLES, **variables})
    return "\n".join(map(str, caught.value.errors))


def test_variables_describe_a_gateway(tmp_path: Path) -> None:
    card = card_of({**VARIABLES, "WAYPOST_FORWARD": "plant/# alarm/#", "WAYPOST_KEEP_FREE": "1Gi", "PATH": "/bin"})
    assert card is not None
    write_gateway_settings(tmp_path, card)
    wanted = FirstBootJournal(tmp_path).wanted()
    assert wanted is not None
    assert (wanted.name, wanted.url, wanted.token) == ("hall", "amqps://hub.example:5671", TOKEN)
    assert (wanted.forward, wanted.keep_free, wanted.settings) == (("plant/#", "alarm/#"), 1 << 30, digest(card))
    assert (tmp_path / "first-boot/wanted.json").stat().st_mode & 0o777 == 0o600


def test_several_urls_and_a_proxy_are_read(tmp_path: Path) -> None:
    urls = "amqps://hub.example:5671  wss://hub.example:443"
    card = card_of({**VARIABLES, "WAYPOST_HUB": urls, "WAYPOST_PROXY": "http://gw:pass%20word@proxy.example"})
    assert card is not None
    write_gateway_settings(tmp_path, card)
    wanted = FirstBootJournal(tmp_path).wanted()
    assert wanted is not None
    assert wanted.urls == tuple(urls.split())
    assert wanted.proxy == Proxy(host="proxy.example", username="gw", password="pass word")


def test_equal_variables_give_equal_settings() -> None:
    first, again, other = (card_of({**VARIABLES, "WAYPOST_FORWARD": each}) for each in ("#", "#", "a/#"))
    assert first is not None
    assert again is not None
    assert other is not None
    assert digest(first) == digest(again) != digest(other)


def test_gateway_without_a_hub_stores_its_messages() -> None:
    card = card_of({"WAYPOST_NAME": "hall", "WAYPOST_HUB": "", "WAYPOST_TOKEN": ""})
    assert card is not None
    assert card.spec.hub is None


def test_no_settings_are_written_without_a_name() -> None:
    assert card_of({**VARIABLES, "WAYPOST_NAME": ""}) is None


def test_invalid_value_is_refused_without_showing_its_secret() -> None:
    assert "token" in refused(WAYPOST_TOKEN="")
    assert "url" in refused(WAYPOST_HUB="hub.example")
    said = refused(WAYPOST_TOKEN=TOKEN[:-3])
    assert "token" in said
    assert TOKEN[:-3] not in said
    said = refused(WAYPOST_PROXY="socks://gw:password@proxy.example")
    assert "WAYPOST_PROXY: a proxy is written http://" in said
    assert "password@proxy" not in said
    assert "failover" in refused(WAYPOST_HUB="amqps://hub.example:5671 hub.example")
    assert "keepFree" in refused(WAYPOST_KEEP_FREE="much")
