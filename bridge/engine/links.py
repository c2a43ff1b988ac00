"""Sessions and links: attach, refuse, detach, from either side, and the limits Proton leaves to its user.

`Links` turns Proton's events about endpoints into ours. What flows over the links is `machine`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cproton import lib

from bridge.engine.carrier import Carrier
from bridge.engine.events import (
    CAPABILITIES_DESIRED,
    CAPABILITIES_OFFERED,
    Attached,
    Condition,
    Detached,
    Event,
    Link,
    SessionEnded,
    Terminus,
    TerminusKind,
    link_properties,
    symbols,
)
from bridge.engine.proton import (
    read_condition,
    read_map,
    read_terminus,
    text,
    write_condition,
    write_map,
    write_terminus,
)


class Links(Carrier):
    """See `bridge.engine.Engine`, which adds the deliveries."""

    # --- links ------------------------------------------------------------------------------------------------

    @property
    def links(self) -> Sequence[Link]:
        """Every link that is not over."""
        return [link for link in self._links.values() if not link.closed]

    def attach_sender(
        self,
        name: str,
        target: Terminus | str | None,
        *,
        source: Terminus | str | None = None,
        desired_capabilities: Sequence[str] = (),
        properties: Mapping[Any, Any] | None = None,
        snd_settle_mode: int = 2,
    ) -> Link:
        """Attach a link to send on; target None is the anonymous relay. Answered by `Attached` or `Detached`."""
        return self._attach(True, name, source, target, desired_capabilities, properties, snd_settle_mode, 0)

    def attach_receiver(
        self,
        name: str,
        source: Terminus | str | None,
        *,
        target: Terminus | str | None = None,
        desired_capabilities: Sequence[str] = (),
        properties: Mapping[Any, Any] | None = None,
        snd_settle_mode: int = 2,
        max_message_size: int = 0,
    ) -> Link:
        """Attach a link to receive on; nothing comes before `grant`. Answered by `Attached` or `Detached`."""
        return self._attach(
            False, name, source, target, desired_capabilities, properties, snd_settle_mode, max_message_size
        )

    def accept(
        self,
        link: Link,
        *,
        source: Terminus | None = None,
        target: Terminus | None = None,
        offered_capabilities: Sequence[str] = (),
        max_message_size: int = 0,
        properties: Mapping[Any, Any] | None = None,
    ) -> None:
        """Answer an attach of the peer with its own termini, or with those given (e.g. a dynamic node's address)."""
        if link.closed:
            return
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
        """Answer an attach of the peer with a null terminus and the error (section 2.6.3)."""
        if link.closed:
            return
        pn = link._pn
        if link.is_sender:
            lib.pn_terminus_copy(lib.pn_link_target(pn), lib.pn_link_remote_target(pn))
            write_terminus(lib.pn_link_source(pn), Terminus())
        else:
            lib.pn_terminus_copy(lib.pn_link_source(pn), lib.pn_link_remote_source(pn))
            write_terminus(lib.pn_link_target(pn), Terminus())
        self.detach(link, condition=condition)

    def detach(self, link: Link, *, closed: bool = True, condition: Condition | None = None) -> None:
        """End the link; it is `closed` at once and nothing more is told about it."""
        if link.closed:
            return
        link.closed = True
        pn = link._pn
        write_condition(lib.pn_link_condition(pn), condition)
        lib.pn_link_open(pn)  # nothing happens when it is open
        if closed:
            lib.pn_link_close(pn)
        else:
            lib.pn_link_detach(pn)

    # --- events of Proton ------------------------------------------------------------------------------------------

    def _on_attach(self, event: Any, events: list[Event]) -> None:
        pn = lib.pn_event_link(event)
        link = self._links.get(pn)
        if link is None:
            name = text(lib.pn_link_name(pn)) or ""
            link = Link(pn, lib.pn_link_session(pn), name, is_sender=lib.pn_link_is_sender(pn), ours=False)
            self._links[pn] = link
            if len(self._links) > 2 * self._links_max:  # it attaches on and on, and does not end what was refused
                events += self._cut(Condition("amqp:resource-limit-exceeded", f"more than {self._links_max} links"))
                return
            if len(self._links) > self._links_max:
                self.refuse(link, Condition("amqp:resource-limit-exceeded", f"more than {self._links_max} links"))
                return
        if link.closed:
            return
        self._describe(link)
        if link._ours:
            answer = link.target if link.is_sender else link.source
            if answer.kind is TerminusKind.NONE:
                return  # refused: the detach with the reason is on its way
            link.attached = True
        events.append(Attached(link))

    def _on_detach(self, event: Any, events: list[Event], *, closed: bool = False) -> None:
        link = self._links.get(lib.pn_event_link(event))
        if link is None:
            return
        if not link.closed:
            condition = read_condition(lib.pn_link_remote_condition(link._pn))
            self.detach(link, closed=closed)
            events.append(Detached(link, closed, condition))
        del self._links[link._pn]
        _forget(link)
        lib.pn_link_free(link._pn)
        link._pn = None

    def _on_link_close(self, event: Any, events: list[Event]) -> None:
        self._on_detach(event, events, closed=True)

    def _on_session_open(self, event: Any, events: list[Event]) -> None:
        self._sessions += 1
        if self._sessions <= self._sessions_max:
            lib.pn_session_open(lib.pn_event_session(event))  # nothing happens when it is ours and open
        else:  # on a channel that was in use: Proton makes a session of each begin
            events += self._cut(Condition("amqp:connection:framing-error", "more sessions than there are channels"))

    def _on_session_close(self, event: Any, events: list[Event]) -> None:
        session = lib.pn_event_session(event)
        self._sessions -= 1
        condition = read_condition(lib.pn_session_remote_condition(session))
        for link in [link for link in self._links.values() if link._session == session]:
            del self._links[link._pn]
            if not link.closed:
                link.closed = True
                events.append(Detached(link, False, condition))
            _forget(link)
            link._pn = None
        events.append(SessionEnded(condition))
        if session == self._session:
            self._session = None
        lib.pn_session_close(session)
        lib.pn_session_free(session)

    def _on_connection_open(self, event: Any, events: list[Event]) -> None:
        events.append(self._on_open())

    def _on_connection_close(self, event: Any, events: list[Event]) -> None:
        events += self._on_close()

    def _on_error(self, event: Any, events: list[Event]) -> None:
        events += self._on_transport_error()

    # --- inside -----------------------------------------------------------------------------------------------

    def _attach(
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
        if not self._alive or self._told_closed:
            link = Link(None, None, name, is_sender=is_sender, ours=True)
            link.closed = True
            return link
        if self._session is None:
            self._session = lib.pn_session(self._connection)
            lib.pn_session_open(self._session)
        pn = (lib.pn_sender if is_sender else lib.pn_receiver)(self._session, name.encode())
        link = Link(pn, self._session, name, is_sender=is_sender, ours=True)
        self._links[pn] = link
        write_terminus(lib.pn_link_source(pn), _terminus(source, TerminusKind.SOURCE))
        write_terminus(lib.pn_link_target(pn), _terminus(target, TerminusKind.TARGET))
        lib.pn_link_set_snd_settle_mode(pn, snd_settle_mode)
        if not is_sender:
            self._limit(link, max_message_size)
        write_map(lib.pn_link_properties(pn), link_properties(properties, desired_capabilities, ()))
        lib.pn_link_open(pn)
        return link

    def _limit(self, link: Link, max_message_size: int) -> None:
        link._message_bytes_max = max_message_size or self._message_bytes_max
        if not link.is_sender:
            lib.pn_link_set_max_message_size(link._pn, link._message_bytes_max)

    def _describe(self, link: Link) -> None:
        """Copy what the peer's attach said."""
        pn = link._pn
        link.source = read_terminus(lib.pn_link_remote_source(pn))
        link.target = read_terminus(lib.pn_link_remote_target(pn))
        link.properties = read_map(lib.pn_link_remote_properties(pn))
        link.desired_capabilities = symbols(link.properties.get(CAPABILITIES_DESIRED))
        link.offered_capabilities = symbols(link.properties.get(CAPABILITIES_OFFERED))
        link.snd_settle_mode = lib.pn_link_remote_snd_settle_mode(pn)
        link.rcv_settle_mode = lib.pn_link_remote_rcv_settle_mode(pn)
        link.max_message_size = lib.pn_link_remote_max_message_size(pn)

    def _over(self, condition: Condition | None) -> list[Event]:
        for link in self._links.values():
            link.closed = True
        return super()._over(condition)

    def _release(self) -> None:
        for link in self._links.values():
            link.closed = True
            _forget(link)
            link._pn = None
        self._links.clear()
        self._session = None


HANDLERS: Mapping[int, Callable[[Links, Any, list[Event]], None]] = {
    lib.PN_CONNECTION_REMOTE_OPEN: Links._on_connection_open,
    lib.PN_CONNECTION_REMOTE_CLOSE: Links._on_connection_close,
    lib.PN_SESSION_REMOTE_OPEN: Links._on_session_open,
    lib.PN_SESSION_REMOTE_CLOSE: Links._on_session_close,
    lib.PN_LINK_REMOTE_OPEN: Links._on_attach,
    lib.PN_LINK_REMOTE_DETACH: Links._on_detach,
    lib.PN_LINK_REMOTE_CLOSE: Links._on_link_close,
    lib.PN_TRANSPORT_ERROR: Links._on_error,
}
"""What is done with Proton's events about connection, sessions and links."""


def _terminus(value: Terminus | str | None, kind: TerminusKind) -> Terminus:
    return value if isinstance(value, Terminus) else Terminus(kind=kind, address=value)


def _forget(link: Link) -> None:
    """The deliveries go with their link: no pointer to them may stay."""
    link._unsettled.clear()
    link._sent.clear()
    link._tags.clear()
