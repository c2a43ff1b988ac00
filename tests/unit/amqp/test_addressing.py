"""Forms in which clients write addresses."""

from __future__ import annotations

import pytest

from bridge.amqp_values import DescribedValue, Ulong, encode
from bridge.engine import Detached
from bridge.engine.terminus import target
from edge.broker.limits import ADDRESS_BYTES_MAX
from tests.unit.amqp.broker import Site, received_payloads, send_texts
from tests.unit.amqp.wire import message, of_kind


class TestWholeUrls:
    """uamqp and other clients attach to ``amqp[s]://host/address`` and write it into `to`."""

    @pytest.mark.parametrize("url", ["amqp://gateway/queue/a", "amqps://user@gateway:5671/queue/a"])
    def test_scheme_and_host_are_not_part_of_the_address(self, url: str) -> None:
        site = Site()
        client = site.client()
        send_texts(client, client.sender(url), "to the queue")
        relayed = client.sender(target(None), name="relay")
        to = encode(DescribedValue(Ulong(0x73), [None, None, url]))
        client.engine.send(relayed, 0, to + message(b"relayed"))
        site.settle_down()
        link = client.receiver(url)
        assert received_payloads(client, link)[0] == b"to the queue"
        assert len(client.received(link)) == 2
        assert link.source.address == url, "the answer has what was asked for"

    @pytest.mark.parametrize("url", ["amqp://gateway", "amqp://gateway/", "amqps:///"])
    def test_url_without_an_address_is_refused(self, url: str) -> None:
        client = Site().client()
        link = client.sender(url)
        assert link.closed
        assert [event.condition.name for event in of_kind(client.events, Detached)] == ["amqp:invalid-field"]

    def test_longest_address_is_accepted(self) -> None:
        client = Site().client()
        assert not client.sender("q" * ADDRESS_BYTES_MAX).closed
        assert client.sender("q" * (ADDRESS_BYTES_MAX + 1), name="longer").closed

    def test_other_colons_are_part_of_the_address(self) -> None:
        site = Site()
        client = site.client()
        send_texts(client, client.sender("queue/http://x/y"), "kept")
        site.settle_down()
        assert site.router.queues["queue/http://x/y"].backlog == 1
