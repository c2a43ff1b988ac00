"""Connection to a Kafka cluster: one producer, and one consumer per incoming forwarder."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence

from bridge.client_attempt import ConnectorTraffic
from bridge.connectors.coroutines import all_to_end, first_to_end
from bridge.connectors.kafka.cluster import Cluster
from bridge.connectors.kafka.consumer import KafkaConsumer
from bridge.connectors.kafka.producer import KafkaProducer
from bridge.connectors.messages import Translate
from bridge.connectors.settings import ClientIdentity, KafkaSettings
from bridge.dialer import PeerEndpoint

logging.getLogger("aiokafka").setLevel(
    logging.CRITICAL
)  # it logs every attempt, several a second; we log errors ourselves


class KafkaClient:
    """`bridge.client_attempt.ConnectorClient` of a Kafka cluster; lives as long as the connector."""

    def __init__(
        self,
        identity: ClientIdentity,
        settings: KafkaSettings,
        endpoints: Sequence[PeerEndpoint],
        *,
        translate: Translate,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`endpoints`: bootstrap brokers. `tls` creates the context for one connection."""
        self._cluster = Cluster(identity, settings, endpoints, tls)
        self._producer = KafkaProducer(settings, translate)

    async def run(self, endpoint: PeerEndpoint, traffic: ConnectorTraffic) -> None:
        """Run producer and consumers until one fails. Raises ConnectorError or OSError."""
        options = await self._cluster.connect(endpoint)
        consumers: list[KafkaConsumer] = []
        try:
            for inbox in traffic.inboxes:
                consumers.append(KafkaConsumer(self._cluster, inbox, traffic, options))
                await consumers[-1].start()
            traffic.up("a Kafka cluster")
            await first_to_end(self._producer.run(options, traffic), *(consumer.run() for consumer in consumers))
        finally:  # end them at once: the timeout of the attempt has room for one wait for unreachable brokers
            await all_to_end(*(consumer.end() for consumer in consumers))
