"""Consumer of one incoming forwarder: a member of its consumer group, which commits offsets of records on disk here.

An offset is committed when every record before it is answered. Records that are not committed when a connection ends or
a partition moves to another member come again, and are detected by their names. aiokafka revokes all partitions at each
rebalance and starts each new one at the committed offset, so records fetched before are dropped then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError, RebalanceInProgressError

from bridge.client_attempt import ConnectorError, ConnectorTraffic
from bridge.connectors.coroutines import first_to_end
from bridge.connectors.kafka.cluster import Cluster
from bridge.connectors.kafka.offsets import Offsets
from bridge.connectors.kafka.reasons import describe_error
from bridge.connectors.kafka.record import arrival, topic_of
from bridge.connectors.limits import (
    CONNECT_TIMEOUT_S,
    KAFKA_ANSWER_TIMEOUT_S,
    KAFKA_CLOSE_TIMEOUT_S,
    KAFKA_COMMIT_INTERVAL_S,
    KAFKA_FETCH_BYTES_MAX,
    KAFKA_RECORDS_MAX,
    KAFKA_REVOKED_TIMEOUT_S,
    KAFKA_UNCOMMITTED_MAX,
)
from bridge.forwarders.inbox import ForwarderInbox
from bridge.forwarders.outcome import ForwardOutcome

log = logging.getLogger(__name__)


class KafkaConsumer(ConsumerRebalanceListener):  # type: ignore[misc]
    """Consumer of one incoming forwarder over one connection."""

    def __init__(
        self, cluster: Cluster, inbox: ForwarderInbox, traffic: ConnectorTraffic, options: dict[str, Any]
    ) -> None:
        """`options`: result of `Cluster.connect`."""
        self._inbox = inbox
        self._traffic = traffic
        self._topic = topic_of(inbox.remote)
        self._consumer = AIOKafkaConsumer(
            **options,
            group_id=cluster.settings.group or f"{cluster.identity.client_id}.{self._topic}",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            fetch_max_bytes=KAFKA_FETCH_BYTES_MAX,
            max_partition_fetch_bytes=KAFKA_FETCH_BYTES_MAX,
        )
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[TopicPartition, Offsets] = {}
        """Offsets of the assigned partitions with a received record."""
        self._revoking = False
        self._tokens = count()
        self._answered = asyncio.Event()
        self._committing = asyncio.Lock()
        self._failed: asyncio.Future[None] = self._loop.create_future()

    async def start(self) -> None:
        """Connect; call `end` in any case. Raises ConnectorError, TimeoutError."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._consumer.start()
        except KafkaError as error:
            raise ConnectorError(describe_error(error)) from None

    async def run(self) -> None:
        """Join the group, and take records until the consumer fails. Raises ConnectorError."""
        self._consumer.subscribe([self._topic], listener=self)
        await first_to_end(self._take(), self._commit_answered(), self._watch(), self._fail())

    # --- the group --------------------------------------------------------------------------------------------

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Wait for the answers to taken records and commit them, so that no other member gets them again."""
        self._revoking = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KAFKA_REVOKED_TIMEOUT_S):
                while any(offsets.open for offsets in self._partitions.values()):
                    self._answered.clear()
                    await self._answered.wait()
        with contextlib.suppress(KafkaError):
            await self._commit()
        self._partitions.clear()

    def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        """Log the assigned partitions, which start at the committed offsets."""
        self._revoking = False
        numbers = ", ".join(str(each.partition) for each in sorted(assigned)) or "none"
        log.info("%s: has the partitions %s of %s", self._inbox.name, numbers, self._topic)

    # --- records ----------------------------------------------------------------------------------------------

    async def _take(self) -> None:
        while True:
            await self._traffic.room(self._inbox)
            try:
                if sum(offsets.uncommitted for offsets in self._partitions.values()) > KAFKA_UNCOMMITTED_MAX:
                    await self._commit()
                fetched = await self._consumer.getmany(timeout_ms=1000, max_records=KAFKA_RECORDS_MAX)
            except KafkaError as error:
                raise ConnectorError(describe_error(error)) from None
            if self._revoking:  # fetched before the rebalance: the next owner of the partition gets them
                continue
            taken = [(self._partitions.setdefault(of, Offsets()), of, records) for of, records in fetched.items()]
            for offsets, partition, records in taken:
                await self._give(offsets, partition, records)

    async def _give(self, offsets: Offsets, partition: TopicPartition, records: Sequence[Any]) -> None:
        for record in records:
            await self._traffic.room(self._inbox)
            if self._revoking or self._partitions.get(partition) is not offsets:
                return
            offsets.taken(record.offset)
            arrived = arrival(next(self._tokens), record)
            self._traffic.give(self._inbox, arrived, partial(self._on_answer, offsets, record.offset))

    def _on_answer(self, offsets: Offsets, offset: int, outcome: ForwardOutcome) -> None:
        if outcome is not ForwardOutcome.RELEASED:
            offsets.record(offset)
            self._answered.set()
        elif not self._failed.done():
            self._failed.set_exception(ConnectorError("a record was not accepted here; it is fetched again"))

    # --- commits ----------------------------------------------------------------------------------------------

    async def _commit_answered(self) -> None:
        while True:
            await asyncio.sleep(KAFKA_COMMIT_INTERVAL_S)
            try:
                await self._commit()
            except KafkaError as error:
                raise ConnectorError(describe_error(error)) from None

    async def _commit(self) -> None:
        """Commit the offsets that have changed. Raises KafkaError."""
        async with self._committing:
            changed = [(of, offsets, offsets.done) for of, offsets in self._partitions.items() if offsets.uncommitted]
            if not changed:
                return
            try:
                await self._consumer.commit({partition: done for partition, _, done in changed})
            except (CommitFailedError, IllegalStateError, RebalanceInProgressError) as error:
                log.debug("%s: offsets not committed, as the group is rebalancing: %s", self._inbox.name, error)
                return
            for _, offsets, done in changed:
                offsets.committed(done)

    # --- the end ----------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Send a request to the brokers regularly: the library retries lost brokers forever, without an error."""
        warned = False
        while True:
            await asyncio.sleep(KAFKA_ANSWER_TIMEOUT_S / 3)
            assigned = self._consumer.assignment()
            if not warned and self._consumer.partitions_for_topic(self._topic) is None:
                warned = True
                log.warning("%s: the topic %s does not exist; create it in the cluster", self._inbox.name, self._topic)
            if assigned:
                try:
                    async with asyncio.timeout(KAFKA_ANSWER_TIMEOUT_S):
                        await self._consumer.end_offsets(assigned)
                except TimeoutError:
                    raise ConnectorError(f"no answer from the brokers for {KAFKA_ANSWER_TIMEOUT_S:g} s") from None
                except IllegalStateError:
                    continue  # the group has just changed
                except KafkaError as error:
                    raise ConnectorError(describe_error(error)) from None

    async def _fail(self) -> None:
        await self._failed

    async def end(self) -> None:
        """Commit answered records and leave the group; do not wait for lost brokers."""
        with contextlib.suppress(TimeoutError, KafkaError):
            async with asyncio.timeout(KAFKA_CLOSE_TIMEOUT_S):
                await self._commit()
                await self._consumer.stop()
                return
        # `stop` waits for answers of the brokers before it ends the library's tasks and connections
        consumer = self._consumer
        consumer._closed = True
        if consumer._coordinator is not None:
            consumer._coordinator._closing.done() or consumer._coordinator._closing.set_result(None)
            consumer._coordinator._coordination_task.cancel()
            await asyncio.wait((consumer._coordinator._coordination_task,))
            await consumer._coordinator._stop_heartbeat_task()
            await consumer._coordinator._stop_commit_offsets_refresh_task()
        if consumer._fetcher is not None:
            await consumer._fetcher.close()
        await consumer._client.close()
