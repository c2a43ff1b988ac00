"""`waypost topology`: draw the network of routers that a gateway belongs to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import click

from edge.appliance.crossing.topology import TopologyLink, TopologyRouter, TopologyStatus
from edge.appliance.running import data_option, gateway_client, http_option
from edge.output.amounts import counted
from edge.output.listing import JsonOutput, json_option
from edge.output.terminal import say


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@data_option
@http_option
@json_option("topology")
def topology(data: Path | None, http: str | None, as_json: JsonOutput | None) -> None:
    """Draw the router network of a gateway. The tree has the cheapest path to each router, with the cost of each link.

    \b
      consumers       anycast and multicast addresses with consumers at this router
      further links   links that no path of this gateway uses now
      messages        to and from each neighbour, since its connection opened

    \b
      waypost topology --data ./data/hall
    """
    document = gateway_client(data, http).read(TopologyStatus, "topology")
    if as_json:
        as_json.show([document])
        return
    columns = shutil.get_terminal_size().columns
    for line in drawing(document):
        say(line if len(line) <= columns else line[: columns - 1] + "…")


def drawing(status: TopologyStatus) -> Iterator[str]:
    """Yield the lines of a drawing of the network."""
    if not status.router:
        yield "no router network: add a connector of type router, or let a neighbour dial this gateway"
        return
    if status.name_taken:
        yield f"another gateway of the network is called {status.router} too: give each a name of its own"
    rows = list(_tree(status, status.router, "", ""))
    width = max(len(row) for row, _ in rows)
    yield from (f"{row:<{width}}  {consumers}" for row, consumers in rows)
    used = {frozenset((each.name, each.parent)) for each in status.routers if each.parent}
    rest = [link for link in status.links if frozenset(link.ends) not in used]
    if rest:
        yield "further links: " + ", ".join(map(_of_link, rest))
    gone = [each.name for each in status.routers if each.cost is None]
    if gone:
        yield "not reached: " + ", ".join(gone)
    for each in status.neighbours:
        yield f"{each.name}: {counted(each.sent, 'message')} sent, {each.received:,} received"
    answers = [f"{count:,} {name.replace('_', ' ')}" for name, count in status.outcomes.items() if count]
    if answers:
        yield f"answers of neighbours: {', '.join(answers)}"
    if status.dropped:
        yield f"dropped: {counted(status.dropped, 'multicast message')} for slow neighbours"
    for each in status.neighbours:
        if each.waiting_links:
            yield f"{each.name}: {counted(each.waiting_links, 'address', 'addresses')} wait for one of its links"
    if status.passed_through:
        yield f"passed through: {counted(status.passed_through, 'message')}"
    if status.unannounced:
        addresses = counted(status.unannounced, "address", "addresses")
        yield f"not announced: {addresses} beyond the limit of the router or of a user"


def _tree(status: TopologyStatus, name: str, first: str, others: str) -> Iterator[tuple[str, str]]:
    """Yield the rows of a router and all behind it. `first` stands before its name, `others` before other rows."""
    by_name = {each.name: each for each in status.routers}
    yield first + name, _consumers(by_name[name])
    children = [each for each in status.routers if each.parent == name != each.name]
    for i, child in enumerate(children):
        last = i == len(children) - 1
        cost = f"{(child.cost or 0) - (by_name[name].cost or 0)} "
        yield from _tree(
            status,
            child.name,
            f"{others}{'└' if last else '├'}─ {cost}─ ",
            others + (" " if last else "│") + " " * (len(cost) + 4),
        )


def _consumers(router: TopologyRouter) -> str:
    if not router.anycast + router.multicast:
        return "no consumers"
    return f"consumers of {router.anycast} anycast, {router.multicast} multicast"


def _of_link(link: TopologyLink) -> str:
    return f"{link.ends[0]} ─ {link.cost} ─ {link.ends[1]}"
