"""One connection to a Kafka cluster: a producer for what goes, a consumer for each forwarder that takes."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence

from bridge.client_attempt import Carriage
from bridge.connectors.coroutines import all_to_end, first_to_end
from bridge.connectors.kafka.cluster import Cluster
from bridge.connectors.kafka.consumer import Consumer
from bridge.connectors.kafka.producer import Producer
from bridge.connectors.messages import Translate
from bridge.connectors.settings import Identity, KafkaSettings
from bridge.dialer import Endpoint

logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a line a try, many a second; what matters we say ourselves


class KafkaClient:
    """`bridge.client_attempt.Client` of a Kafka cluster; one for the connector's life."""

    def __init__(
        self,
        identity: Identity,
        settings: KafkaSettings,
        endpoints: Sequence[Endpoint],
        *,
        translate: Translate,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`endpoints`: brokers to ask first, for who the others are. `tls` makes the context for one connection."""
        self._cluster = Cluster(identity, settings, endpoints, tls)
        self._producer = Producer(settings, translate)

    async def run(self, endpoint: Endpoint, carriage: Carriage) -> None:
        """From the first connection until producer or consumer fails: ConnectorError or OSError."""
        reached = await self._cluster.reach(endpoint)
        consumers: list[Consumer] = []
        try:
            for inbox in carriage.inboxes:
                consumers.append(Consumer(self._cluster, inbox, carriage, reached))
                await consumers[-1].start()
            carriage.up("a Kafka cluster")
            await first_to_end(self._producer.run(reached, carriage), *(consumer.run() for consumer in consumers))
        finally:  # together: brokers that are gone are waited for once, which the attempt has the time for
            await all_to_end(*(consumer.end() for consumer in consumers))
