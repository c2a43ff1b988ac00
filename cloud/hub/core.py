"""Parts that the services of a hub share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import sqlalchemy as sa

from cloud.hub.committer import Committer
from cloud.hub.fleet import FleetState
from cloud.hub.opening import HubConfiguration
from cloud.hub.registry.notices import ChangeHint, ChangeNotices, NoticeTopic


class HubCore(NamedTuple):
    """Shared parts, from which each service of one hub is made."""

    configuration: HubConfiguration
    registry: sa.URL
    writer: str
    """Writer id of this hub."""
    fleet: FleetState
    committer: Committer
    notices: ChangeNotices
    clock: Callable[[], float]
    """Monotonic seconds."""
    now_us: Callable[[], int]
    """UTC microseconds."""

    def hint(self, *topics: NoticeTopic) -> ChangeHint:
        """Return the hint that changes of these topics at other hubs give."""
        return self.notices.follow(*topics)
