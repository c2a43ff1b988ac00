"""Tickets: the result of a commit for everything that joined it."""

from __future__ import annotations

from edge.broker.store.errors import StoreError


class Ticket:
    """Result of a commit, shared by all changes that joined its group. It is decided once, at the end of the commit.

    It is decided before any of the `commit_listeners` is called. A ticket without a commit is decided with an error
    when the store closes.
    """

    __slots__ = ("decided", "error")

    def __init__(self) -> None:
        self.decided = False
        self.error: StoreError | None = None
        """Error of a failed commit. None after the decision means: on disk."""

    def decide(self, error: StoreError | None) -> None:
        """Set the result. Only the store calls this. Raises RuntimeError when it is decided already."""
        if self.decided:
            raise RuntimeError("the ticket is decided already")
        self.decided, self.error = True, error


class BothTickets:
    """Combination of two tickets: decided with the later one, with the error of either."""

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
        """Error of either commit; None once both are on disk."""
        return self._one.error or self._other.error
