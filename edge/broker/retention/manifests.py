"""The manifests of one connector: what was accepted of the addresses it forwards, stated for each hour.

Nothing is done a message: an address's sequences are dense, so the counters the store keeps anyway say at any time what
was accepted, also after a crash. Closing an hour compares them with what was stated last, and writes the statements,
what is stated now and the beginning of the next hour in one commit. Before that commit nothing has happened; after it
the statements wait in the store until the peer has them. Many addresses are stated some at a look, each time in such a
commit; the next hour begins with the last of them.

**Which hour.** An hour is an hour of the clock that messages are stamped with when they are received, as it was shown
then and never rewritten. A statement is of the hour in which its interval began, and ends when the clock shows another
one, whether that is the next, an earlier one, or decades later; at each start; and when it is asked for. So several
statements may be of one hour, each message is in exactly one, and an hour may be one of 1970 (`clock_quality` says so).
What is received in the last moment of an hour and committed after it is stated with the next.
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
"""Kind of the store's small state that holds a `ManifestState` by connector."""

PAGES_LOADED: Final = 16
"""Documents that wait kept in memory, some 10 KiB each."""


class Signer(Protocol):
    """The gateway's key."""

    @property
    def public_key(self) -> str:
        """Algorithm, colon, base64. Raises StoreError."""
        ...

    def sign(self, digest: str) -> str:
        """The signature of a digest, base64. Raises StoreError."""
        ...


class ManifestState(msgspec.Struct, array_like=True, frozen=True):
    """Where a connector's manifests stand."""

    gateway: str
    store_epoch: str
    hour: int
    """Since when what is accepted is not stated; UTC ns, a whole hour."""
    good: bool
    """The clock was kept right then."""
    closing: int
    """Number of the last statements of this gateway and `store_epoch`."""
    waiting: int
    """Statements that wait in the store."""
    pages: int
    """Documents made so far."""


class StatedAddress(msgspec.Struct, array_like=True, frozen=True):
    """What is stated of an address."""

    next: int = 0
    """First sequence that is not."""
    chain: tuple[str, str] = ("", "")
    """Gateway and epoch of the newest statement."""
    digest: str = GENESIS
    """Its digest."""
    lost: dict[str, int] = {}
    """By reason, what the ledger had of it then."""


class AddressChange(NamedTuple):
    """An address of which there is something to state."""

    address: str
    before: StatedAddress
    next: int
    lost: Mapping[str, int]
    parts: Sequence[tuple[str, int, int]]
    """(epoch, first, last)."""


class Manifests:
    """Made with a connector's reports; `look` is called every few seconds."""

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
        """`covers`: every message of this address is to be at the peer."""
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
        """What a former process accepted is stated, whatever hour it is."""
        self._taken = False
        self._good = True
        # With what one before this may have put, in a commit that is under way.
        self._ticket = None if self._head is None else self._put(self._head)
        """Of what was written to be read again, and is not known to be on disk."""
        self._stale = False
        """What waits has names that are no more."""
        self._changed: list[AddressChange] = []
        """What is still to be stated of the hour that is being closed."""
        self._pages: deque[tuple[str, bytes]] = deque()
        self._under_way = False
        self._sent = ""
        """Key of the last page the peer has."""
        reports.manifests.call_when_taken(self._takes)

    @property
    def stated_until(self) -> int | None:
        """The hour being gathered, UTC ns; None: the peer has not asked for manifests."""
        return None if self._head is None else self._head.hour

    @property
    def waiting(self) -> int:
        """Statements the peer has not got."""
        return 0 if self._head is None else self._head.waiting

    def ask(self) -> None:
        """State what was accepted until now from the next look on."""
        self._changed = []
        self._due = self._head is not None

    @property
    def asked(self) -> bool:
        """There is something to be stated at the next look."""
        return self._due

    def look(self, now_ns: int, *, clock_good: bool) -> None:
        """Close the hour when it is over. Where the store cannot be read it stays open, and is closed later."""
        now_ns = max(0, now_ns)
        self._good = self._good and clock_good
        try:
            self._look(now_ns, clock_good)
        except StoreError as error:
            log.warning("connector %s: the manifest is made later: %s", self._connector, error)
        self.feed()

    def _look(self, now_ns: int, clock_good: bool) -> None:
        if not self._written():
            return
        head = self._head
        if head is None:
            if self._taken:
                self._open(
                    ManifestState(self._gateway, self._lineage.epoch, _hour(now_ns), clock_good, 0, 0, 0), clock_good
                )
        elif self._stale or head.gateway != self._gateway:
            self._take_back(head)
        elif self._due or _hour(now_ns) != head.hour:
            self._close(head, now_ns, clock_good)

    def feed(self) -> None:
        """Send what waits, unless something is under way: its end comes back here."""
        if self._taken and not self._stale and not self._under_way and self._reports.manifests.credit > 0:
            try:
                self._send()
            except StoreError as error:
                log.warning("connector %s: the manifest is sent later: %s", self._connector, error)

    def _send(self) -> None:
        """Raises StoreError."""
        if self._head is None:
            return
        if not self._pages and self._head.waiting and self._written():
            waiting = (page for page in self._small_state.items(self._kind) if page[0] > self._sent)
            self._pages.extend(islice(waiting, PAGES_LOADED))
        if not self._pages:
            return
        key, page = self._pages[0]
        statements = msgspec.msgpack.decode(page, type=list[ManifestStatement])
        document = self._document(statements)
        self._under_way = True
        self._reports.manifest(document, partial(self._told, key, len(statements)))

    def restate(self) -> None:
        """Messages have other names than before: what waits is stated anew, and nothing leaves before."""
        self._changed = []
        self._pages.clear()
        self._under_way = False
        self._stale = self._head is not None

    def _take_back(self, head: ManifestState) -> None:
        """What waits goes back into the open hour. Raises StoreError; then nothing has happened."""
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
                self._state(address, StatedAddress(was.first_sequence, (head.gateway, was.epoch), was.previous, lost))
        for key, _ in pages:
            self._small_state.delete(self._kind, key)
        earliest = min(first.values(), key=lambda one: one.closing, default=None)
        same = head.gateway == self._gateway
        closing = 0 if not same else head.closing if earliest is None else earliest.closing - 1
        hour = head.hour if earliest is None else earliest.hour
        self._stale, self._due = False, True
        self._pages.clear()
        self._open(ManifestState(self._gateway, head.store_epoch, hour, head.good, closing, 0, head.pages), self._good)

    # --- closing an hour --------------------------------------------------------------------------------------

    def _close(self, head: ManifestState, now_ns: int, clock_good: bool) -> None:
        """State some addresses; the hour is over with the last of them. Raises StoreError; then nothing has
        happened."""
        if head.waiting >= STATEMENTS_KEPT_MAX:
            return  # the hour goes on: a statement of many hours rather than more than the store should keep
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
        self._open(following, self._good if left else clock_good)

    def _changes(self) -> Iterator[AddressChange]:
        """Addresses of which something was accepted or given up since they were stated."""
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
            self._state(address, StatedAddress(following, chain, digest, dict(lost)))

    def _all_stated(self) -> dict[str, StatedAddress]:
        decode = msgspec.msgpack.Decoder(StatedAddress).decode
        return {address: decode(value) for address, value in self._small_state.items(self._stated)}

    # --- what is written --------------------------------------------------------------------------------------

    def _state(self, address: str, stated: StatedAddress) -> None:
        self._small_state.put(self._stated, address, msgspec.msgpack.encode(stated))

    def _open(self, head: ManifestState, clock_good: bool) -> None:
        """In the commit of all that was put before it."""
        self._good = clock_good
        self._ticket = self._put(head)

    def _put(self, head: ManifestState) -> Ticket:
        self._head = head
        return self._small_state.put(HEADS, self._connector, msgspec.msgpack.encode(head))

    def _written(self) -> bool:
        """What was put is on disk, and can be read. What a failed commit held is in the next one."""
        ticket = self._ticket
        if ticket is not None and ticket.decided and ticket.error is not None and self._head is not None:
            self._ticket = ticket = self._put(self._head)
        if ticket is not None and not ticket.decided:
            return False
        self._ticket = None
        return True

    # --- towards the peer -------------------------------------------------------------------------------------

    def _takes(self) -> None:
        self._taken = True
        self.feed()

    def _told(self, key: str, statements: int, kept: bool) -> None:
        """The peer has it on disk, or will never understand it (which `Reports` has said in the log)."""
        self._under_way = False
        if not self._pages or self._pages[0][0] != key or self._head is None:
            return
        self._pages.popleft()
        self._sent = key
        self._small_state.delete(self._kind, key)
        waiting = max(0, self._head.waiting - statements)
        if not waiting and kept:
            log.info("connector %s: the manifest is at the peer", self._connector)
        self._put(msgspec.structs.replace(self._head, waiting=waiting))
        self.feed()

    def _document(self, statements: Sequence[ManifestStatement]) -> dict[str, Any]:
        """As `cloud.hub.documents.ManifestDocument` reads it."""
        sign = self._signer.sign
        return {
            "public_key": self._signer.public_key,
            "statements": [{**msgspec.structs.asdict(one), "signature": sign(one.digest)} for one in statements],
        }


def _hour(now_ns: int) -> int:
    return now_ns - now_ns % HOUR_NS


def _add(totals: dict[str, int], more: Mapping[str, int], sign: int) -> None:
    """Add, or take away; what falls to nothing is left out."""
    for name, number in more.items():
        totals[name] = totals.get(name, 0) + sign * number
        if totals[name] <= 0:
            del totals[name]
