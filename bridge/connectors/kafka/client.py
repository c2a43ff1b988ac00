"""One connection to a Kafka cluster: a producer for what goes, a consumer for each forwarder that takes."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence

from bridge.client_attempt import Carriage
from bridge.connectors.coroutines import all_to_end, first_to_end
from bridge.connectors.kafka.cluster import Cluster
from bridge.connectors.kafka.consumer import KafkaConsumer
from bridge.connectors.kafka.producer import KafkaProducer
from bridge.connectors.messages import Translate
from bridge.connectors.settings import ClientIdentity, KafkaSettings
from bridge.dialer import PeerEndpoint

logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a line a try, many a second; what matters we say ourselves


class KafkaClient:
    """`bridge.client_attempt.ConnectorClient` of a Kafka cluster; one for the connector's life."""

    def __init__(
        self,
        identity: ClientIdentity,
        settings: KafkaSettings,
        endpoints: Sequence[PeerEndpoint],
        *,
        translate: Translate,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`endpoints`: brokers to ask first, for who the others are. `tls` makes the context for one connection."""
        self._cluster = Cluster(identity, settings, endpoints, tls)
        self._producer = KafkaProducer(settings, translate)

    async def run(self, endpoint: PeerEndpoint, carriage: Carriage) -> None:
        """From the first connection until producer or consumer fails: ConnectorError or OSError."""
        reached = await self._cluster.reach(endpoint)
        consumers: list[KafkaConsumer] = []
        try:
            for inbox in carriage.inboxes:
                consumers.append(KafkaConsumer(self._cluster, inbox, carriage, reached))
                await consumers[-1].start()
            carriage.up("a Kafka cluster")
            await first_to_end(self._producer.run(reached, carriage), *(consumer.run() for consumer in consumers))
        finally:  # together: brokers that are gone are waited for once, which the attempt has the time for
            await all_to_end(*(consumer.end() for consumer in consumers))
