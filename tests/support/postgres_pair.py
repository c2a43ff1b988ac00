"""PostgreSQL with a synchronous standby that can be promoted."""

from __future__ import annotations

from typing import Self

from tests.support.postgres import Postgres


class PostgresPair:
    """Primary and standby; a context manager."""

    def __init__(self) -> None:
        self.primary = Postgres()
        self._standby: Postgres | None = None

    def __enter__(self) -> Self:
        self.primary.start()
        self.replicate()
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self.primary, self._standby):
            if server is not None:
                server.discard()

    def replicate(self) -> None:
        """Make a standby of the primary, unless there is one; return when commits wait for it."""
        if self._standby is None:
            self._standby = Postgres(standby_of=self.primary)
            self._standby.start()
            self.primary.wait_for_standby()

    def fail_over(self) -> None:
        """Lose the primary, and make the standby the primary."""
        assert self._standby is not None
        lost, self.primary, self._standby = self.primary, self._standby, None
        lost.discard()
        self.primary.promote()
