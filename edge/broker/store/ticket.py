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
