"""The consumer of one incoming forwarder: a member of its consumer group, which tells the cluster what is on disk here.

An offset is committed when every record before it has its answer. What is not committed when a connection ends or a
partition goes to another member of the group comes again, and is found out by its name. aiokafka takes all partitions
away whenever the group changes, and begins each it gets at what is committed: so records of before are of no interest
from then on.
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

from bridge.client_attempt import Carriage, ConnectorError
from bridge.connectors.coroutines import first_to_end
from bridge.connectors.kafka.cluster import Cluster
from bridge.connectors.kafka.offsets import Offsets
from bridge.connectors.kafka.reasons import words
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
    """Of one incoming forwarder over one connection."""

    def __init__(self, cluster: Cluster, inbox: ForwarderInbox, carriage: Carriage, reached: dict[str, Any]) -> None:
        """`reached`: as `Cluster.reach` gave it."""
        self._inbox = inbox
        self._carriage = carriage
        self._topic = topic_of(inbox.remote)
        self._consumer = AIOKafkaConsumer(
            **reached,
            group_id=cluster.settings.group or f"{cluster.identity.client_id}.{self._topic}",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            fetch_max_bytes=KAFKA_FETCH_BYTES_MAX,
            max_partition_fetch_bytes=KAFKA_FETCH_BYTES_MAX,
        )
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[TopicPartition, Offsets] = {}
        """Those that are ours now, as far as a record of them came."""
        self._revoking = False
        self._tokens = count()
        self._answered = asyncio.Event()
        self._committing = asyncio.Lock()
        self._failed: asyncio.Future[None] = self._loop.create_future()

    async def start(self) -> None:
        """Connect; whatever comes of it, `end` it. Raises ConnectorError, TimeoutError."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._consumer.start()
        except KafkaError as error:
            raise ConnectorError(words(error)) from None

    async def run(self) -> None:
        """Join the group, and take what comes until the consumer fails: ConnectorError."""
        self._consumer.subscribe([self._topic], listener=self)
        await first_to_end(self._take(), self._commit_what_is_answered(), self._watch(), self._fail())

    # --- the group --------------------------------------------------------------------------------------------

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """The group changes: what was taken is waited for and committed, so that nobody gets it again."""
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
        """These are ours, from what is committed on."""
        self._revoking = False
        numbers = ", ".join(str(each.partition) for each in sorted(assigned)) or "none"
        log.info("%s: has the partitions %s of %s", self._inbox.name, numbers, self._topic)

    # --- records ----------------------------------------------------------------------------------------------

    async def _take(self) -> None:
        while True:
            await self._carriage.room(self._inbox)
            try:
                if sum(offsets.uncommitted for offsets in self._partitions.values()) > KAFKA_UNCOMMITTED_MAX:
                    await self._commit()
                fetched = await self._consumer.getmany(timeout_ms=1000, max_records=KAFKA_RECORDS_MAX)
            except KafkaError as error:
                raise ConnectorError(words(error)) from None
            if self._revoking:  # of before: they come again, to whoever has their partition then
                continue
            taken = [(self._partitions.setdefault(of, Offsets()), of, records) for of, records in fetched.items()]
            for offsets, partition, records in taken:
                await self._give(offsets, partition, records)

    async def _give(self, offsets: Offsets, partition: TopicPartition, records: Sequence[Any]) -> None:
        for record in records:
            await self._carriage.room(self._inbox)
            if self._revoking or self._partitions.get(partition) is not offsets:
                return
            offsets.taken(record.offset)
            arrived = arrival(next(self._tokens), record)
            self._carriage.give(self._inbox, arrived, partial(self._on_answer, offsets, record.offset))

    def _on_answer(self, offsets: Offsets, offset: int, outcome: ForwardOutcome) -> None:
        if outcome is not ForwardOutcome.RELEASED:
            offsets.answered(offset)
            self._answered.set()
        elif not self._failed.done():
            self._failed.set_exception(ConnectorError("a record was not taken here; it is fetched again"))

    # --- commits ----------------------------------------------------------------------------------------------

    async def _commit_what_is_answered(self) -> None:
        while True:
            await asyncio.sleep(KAFKA_COMMIT_INTERVAL_S)
            try:
                await self._commit()
            except KafkaError as error:
                raise ConnectorError(words(error)) from None

    async def _commit(self) -> None:
        """Tell the cluster what is here for good, where that has changed. Raises KafkaError."""
        async with self._committing:
            changed = [(of, offsets, offsets.done) for of, offsets in self._partitions.items() if offsets.uncommitted]
            if not changed:
                return
            try:
                await self._consumer.commit({partition: done for partition, _, done in changed})
            except (CommitFailedError, IllegalStateError, RebalanceInProgressError) as error:
                log.debug("%s: not committed, as the group changes: %s", self._inbox.name, error)
                return
            for _, offsets, done in changed:
                offsets.committed(done)

    # --- its end ----------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """The library looks for lost brokers for ever, in silence: ask them something now and then."""
        said = False
        while True:
            await asyncio.sleep(KAFKA_ANSWER_TIMEOUT_S / 3)
            assigned = self._consumer.assignment()
            if not said and self._consumer.partitions_for_topic(self._topic) is None:
                said = True
                log.warning("%s: the topic %s is not there yet: create it there", self._inbox.name, self._topic)
            if assigned:
                try:
                    async with asyncio.timeout(KAFKA_ANSWER_TIMEOUT_S):
                        await self._consumer.end_offsets(assigned)
                except TimeoutError:
                    raise ConnectorError(
                        f"the brokers have answered nothing for {KAFKA_ANSWER_TIMEOUT_S:g} s"
                    ) from None
                except IllegalStateError:
                    continue  # the group has just changed
                except KafkaError as error:
                    raise ConnectorError(words(error)) from None

    async def _fail(self) -> None:
        await self._failed

    async def end(self) -> None:
        """Commit what is answered and leave the group; brokers that are gone are not waited for."""
        with contextlib.suppress(TimeoutError, KafkaError):
            async with asyncio.timeout(KAFKA_CLOSE_TIMEOUT_S):
                await self._commit()
                await self._consumer.stop()
                return
        # `stop` waits for the brokers' answers first, and ends the library's tasks and connections after that.
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
