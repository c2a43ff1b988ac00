"""How an answer learns whether what it is about is on disk."""

from __future__ import annotations

from edge.broker.store.errors import StoreError


class Ticket:
    """The commit that something joined: shared by all that joined the same group, decided once, by its end.

    Decided before any of the `commit_listeners` is told. One that no commit will decide any more is decided with an
    error when the store closes.
    """

    __slots__ = ("decided", "error")

    def __init__(self) -> None:
        self.decided = False
        self.error: StoreError | None = None
        """Why the commit failed; None once it is decided means: on disk."""

    def decide(self, error: StoreError | None) -> None:
        """The store's alone. Raises RuntimeError when it was decided before."""
        if self.decided:
            raise RuntimeError("the commit is over already")
        self.decided, self.error = True, error


class BothTickets:
    """Two commits that one answer waits for. It is decided with the later one, with the error of either."""

    __slots__ = ("_one", "_other")

    def __init__(self, one: Ticket, other: Ticket) -> None:
        self._one = one
        self._other = other

    @property
    def decided(self) -> bool:
        """True once both commits are over."""
        return self._one.decided and self._other.decided

    @property
    def error(self) -> StoreError | None:
        """Why one of the commits failed; None once both are on disk."""
        return self._one.error or self._other.error
