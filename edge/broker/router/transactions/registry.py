"""Open transactions of one router, and their limits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final

from edge.broker.limits import TRANSACTION_IDLE_S, TRANSACTIONS_BYTES_MAX, TRANSACTIONS_MAX
from edge.broker.model.interfaces import Origin
from edge.broker.router.transactions.changes import TransactionFault, TransactionRefused
from edge.broker.router.transactions.commit import TransactionCommits, TransactionRouter
from edge.broker.router.transactions.transaction import Transaction
from edge.broker.store.contract import Store

NAME_BYTES: Final = 8
"""Bytes of a txn-id: the number of a transaction in this process."""


class Transactions:
    """Declares transactions, counts their memory, and ends idle ones. `edge.broker.router.router.Router` makes it when
    the first client attaches to the coordinator."""

    def __init__(self, router: TransactionRouter, store: Store, now_s: Callable[[], float]) -> None:
        """`now_s`: monotonic seconds. The caller calls `tick`."""
        self.bytes = 0
        """Memory of all transactions."""
        self.now_s = now_s
        self._commits = TransactionCommits(router, store)
        self._numbers = count(1)
        self._open: dict[Transaction, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def declare(self, party: Origin, charge: Callable[[int], None]) -> Transaction:
        """Begin a transaction; for the parameters see `Transaction`. Raises TransactionRefused."""
        if len(self._open) >= TRANSACTIONS_MAX:
            raise TransactionRefused(TransactionFault.LIMIT, f"{TRANSACTIONS_MAX} transactions are open")
        name = next(self._numbers).to_bytes(NAME_BYTES, "big")
        transaction = Transaction(name, self, self._commits, party, charge, self.now_s())
        self._open[transaction] = None
        return transaction

    def tick(self) -> None:
        """Roll back transactions that hold something and were idle for `limits.TRANSACTION_IDLE_S`."""
        oldest = self.now_s() - TRANSACTION_IDLE_S
        for transaction in list(self._open):
            if transaction.takes_changes and not transaction.is_empty and transaction.used_at_s <= oldest:
                transaction.expire()

    # --- for transactions ---------------------------------------------------------------------------------------

    def reserve(self, size: int) -> None:
        """See `transaction.TransactionMemory`."""
        if self.bytes + size > TRANSACTIONS_BYTES_MAX:
            text = f"all open transactions hold at most {TRANSACTIONS_BYTES_MAX >> 20} MiB"
            raise TransactionRefused(TransactionFault.LIMIT, text)
        self.bytes += size

    def release(self, size: int) -> None:
        """See `transaction.TransactionMemory`."""
        self.bytes -= size

    def ended(self, transaction: Transaction) -> None:
        """See `transaction.TransactionMemory`."""
        self._open.pop(transaction, None)
