"""Sessions and links: attach, refuse and detach from either end, and the limits that Proton leaves to its user.

`Links` turns Proton's events of sessions and links into ours. `machine` handles what flows over the links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cproton import lib

from bridge.engine.events import Attached, Detached, Event, SessionEnded
from bridge.engine.link import (
    CAPABILITIES_DESIRED,
    CAPABILITIES_OFFERED,
    Deliveries,
    Link,
    link_properties,
    symbols,
)
from bridge.engine.proton import (
    address_of,
    data_bytes,
    encoded_bytes,
    read_condition,
    read_map,
    read_terminus,
    text,
    write_condition,
    write_map,
    write_terminus,
)
from bridge.engine.states import Condition
from bridge.engine.terminus import Terminus, TerminusKind

LINK_BYTES = 6 * 1024
"""Memory of a link: 3.5 KiB in the engine and in Proton, the rest in its owner."""

DELIVERY_BYTES = 500
"""Memory of an unsettled delivery, in Proton and in the engine."""

ATTACH_MAPS_BYTES_MAX = 16 * 1024
"""Encoded properties, filters, capabilities and outcomes of one attach: a selector is the largest of them. A frame of
64 KiB of them would take 3 MiB, and 50 ms to read."""

SESSION_BYTES = 3_500
"""Memory of a session."""


class Links:
    """All links of one connection."""

    __slots__ = (
        "_connection", "_link_bytes", "_links_max", "_message_bytes_max", "_session", "_sessions_max", "by_address",
        "deliveries", "over", "sessions",
    )  # fmt: skip

    def __init__(self, connection: Any, *, links_max: int, sessions_max: int, message_bytes_max: int) -> None:
        """`connection`: a ``pn_connection_t``. `links_max`, `sessions_max`: limits for the peer; `message_bytes_max`:
        limit of one incoming message, unless an attach sets another one."""
        self.by_address: dict[int, Link] = {}
        """Links by the address of their ``pn_link_t``, until the peer's detach has arrived."""
        self.over = False
        """The connection is over: no link is attached."""
        self._connection = connection
        self.deliveries = Deliveries()
        """Deliveries of all links."""
        self._links_max = links_max
        self._link_bytes = 0
        """Memory of the links that the peer attached."""
        self.sessions: list[int] = []
        """Addresses of the ``pn_session_t`` that the peer has opened."""
        self._sessions_max = sessions_max
        self._message_bytes_max = message_bytes_max
        self._session: Any = None  # session of our own links; created on first use

    def __iter__(self) -> Iterator[Link]:
        """Iterate over all links that are not over."""
        return iter([link for link in self.by_address.values() if not link.closed])

    @property
    def held_bytes(self) -> int:
        """Memory of sessions, links, unsettled deliveries and incomplete messages. The first session is not counted, as
        every connection has one."""
        held = self._link_bytes
        if len(self.sessions) > 1:
            held += SESSION_BYTES * (len(self.sessions) - 1)
        held += sum(map(len, self.deliveries.partial.values()))
        return held + DELIVERY_BYTES * self.deliveries.unsettled

    # --- commands ---------------------------------------------------------------------------------------------

    def attach(
        self,
        is_sender: bool,
        name: str,
        source: Terminus | str | None,
        target: Terminus | str | None,
        desired_capabilities: Sequence[str],
        properties: Mapping[Any, Any] | None,
        snd_settle_mode: int,
        max_message_size: int,
    ) -> Link:
        """Attach our own link; see `Engine.attach_sender` and `Engine.attach_receiver`."""
        if self.over:
            link = Link(None, None, name, is_sender=is_sender, ours=True)
            link.closed = True
            return link
        if self._session is None:
            self._session = lib.pn_session(self._connection)
            lib.pn_session_open(self._session)
        pn = (lib.pn_sender if is_sender else lib.pn_receiver)(self._session, name.encode())
        link = self._added(pn, self._session, name, is_sender=is_sender, ours=True)
        write_terminus(lib.pn_link_source(pn), _terminus(source, TerminusKind.SOURCE))
        write_terminus(lib.pn_link_target(pn), _terminus(target, TerminusKind.TARGET))
        lib.pn_link_set_snd_settle_mode(pn, snd_settle_mode)
        if not is_sender:
            self._limit(link, max_message_size)
        write_map(lib.pn_link_properties(pn), link_properties(properties, desired_capabilities, ()))
        lib.pn_link_open(pn)
        return link

    def accept(
        self,
        link: Link,
        source: Terminus | None,
        target: Terminus | None,
        offered_capabilities: Sequence[str],
        max_message_size: int,
        properties: Mapping[Any, Any] | None,
    ) -> None:
        """See `Engine.accept`; the link must be open, also for the methods below."""
        pn = link._pn
        for mine, theirs, given in (
            (lib.pn_link_source(pn), lib.pn_link_remote_source(pn), source),
            (lib.pn_link_target(pn), lib.pn_link_remote_target(pn), target),
        ):
            if given is None:
                lib.pn_terminus_copy(mine, theirs)
            else:
                write_terminus(mine, given)
        lib.pn_link_set_snd_settle_mode(pn, link.snd_settle_mode)
        lib.pn_link_set_rcv_settle_mode(pn, 0 if not link.is_sender else link.rcv_settle_mode)
        self._limit(link, max_message_size)
        write_map(lib.pn_link_properties(pn), link_properties(properties, (), offered_capabilities))
        lib.pn_link_open(pn)
        link.attached = True

    def refuse(self, link: Link, condition: Condition) -> None:
        """See `Engine.refuse`."""
        pn = link._pn
        if link.is_sender:
            lib.pn_terminus_copy(lib.pn_link_target(pn), lib.pn_link_remote_target(pn))
            write_terminus(lib.pn_link_source(pn), Terminus())
        else:
            lib.pn_terminus_copy(lib.pn_link_source(pn), lib.pn_link_remote_source(pn))
            write_terminus(lib.pn_link_target(pn), Terminus())
        self.detach(link, condition=condition)

    def detach(self, link: Link, *, closed: bool = True, condition: Condition | None = None) -> None:
        """See `Engine.detach`."""
        link.closed = True
        self.deliveries.partial.pop(link, None)
        pn = link._pn
        write_condition(lib.pn_link_condition(pn), condition)
        lib.pn_link_open(pn)  # nothing happens when it is open
        if closed:
            lib.pn_link_close(pn)
        else:
            lib.pn_link_detach(pn)

    def answer_close(self, link: Link, condition: Condition | None) -> None:
        """See `Engine.answer_close`."""
        if link._close_waits and link._pn is not None:
            self.detach(link, condition=condition)
            self._free(link)

    # --- events of Proton ------------------------------------------------------------------------------------------

    def on_attach(self, event: Any, events: list[Event]) -> Condition | None:
        pn = lib.pn_event_link(event)
        link = self.by_address.get(address_of(pn))
        if link is None:
            name = text(lib.pn_link_name(pn)) or ""
            link = self._added(pn, lib.pn_link_session(pn), name, is_sender=lib.pn_link_is_sender(pn), ours=False)
            maps = _maps(pn)
            if sum(map(encoded_bytes, maps)) > ATTACH_MAPS_BYTES_MAX:
                link.closed = True
                return Condition(
                    "amqp:resource-limit-exceeded", f"an attach of more than {ATTACH_MAPS_BYTES_MAX} bytes"
                )
            link._cost_bytes = LINK_BYTES + sum(map(data_bytes, maps))
            self._link_bytes += link._cost_bytes
            if len(self.by_address) > 2 * self._links_max:  # it keeps attaching and does not end refused links
                return Condition("amqp:resource-limit-exceeded", f"more than {self._links_max} links")
            if len(self.by_address) > self._links_max:
                self.refuse(link, Condition("amqp:resource-limit-exceeded", f"more than {self._links_max} links"))
                return None
        if link.closed:
            return None
        self._describe(link)
        if link._ours:
            answer = link.target if link.is_sender else link.source
            if answer.kind is TerminusKind.NONE:
                return None  # refused: the detach with the reason follows
            link.attached = True
        events.append(Attached(link))
        return None

    def on_detach(self, event: Any, events: list[Event]) -> None:
        self._ended_by_peer(event, events, closed=False)

    def on_close(self, event: Any, events: list[Event]) -> None:
        self._ended_by_peer(event, events, closed=True)

    def on_begin(self, event: Any, events: list[Event]) -> Condition | None:
        self.sessions.append(address_of(lib.pn_event_session(event)))
        if len(self.sessions) > self._sessions_max:  # a begin on a channel in use: Proton creates a session for each
            return Condition("amqp:connection:framing-error", "more sessions than there are channels")
        lib.pn_session_open(lib.pn_event_session(event))  # nothing happens when it is ours and open
        return None

    def on_end(self, event: Any, events: list[Event]) -> None:
        session = lib.pn_event_session(event)
        if address_of(session) in self.sessions:
            self.sessions.remove(address_of(session))
        condition = read_condition(lib.pn_session_remote_condition(session))
        for link in [link for link in self.by_address.values() if link._session == session]:
            self._remove(link)
            if not link.closed:
                link.closed = True
                events.append(Detached(link, False, condition))
            _forget(link)
        events.append(SessionEnded(condition))
        if session == self._session:
            self._session = None
        lib.pn_session_close(session)
        lib.pn_session_free(session)

    # --- the connection ends ----------------------------------------------------------------------------------

    def end(self) -> None:
        """End all links: the connection is over."""
        self.over = True
        for link in self.by_address.values():
            link.closed = True

    def release(self) -> None:
        """Drop every pointer to the C objects, which are about to be freed."""
        self.end()
        for link in self.by_address.values():
            _forget(link)
        self.by_address.clear()
        self.sessions.clear()
        self._session = None
        self._link_bytes = 0

    # --- inside -----------------------------------------------------------------------------------------------

    def _added(self, pn: Any, session: Any, name: str, *, is_sender: bool, ours: bool) -> Link:
        link = Link(pn, session, name, is_sender=is_sender, ours=ours, deliveries=self.deliveries)
        link._address = address_of(pn)
        self.by_address[link._address] = link
        return link

    def _remove(self, link: Link) -> None:
        del self.by_address[link._address]
        self._link_bytes -= link._cost_bytes

    def _limit(self, link: Link, max_message_size: int) -> None:
        link._message_bytes_max = max_message_size or self._message_bytes_max
        if not link.is_sender:
            lib.pn_link_set_max_message_size(link._pn, link._message_bytes_max)

    def _describe(self, link: Link) -> None:
        """Copy the fields of the peer's attach."""
        pn = link._pn
        link.source = read_terminus(lib.pn_link_remote_source(pn))
        link.target = read_terminus(lib.pn_link_remote_target(pn))
        link.properties = read_map(lib.pn_link_remote_properties(pn))
        link.desired_capabilities = symbols(link.properties.get(CAPABILITIES_DESIRED))
        link.offered_capabilities = symbols(link.properties.get(CAPABILITIES_OFFERED))
        link.snd_settle_mode = lib.pn_link_remote_snd_settle_mode(pn)
        link.rcv_settle_mode = lib.pn_link_remote_rcv_settle_mode(pn)
        link.max_message_size = lib.pn_link_remote_max_message_size(pn)

    def _ended_by_peer(self, event: Any, events: list[Event], *, closed: bool) -> None:
        link = self.by_address.get(address_of(lib.pn_event_link(event)))
        if link is None:
            return
        if not link.closed:
            condition = read_condition(lib.pn_link_remote_condition(link._pn))
            events.append(Detached(link, closed, condition))
            if closed and link.answers_close:
                link.closed = link._close_waits = True
                return
            self.detach(link, closed=closed)
        self._free(link)

    def _free(self, link: Link) -> None:
        self._remove(link)
        lib.pn_link_free(link._pn)
        _forget(link)


HANDLERS: Mapping[int, Callable[[Links, Any, list[Event]], Condition | None]] = {
    lib.PN_SESSION_REMOTE_OPEN: Links.on_begin,
    lib.PN_SESSION_REMOTE_CLOSE: Links.on_end,
    lib.PN_LINK_REMOTE_OPEN: Links.on_attach,
    lib.PN_LINK_REMOTE_DETACH: Links.on_detach,
    lib.PN_LINK_REMOTE_CLOSE: Links.on_close,
}
"""Handlers of Proton's events of sessions and links. A returned condition is a protocol violation and ends the
connection."""


def _terminus(value: Terminus | str | None, kind: TerminusKind) -> Terminus:
    return value if isinstance(value, Terminus) else Terminus(kind=kind, address=value)


def _maps(pn: Any) -> list[Any]:
    """Return the parts of the peer's attach that have no size limit."""
    source, target = lib.pn_link_remote_source(pn), lib.pn_link_remote_target(pn)
    found = [lib.pn_link_remote_properties(pn), lib.pn_terminus_filter(source), lib.pn_terminus_outcomes(source)]
    for terminus in (source, target):
        found += (lib.pn_terminus_properties(terminus), lib.pn_terminus_capabilities(terminus))
    return found


def _forget(link: Link) -> None:
    """Drop the pointers to a link and its deliveries, which are freed now or soon."""
    link._deliveries.unsettled -= len(link._unsettled) + len(link._sent)
    link._deliveries.partial.pop(link, None)
    link._unsettled.clear()
    link._sent.clear()
    link._pn = None
    link._address = 0
