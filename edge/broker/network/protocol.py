"""Protocol between neighbours, without I/O: greetings, and statements that are passed on to everybody.

A link carries documents in order and loses none while it is up, so a statement is sent once. A new link begins with the
statements of all routers that its ends know. The shell calls `connected`, `received`, `lost` and `tick`; then it sends
what `take` returns, and acts on what `follow` returns.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from bridge.connectors.limits import ROUTER_HELLO_S
from edge.broker.limits import (
    NETWORK_GONE_S,
    NETWORK_HELLOS_MISSED_MAX,
    NETWORK_NEIGHBOURS_MAX,
)
from edge.broker.network.database import Applied, LinkStateDatabase, RouterRecord
from edge.broker.network.paths import PathTable
from edge.broker.network.statements import NUMBER_MAX, VERSION, Hello, NetworkDocument, Statement, StatementRequest

log = logging.getLogger(__name__)

CLASHES_MAX: Final = 3
"""Newer statements in our name from elsewhere within `NETWORK_GONE_S`: the first ones may be of our former process."""

CLASH_ANSWER_S: Final = 5.0
"""Shortest time between two answers to a router that has our name."""


class LinkFault(enum.Enum):
    """Reason for which a link to a neighbour cannot be used."""

    SAME_NAME = "the peer has the name of this router"
    VERSION = "the peer speaks another version of the routers' protocol"
    TOO_MANY = "this router has as many neighbours as it takes"
    SILENT = "the peer has not greeted in time"
    RENAMED = "the peer has changed its name"


class _RouterLink:
    """One link to a neighbour."""

    __slots__ = ("cost", "greeted_at", "heard_at", "interval_s", "router", "states_terms")

    def __init__(self, cost: int | None, interval_s: float, now: float) -> None:
        """`cost` None: the peer dials, and states cost and interval."""
        self.cost = cost
        self.states_terms = cost is not None
        self.interval_s = interval_s
        self.heard_at = now
        self.greeted_at = now
        self.router = ""
        """Name of the neighbour; empty before its first greeting."""


class LinkSummary(NamedTuple):
    """A link to a neighbour, for operators."""

    router: str
    cost: int


class NetworkProtocol:
    """One router's part of the protocol."""

    def __init__(self, router: str, instance: int) -> None:
        """`instance`: milliseconds since 1970 at the start."""
        self.router = router
        self.database = LinkStateDatabase()
        self._own = RouterRecord(router, instance)
        self.database.add(self._own)
        self._links: dict[int, _RouterLink] = {}
        self._output: list[tuple[int, NetworkDocument]] = []
        self._faults: list[tuple[int, LinkFault]] = []
        self.paths = PathTable({})
        """Paths by the present statements."""
        self.links_changed = False
        """True after paths may have changed; the shell resets it by `follow`."""
        self.changed: dict[str, None] = {}
        """Announced addresses that were added or removed anywhere."""
        self._gone_at: dict[str, float] = {}
        """Time at which a router could not be reached any more."""
        self._clashes: list[float] = []
        self._leaving = False
        self.clashing = False
        """True when another router of the network has our name."""

    # --- from the shell -----------------------------------------------------------------------------------------

    def connected(self, key: int, now: float, cost: int | None = None, interval_s: float = ROUTER_HELLO_S) -> None:
        """Greet the peer of a new link. `cost` and `interval_s` are set by the router that dials."""
        self._links[key] = link = _RouterLink(cost, interval_s, now)
        self._greet(key, link, now)

    def lost(self, key: int) -> None:
        """Forget a link that has ended."""
        link = self._links.pop(key, None)
        if link is not None and link.router:
            self.links_changed = True  # also with another link to the same neighbour: its messages take that one
            self._restate()

    def received(self, key: int, document: NetworkDocument, now: float) -> None:
        """Process a document of a neighbour."""
        link = self._links.get(key)
        if link is None:
            return
        link.heard_at = now
        if isinstance(document, Hello):
            self._greeted(key, link, document)
        elif not link.router:
            self._faults.append((key, LinkFault.VERSION))
        elif isinstance(document, Statement):
            self._stated(key, document, now)
        else:
            record = self.database.get(document.router)
            if record is not None:
                self._output.append((key, record.complete()))

    def heard(self, key: int, at: float) -> None:
        """Note that something has arrived over a link: greetings wait behind messages."""
        link = self._links.get(key)
        if link is not None:
            link.heard_at = max(link.heard_at, at)

    def announce(self, added: Collection[str], removed: Collection[str]) -> None:
        """State that consumers of these addresses have come or gone. The caller keeps to `NETWORK_ANNOUNCED_MAX`."""
        announced = self._own.announced
        gone = [name for name in removed if name in announced]
        new = [name for name in added if name not in announced]
        if (new or gone) and not self._leaving:
            self._pass_on(self._own.change(self._own.neighbours, new, gone), None)

    def leave(self) -> None:
        """State neither neighbours nor addresses from now on: no path leads here, and all routers send what is new over
        other ones. Links stay, for the answers to messages on their way."""
        self._leaving = self.links_changed = True
        self._pass_on(self._own.change({}, (), list(self._own.announced)), None)

    def tick(self, now: float) -> None:
        """Greet, find silent neighbours, and forget routers that are gone."""
        for key, link in list(self._links.items()):
            if now - link.heard_at > link.interval_s * NETWORK_HELLOS_MISSED_MAX:
                self._faults.append((key, LinkFault.SILENT))
            elif now - link.greeted_at >= link.interval_s:
                self._greet(key, link, now)
        if self.clashing and now - self._clashes[-1] > NETWORK_GONE_S:
            self.clashing = False
        reached = self.paths.tree(self.router)
        for record in self.database:
            if record.router in reached or record is self._own:
                self._gone_at.pop(record.router, None)
            elif now - self._gone_at.setdefault(record.router, now) > NETWORK_GONE_S:
                del self._gone_at[record.router]
                self.changed.update(record.announced)
                self.database.forget(record.router)

    def take(self) -> tuple[list[tuple[int, NetworkDocument]], list[tuple[int, LinkFault]]]:
        """Return documents to send, and links to close, each with the key of its link."""
        output, faults = self._output, self._faults
        self._output, self._faults = [], []
        return output, faults

    def follow(self) -> tuple[bool, Collection[str]]:
        """Return True if paths may have changed, and the announced addresses that have changed, since the last call."""
        links, changed = self.links_changed, self.changed
        if links:
            self.paths = PathTable({record.router: record.neighbours for record in self.database})
        self.links_changed, self.changed = False, {}
        return links, changed

    # --- state --------------------------------------------------------------------------------------------------

    @property
    def links(self) -> Mapping[int, LinkSummary]:
        """Usable links by key."""
        return {key: LinkSummary(each.router, each.cost or 1) for key, each in self._links.items() if each.router}

    def link_to(self, router: str) -> int | None:
        """Return the key of the cheapest link to a neighbour; None without one. Of equal ones it is the newest: the
        neighbour has dialed again, and the others may be dead."""
        keys = ((each.cost or 1, -key) for key, each in self._links.items() if each.router == router)
        found = min(keys, default=None)
        return None if found is None else -found[1]

    # --- inside -------------------------------------------------------------------------------------------------

    def _greet(self, key: int, link: _RouterLink, now: float) -> None:
        link.greeted_at = now
        terms = (link.cost, link.interval_s) if link.states_terms else (None, None)
        self._output.append((key, Hello(self.router, VERSION, *terms)))

    def _greeted(self, key: int, link: _RouterLink, hello: Hello) -> None:
        fault = self._fault_of(link, hello)
        if fault is not None:
            self._faults.append((key, fault))
            return
        terms = link.cost, link.interval_s
        if not link.states_terms:
            link.cost, link.interval_s = hello.cost or 1, hello.interval_s or link.interval_s
        if link.router != hello.router:
            link.router = hello.router
            self._output += [(key, record.complete()) for record in self.database]
            self.links_changed = True
            self._restate()
        elif terms != (link.cost, link.interval_s):
            self._restate()

    def _fault_of(self, link: _RouterLink, hello: Hello) -> LinkFault | None:
        if hello.version != VERSION:
            return LinkFault.VERSION
        if hello.router == self.router:
            return LinkFault.SAME_NAME
        if link.router and hello.router != link.router:
            return LinkFault.RENAMED
        routers = {each.router for each in self._links.values() if each.router}
        if not link.router and hello.router not in routers and len(routers) >= NETWORK_NEIGHBOURS_MAX:
            return LinkFault.TOO_MANY
        return None

    def _restate(self) -> None:
        """State our neighbours if they have changed."""
        neighbours: dict[str, int] = {}
        for link in self._links.values():
            if link.router:
                neighbours[link.router] = min(link.cost or 1, neighbours.get(link.router, link.cost or 1))
        if neighbours != self._own.neighbours and not self._leaving:
            self.links_changed = True
            self._pass_on(self._own.change(neighbours, (), ()), None)

    def _stated(self, key: int, statement: Statement, now: float) -> None:
        if statement.router == self.router:
            self._answer_former(statement, now)
            return
        before = self.database.get(statement.router)
        neighbours, announced = (None, {}) if before is None else (before.neighbours, before.announced)
        applied = self.database.apply(statement)
        if applied is Applied.GAP:
            self._output.append((key, StatementRequest(statement.router)))
        elif applied is Applied.TOO_MANY:
            log.warning("router network: the statement of %r was ignored: %s", statement.router, applied.value)
        elif applied is Applied.NEWER:
            self._pass_on(statement, key)
            if neighbours != statement.neighbours:
                self.links_changed = True
            if statement.base:
                self.changed.update(dict.fromkeys((*statement.added, *statement.removed)))
            else:
                self.changed.update(dict.fromkeys(announced.keys() ^ dict.fromkeys(statement.added).keys()))

    def _answer_former(self, statement: Statement, now: float) -> None:
        """Replace a statement in our name that we did not make: of a former process, or of a router with our name."""
        if (statement.instance, statement.version) <= self._own.stamp:
            return
        if self.clashing and now - self._clashes[-1] < CLASH_ANSWER_S:
            return  # the other one answers as well, without an end
        if statement.version > NUMBER_MAX // 2 and statement.instance == NUMBER_MAX:
            log.error("router network: a neighbour passes on a forged statement in the name %r", self.router)
            return
        self._clashes = [at for at in self._clashes if now - at < NETWORK_GONE_S] + [now]
        if len(self._clashes) > CLASHES_MAX and not self.clashing:
            self.clashing = True
            log.error(
                "router network: another router is called %r too; give each gateway a name of its own", self.router
            )
        self._own.outdo(statement.instance, statement.version)
        self._pass_on(self._own.complete(), None)

    def _pass_on(self, statement: Statement, received_over: int | None) -> None:
        """Send a statement to all neighbours, except over the link it came from."""
        self._output += [(key, statement) for key, link in self._links.items() if link.router and key != received_over]
