"""Open transactions of one router, and their limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Final

from edge.broker.limits import (
    TRANSACTION_IDLE_S,
    TRANSACTION_MORE_BYTES,
    TRANSACTIONS_MAX,
    TRANSACTIONS_SHARE,
    TRANSACTIONS_USER_SHARE,
    Limits,
)
from edge.broker.model.interfaces import Origin
from edge.broker.model.isolation import call_isolated
from edge.broker.router.transactions.changes import TransactionFault, TransactionRefused
from edge.broker.router.transactions.commit import TransactionCommits, TransactionRouter
from edge.broker.router.transactions.transaction import Transaction
from edge.broker.store.contract import Store

NAME_BYTES: Final = 8
"""Bytes of a txn-id: the number of a transaction in this process."""


class Transactions:
    """Declares transactions, counts their memory, and ends idle ones. `edge.broker.router.router.Router` makes it when
    the first client attaches to the coordinator."""

    def __init__(self, router: TransactionRouter, store: Store, limits: Limits, now_s: Callable[[], float]) -> None:
        """`now_s`: monotonic seconds. The caller calls `tick`."""
        self.bytes = 0
        """Memory of all transactions."""
        self.bytes_max = limits.memory_bytes_max // TRANSACTIONS_SHARE
        self.bytes_each_max = limits.packet_bytes_max + TRANSACTION_MORE_BYTES
        self.now_s = now_s
        self._commits = TransactionCommits(router, store)
        self._numbers = count(1)
        self._open: dict[Transaction, None] = {}
        self._open_of: Counter[str] = Counter()
        """Open transactions by user."""
        self._bytes_of: Counter[str] = Counter()
        """Their memory."""

    def __len__(self) -> int:
        return len(self._open)

    def declare(self, party: Origin, charge: Callable[[int], None]) -> Transaction:
        """Begin a transaction of the user of `party`; for the parameters see `Transaction`. Raises
        TransactionRefused."""
        user = party.user
        most = TRANSACTIONS_MAX // TRANSACTIONS_USER_SHARE if user else TRANSACTIONS_MAX
        if len(self._open) >= TRANSACTIONS_MAX or self._open_of[user] >= most:
            raise TransactionRefused(TransactionFault.LIMIT, "too many transactions are open")
        name = next(self._numbers).to_bytes(NAME_BYTES, "big")
        transaction = Transaction(name, self, self._commits, party, charge, self.now_s())
        self._open[transaction] = None
        self._open_of[user] += 1
        return transaction

    def tick(self) -> None:
        """Roll back transactions that hold something and were idle for `limits.TRANSACTION_IDLE_S`."""
        oldest = self.now_s() - TRANSACTION_IDLE_S
        for transaction in list(self._open):
            if transaction.takes_changes and not transaction.is_empty and transaction.used_at_s <= oldest:
                call_isolated("an idle transaction", transaction.expire)

    # --- for transactions ---------------------------------------------------------------------------------------

    def reserve(self, transaction: Transaction, size: int) -> None:
        """See `transaction.TransactionMemory`."""
        user = transaction.user
        if transaction.bytes + size > self.bytes_each_max:
            text = f"a transaction holds at most {self.bytes_each_max >> 20} MiB"
            raise TransactionRefused(TransactionFault.LIMIT, text)
        most = self.bytes_max // TRANSACTIONS_USER_SHARE if user else self.bytes_max
        if self.bytes + size > self.bytes_max or self._bytes_of[user] + size > most:
            raise TransactionRefused(TransactionFault.LIMIT, "the open transactions hold too much memory")
        self.bytes += size
        self._bytes_of[user] += size

    def release(self, transaction: Transaction, size: int) -> None:
        """See `transaction.TransactionMemory`."""
        self.bytes -= size
        self._bytes_of[transaction.user] -= size
        if not self._bytes_of[transaction.user]:
            del self._bytes_of[transaction.user]

    def ended(self, transaction: Transaction) -> None:
        """See `transaction.TransactionMemory`."""
        if self._open.pop(transaction, 0) is None:
            self._open_of[transaction.user] -= 1
            if not self._open_of[transaction.user]:
                del self._open_of[transaction.user]
