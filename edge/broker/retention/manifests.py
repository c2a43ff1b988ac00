"""Manifests of one connector: statements of the messages that were accepted in each hour, by address.

Messages cost nothing here. The sequences of an address have no gaps, so the counters of the store show which messages
were accepted, even after a crash. Closing an hour compares the counters with the previous statements. One commit
contains the new statements, the last stated sequences and the start of the next hour. The statements then wait in the
store until the peer has confirmed them. With many addresses, each `poll` states some of them in a commit of its own;
the last of these commits starts the next hour.

**Hours.** Hours follow the clock that stamps messages, without later corrections. A statement covers an interval and
belongs to the hour in which the interval started. The interval ends when the clock shows another hour (the next one, an
earlier one, or one decades later), at each start, and on request. So an hour may have several statements, and each
message is in exactly one. The hour of a clock that was never set is in 1970; `clock_quality` tells. A message received
just before the end of an hour and committed after it is stated with the next hour.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from bridge.manifest import GENESIS, HOUR_NS, ManifestStatement
from bridge.reports import Reports
from edge.broker.limits import ADDRESSES_STATED_TOGETHER, STATEMENTS_A_DOCUMENT, STATEMENTS_KEPT_MAX
from edge.broker.store.contract import EpochLineage, LossLedger, SmallState
from edge.broker.store.errors import StoreError
from edge.broker.store.ticket import Ticket

log = logging.getLogger(__name__)

HEADS: Final = "manifest"
"""Kind of small state that holds a `ManifestState` by connector."""

PAGES_LOADED: Final = 16
"""Maximum number of waiting documents in memory; each has about 10 KiB."""


class Signer(Protocol):
    """Signs with the key of the gateway."""

    @property
    def public_key(self) -> str:
        """Public key: algorithm, colon, base64. Raises StoreError."""
        ...

    def sign(self, digest: str) -> str:
        """Return the signature of a digest, base64. Raises StoreError."""
        ...


class ManifestState(msgspec.Struct, array_like=True, frozen=True):
    """State of the manifests of one connector."""

    gateway: str
    store_epoch: str
    hour: int
    """Start of the open hour, UTC ns."""
    good: bool
    """True when the clock was synchronised at the start of the open hour."""
    closing: int
    """Number of the last closing, counted for each gateway and `store_epoch`."""
    waiting: int
    """Statements in the store that the peer has not confirmed."""
    pages: int
    """Documents created so far."""


class StatedAddress(msgspec.Struct, array_like=True, frozen=True):
    """Last statement of an address."""

    next: int = 0
    """First sequence that is not stated yet."""
    chain: tuple[str, str] = ("", "")
    """Gateway and epoch of the newest statement."""
    digest: str = GENESIS
    """Digest of the newest statement."""
    lost: dict[str, int] = {}
    """Dropped messages of the address in the ledger at that time, by reason."""


class AddressChange(NamedTuple):
    """Address with messages that no statement covers yet."""

    address: str
    before: StatedAddress
    next: int
    lost: Mapping[str, int]
    parts: Sequence[tuple[str, int, int]]
    """(epoch, first, last) of the accepted sequences."""


class Manifests:
    """Manifests of one connector. `poll` is called every few seconds."""

    def __init__(
        self,
        state: SmallState,
        lineage: EpochLineage,
        ledger: LossLedger,
        reports: Reports,
        connector: str,
        *,
        gateway: str,
        covers: Callable[[str], bool],
        signer: Signer,
    ) -> None:
        """`covers` returns True when every message of an address is forwarded to the peer."""
        self._small_state = state
        self._lineage = lineage
        self._ledger = ledger
        self._reports = reports
        self._connector = connector
        self._gateway = gateway
        self._covers = covers
        self._signer = signer
        self._subscriptions = f"forwarder/{connector}/"
        self._stated = f"manifest stated/{connector}"
        self._kind = f"manifest waiting/{connector}"
        value = dict(state.items(HEADS)).get(connector)
        self._head = None if value is None else msgspec.msgpack.decode(value, type=ManifestState)
        self._due = self._head is not None
        """True when the hour closes at the next `poll`, as after a restart."""
        self._taken = False
        self._good = True
        # Write the state again: once that is on disk, so are the values that a predecessor put into a pending commit.
        self._ticket = None if self._head is None else self._put(self._head)
        """Ticket of the last write; None when it is known to be on disk."""
        self._stale = False
        """True when waiting statements use outdated message names, and must be stated again."""
        self._changed: list[AddressChange] = []
        """Addresses that are not stated yet in the hour that is being closed."""
        self._pages: deque[tuple[str, bytes]] = deque()
        self._in_flight = False
        self._sent = ""
        """Key of the last page that the peer has confirmed."""
        reports.manifests.call_when_accepted(self._peer_ready)

    @property
    def stated_until(self) -> int | None:
        """Start of the open hour, UTC ns; None: the peer has not requested manifests."""
        return None if self._head is None else self._head.hour

    @property
    def waiting(self) -> int:
        """Number of statements that the peer has not confirmed."""
        return 0 if self._head is None else self._head.waiting

    def request_close(self) -> None:
        """Request to close the hour at the next `poll`."""
        self._changed = []
        self._due = self._head is not None

    @property
    def close_requested(self) -> bool:
        """True when the hour closes at the next `poll`."""
        return self._due

    def poll(self, now_ns: int, *, clock_good: bool) -> None:
        """Close the hour when it is over. If the store cannot be read, retry at the next call."""
        now_ns = max(0, now_ns)
        self._good = self._good and clock_good
        try:
            self._update(now_ns, clock_good)
        except StoreError as error:
            log.warning("connector %s: cannot create the manifest, retrying later: %s", self._connector, error)
        self.feed()

    def _update(self, now_ns: int, clock_good: bool) -> None:
        if not self._written():
            return
        head = self._head
        if head is None:
            if self._taken:
                self._write_state(
                    ManifestState(self._gateway, self._lineage.epoch, _hour(now_ns), clock_good, 0, 0, 0), clock_good
                )
        elif self._stale or head.gateway != self._gateway:
            self._reopen_hour(head)
        elif self._due or _hour(now_ns) != head.hour:
            self._close(head, now_ns, clock_good)

    def feed(self) -> None:
        """Send a waiting document, unless one is in flight. Its confirmation calls `feed` again."""
        if self._taken and not self._stale and not self._in_flight and self._reports.manifests.credit > 0:
            try:
                self._send()
            except StoreError as error:
                log.warning("connector %s: cannot send the manifest, retrying later: %s", self._connector, error)

    def _send(self) -> None:
        """Send the oldest waiting document. Raises StoreError."""
        if self._head is None:
            return
        if not self._pages and self._head.waiting and self._written():
            waiting = (page for page in self._small_state.items(self._kind) if page[0] > self._sent)
            self._pages.extend(islice(waiting, PAGES_LOADED))
        if not self._pages:
            return
        key, page = self._pages[0]
        statements = msgspec.msgpack.decode(page, type=list[ManifestStatement])
        document = self._signed_document(statements)
        self._in_flight = True
        self._reports.manifest(document, partial(self._confirmed, key, len(statements)))

    def restate(self) -> None:
        """Replace waiting statements, because the names of their messages have changed; send nothing before."""
        self._changed = []
        self._pages.clear()
        self._in_flight = False
        self._stale = self._head is not None

    def _reopen_hour(self, head: ManifestState) -> None:
        """Move waiting statements back into the open hour. Raises StoreError; then nothing has changed."""
        self._changed = []
        pages = list(self._small_state.items(self._kind))
        first: dict[str, ManifestStatement] = {}
        given: dict[str, dict[str, int]] = {}
        for key, page in pages:
            if key > self._sent:
                for statement in msgspec.msgpack.decode(page, type=list[ManifestStatement]):
                    first.setdefault(statement.address, statement)
                    _add(given.setdefault(statement.address, {}), statement.given_up, 1)
        for address, stated in (self._all_stated() if first else {}).items():
            if (was := first.get(address)) is not None:
                lost = dict(stated.lost)
                _add(lost, given[address], -1)
                self._put_address(
                    address, StatedAddress(was.first_sequence, (head.gateway, was.epoch), was.previous, lost)
                )
        for key, _ in pages:
            self._small_state.delete(self._kind, key)
        earliest = min(first.values(), key=lambda one: one.closing, default=None)
        same = head.gateway == self._gateway
        closing = 0 if not same else head.closing if earliest is None else earliest.closing - 1
        hour = head.hour if earliest is None else earliest.hour
        self._stale, self._due = False, True
        self._pages.clear()
        self._write_state(
            ManifestState(self._gateway, head.store_epoch, hour, head.good, closing, 0, head.pages), self._good
        )

    # --- closing an hour --------------------------------------------------------------------------------------

    def _close(self, head: ManifestState, now_ns: int, clock_good: bool) -> None:
        """State some addresses, and close the hour with the last of them. Raises StoreError; then nothing has
        changed."""
        if head.waiting >= STATEMENTS_KEPT_MAX:
            return  # keep the hour open: one statement of many hours instead of too many in the store
        if not self._changed:
            self._changed = list(self._changes())
        changes, left = self._changed[:ADDRESSES_STATED_TOGETHER], self._changed[ADDRESSES_STATED_TOGETHER:]
        total = sum(len(change.parts) for change in changes)
        number = (head.closing if head.store_epoch == self._lineage.epoch else 0) + bool(changes)
        pages = head.pages
        statements = self._statements(changes, head, now_ns, number, total)
        while page := list(islice(statements, STATEMENTS_A_DOCUMENT)):
            pages += 1
            self._small_state.put(self._kind, f"{pages:016}", msgspec.msgpack.encode(page))
        self._changed, self._due = left, bool(left)
        hour, good = (head.hour, head.good) if left else (_hour(now_ns), clock_good)
        waiting = head.waiting + total
        following = ManifestState(self._gateway, self._lineage.epoch, hour, good, number, waiting, pages)
        self._write_state(following, self._good if left else clock_good)

    def _changes(self) -> Iterator[AddressChange]:
        """Return addresses with messages accepted or dropped since their last statement."""
        stated, lost = self._all_stated(), self._ledger.lost(self._subscriptions)
        for address, following in self._lineage.sequences():
            before, gone = stated.get(address, StatedAddress()), lost.get(address, {})
            if (following <= before.next and gone == before.lost) or not self._covers(address):
                continue
            if following > before.next:
                parts = list(self._lineage.epochs.parts(address, before.next, following - 1))
            else:
                parts = [(self._lineage.epochs.of(address, following), following, following - 1)]
            yield AddressChange(address, before, following, gone, parts)

    def _statements(
        self, changes: Sequence[AddressChange], head: ManifestState, now_ns: int, number: int, total: int
    ) -> Iterator[ManifestStatement]:
        quality = "good" if head.good and self._good else "unknown"
        for address, before, following, lost, parts in changes:
            chain, digest = before.chain, before.digest
            for index, (epoch, first, last) in enumerate(parts):
                given: dict[str, int] = dict(lost) if index + 1 == len(parts) else {}
                if given:
                    _add(given, before.lost, -1)
                statement = ManifestStatement(
                    epoch,
                    address,
                    head.hour,
                    now_ns // 1_000 * 1_000,
                    first,
                    last,
                    last + 1 - first,
                    given,
                    quality,
                    self._lineage.epoch,
                    number,
                    total,
                    digest if chain == (self._gateway, epoch) else GENESIS,
                ).sealed(self._gateway)
                chain, digest = (self._gateway, epoch), statement.digest
                yield statement
            self._put_address(address, StatedAddress(following, chain, digest, dict(lost)))

    def _all_stated(self) -> dict[str, StatedAddress]:
        decode = msgspec.msgpack.Decoder(StatedAddress).decode
        return {address: decode(value) for address, value in self._small_state.items(self._stated)}

    # --- store ------------------------------------------------------------------------------------------------

    def _put_address(self, address: str, stated: StatedAddress) -> None:
        self._small_state.put(self._stated, address, msgspec.msgpack.encode(stated))

    def _write_state(self, head: ManifestState, clock_good: bool) -> None:
        """Write the state, in the same commit as all values put before it."""
        self._good = clock_good
        self._ticket = self._put(head)

    def _put(self, head: ManifestState) -> Ticket:
        self._head = head
        return self._small_state.put(HEADS, self._connector, msgspec.msgpack.encode(head))

    def _written(self) -> bool:
        """Return True when all values are on disk. After a failed commit they are in the next one."""
        ticket = self._ticket
        if ticket is not None and ticket.decided and ticket.error is not None and self._head is not None:
            self._ticket = ticket = self._put(self._head)
        if ticket is not None and not ticket.decided:
            return False
        self._ticket = None
        return True

    # --- transfer to the peer ---------------------------------------------------------------------------------

    def _peer_ready(self) -> None:
        self._taken = True
        self.feed()

    def _confirmed(self, key: str, statements: int, kept: bool) -> None:
        """Continue after the peer stored the document, or rejected it (`Reports` logs that)."""
        self._in_flight = False
        if not self._pages or self._pages[0][0] != key or self._head is None:
            return
        self._pages.popleft()
        self._sent = key
        self._small_state.delete(self._kind, key)
        waiting = max(0, self._head.waiting - statements)
        if not waiting and kept:
            log.info("connector %s: the peer has confirmed the manifest", self._connector)
        self._put(msgspec.structs.replace(self._head, waiting=waiting))
        self.feed()

    def _signed_document(self, statements: Sequence[ManifestStatement]) -> dict[str, Any]:
        """Return the signed document that `cloud.hub.documents.ManifestDocument` reads."""
        sign = self._signer.sign
        return {
            "public_key": self._signer.public_key,
            "statements": [{**msgspec.structs.asdict(one), "signature": sign(one.digest)} for one in statements],
        }


def _hour(now_ns: int) -> int:
    return now_ns - now_ns % HOUR_NS


def _add(totals: dict[str, int], more: Mapping[str, int], sign: int) -> None:
    """Add or subtract numbers, and remove those that reach zero."""
    for name, number in more.items():
        totals[name] = totals.get(name, 0) + sign * number
        if totals[name] <= 0:
            del totals[name]
