"""The status as Prometheus metrics, read at the time of the scrape."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from edge.appliance.console.status import (
    BridgeSummary,
    GatewayStatus,
    NetworkStatus,
    StatusSource,
    WearStatus,
    status_of,
)
from edge.output.text import line

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

UPLINK_STATES = ("connected", "connecting", "paused", "off")


class GatewayCollector(Collector):
    """Turn a status into metric families named ``waypost_*``."""

    def __init__(self, source: StatusSource, now_s: Callable[[], float] = time.time) -> None:
        self._source = source
        self._now_s = now_s

    def describe(self) -> Iterable[Metric]:
        return ()  # registering must not call the gateway

    def collect(self) -> Iterable[Metric]:
        status = status_of(self._source)
        yield from _gateway(status)
        yield from _wear(status.get("store", {}).get("wear", {}))
        yield from _flows(status)
        yield from _memory(status)
        yield from _uplink(status)
        yield from _bridge(status.get("bridge", {}), self._now_s())
        yield from _network(status.get("network"))
        yield from _process(status)
        yield from _problems(status)


def registry(source: StatusSource) -> CollectorRegistry:
    """Return a registry with this gateway's metrics alone."""
    made = CollectorRegistry()
    made.register(GatewayCollector(source))
    return made


def exposition(source: StatusSource) -> bytes:
    """Return the current metrics in Prometheus' text format."""
    return generate_latest(registry(source))


def _gateway(status: GatewayStatus) -> Iterable[Metric]:
    info = {name: str(status.get(name, "")) for name in ("gateway", "epoch", "version")}
    yield InfoMetricFamily("waypost_gateway", "Name, epoch and version of the gateway.", value=info)
    yield GaugeMetricFamily("waypost_uptime_seconds", "Seconds since the start.", value=status.get("uptime_s", 0.0))
    clients = GaugeMetricFamily("waypost_clients", "Connections open now.", labels=["protocol"])
    for protocol, count in status.get("clients", {}).items():
        clients.add_metric([protocol], _number(count))
    yield clients
    for what, count in status.get("messages", {}).items():
        yield CounterMetricFamily(f"waypost_messages_{what}", f"Messages {what}.", value=_number(count))
    store = status.get("store", {})
    yield GaugeMetricFamily("waypost_store_messages", "Messages in the store.", value=store.get("messages", 0))
    yield GaugeMetricFamily("waypost_store_bytes", "Bytes of message bodies stored.", value=store.get("bytes", 0))
    yield GaugeMetricFamily("waypost_store_file_bytes", "Size of the store on disk.", value=store.get("file_bytes", 0))
    scheduled = store.get("scheduled")
    if scheduled is not None:
        about = "Messages that wait for their delivery time."
        yield GaugeMetricFamily("waypost_scheduled_messages", about, value=scheduled["messages"])
    commits = store.get("commits")
    if commits is not None:
        ends = [*((f"{end:.6g}", count) for end, count in commits["buckets"]), ("+Inf", commits["total"])]
        name, about = "waypost_store_commit_seconds", "Duration of commits."
        yield HistogramMetricFamily(name, about, buckets=ends, sum_value=commits["seconds"])
    yield from _addresses(status)
    about = "Refused logins, connections and operations of clients, by reason."
    refused = CounterMetricFamily("waypost_refused", about, labels=["reason"])
    for reason, count in status.get("refused", {}).items():
        refused.add_metric([reason], count)
    yield refused


def _addresses(status: GatewayStatus) -> Iterable[Metric]:
    """Yield metrics of the queues and durable subscriptions in the status, which lists a bounded number."""
    labels = ["address", "subscription"]
    received = CounterMetricFamily("waypost_address_received", "Messages committed to a queue.", labels=labels)
    settled = CounterMetricFamily(
        "waypost_address_settled", "Messages of a queue that were delivered, expired or dropped.", labels=labels
    )
    depth = GaugeMetricFamily("waypost_address_messages", "Messages that are not settled.", labels=labels)
    consumers = GaugeMetricFamily("waypost_address_consumers", "Consumers now.", labels=labels)
    seen: set[tuple[str, str]] = set()
    for each in status.get("addresses", ()):
        names = line(each.get("address", "")), line(each.get("subscription", ""))
        if names in seen:  # names that differ only in what a label cannot show
            continue
        seen.add(names)
        stored = each.get("stored", 0)
        depth.add_metric(names, stored)
        consumers.add_metric(names, each.get("subscribers", 0))
        if "received" in each:
            received.add_metric(names, each["received"])
            settled.add_metric(names, max(0, each["received"] - stored))
    left_out = status.get("addresses_left_out", 0)
    yield from (received, settled, depth, consumers)
    yield GaugeMetricFamily("waypost_addresses_left_out", "Addresses without metrics: too many.", value=left_out)


def _wear(wear: WearStatus) -> Iterable[Metric]:
    """Yield metrics of wear; figures that neither kernel nor configuration provide are left out."""
    counted: tuple[tuple[str, str, int | None], ...] = (
        ("waypost_store_payload_bytes", "Bytes of bodies stored since the store was made.", wear.get("payload_bytes")),
        ("waypost_process_written_bytes", "Bytes the gateway wrote to media since then.", wear.get("process_bytes")),
    )
    for name, about, value in counted:
        if value is not None:
            yield CounterMetricFamily(name, about, value=value)
    device = [wear.get("device") or ""]
    written = wear.get("device_bytes")
    if written is not None:
        about = "Bytes that all programs wrote to the store's device since then."
        family = CounterMetricFamily("waypost_device_written_bytes", about, labels=["device"])
        family.add_metric(device, written)
        yield family
    for name, about, figure in (
        ("waypost_device_endurance_bytes", "Bytes the device is rated for.", wear.get("endurance_bytes")),
        ("waypost_device_used_ratio", "Used share of the device's life.", wear.get("used")),
        (
            "waypost_device_days_left",
            "Days of running until its life is used up, at the present rate.",
            wear.get("days_left"),
        ),
    ):
        if figure is not None:
            gauge = GaugeMetricFamily(name, about, labels=["device"])
            gauge.add_metric(device, figure)
            yield gauge
    paces = GaugeMetricFamily(
        "waypost_device_written_bytes_per_day", "Bytes written to the device a day, by window.", labels=["window"]
    )
    for window, pace in wear.get("bytes_per_day", {}).items():
        paces.add_metric([window], pace)
    yield paces
    own = GaugeMetricFamily(
        "waypost_process_written_bytes_per_day", "Bytes the gateway writes a day, by window.", labels=["window"]
    )
    for window, pace in wear.get("own_bytes_per_day", {}).items():
        own.add_metric([window], pace)
    if own.samples:
        yield own


def _flows(status: GatewayStatus) -> Iterable[Metric]:
    about = "Messages from publishers to the names of an Address resource, also refused ones."
    received = CounterMetricFamily("waypost_address_received_messages", about, labels=["address"])
    about = "Copies for live subscribers of the names of an Address resource."
    delivered = CounterMetricFamily("waypost_address_delivered_messages", about, labels=["address"])
    for flow in status.get("flows", ()):
        received.add_metric([line(flow["address"])], flow["received"])
        delivered.add_metric([line(flow["address"])], flow["delivered"])
    yield received
    yield delivered


def _memory(status: GatewayStatus) -> Iterable[Metric]:
    memory = status.get("memory")
    if memory is None:
        return
    yield GaugeMetricFamily("waypost_resident_bytes", "Resident memory of the process.", value=memory["resident"])
    yield GaugeMetricFamily("waypost_resident_max_bytes", "Limit of the resident memory.", value=memory["resident_max"])
    held = GaugeMetricFamily("waypost_held_bytes", "Memory that connections hold.", labels=["pool"])
    held_max = GaugeMetricFamily(
        "waypost_held_max_bytes", "Limit of the memory that connections hold.", labels=["pool"]
    )
    for name, pool in memory["pools"].items():
        held.add_metric([name], pool["held"])
        held_max.add_metric([name], pool["held_max"])
    yield held
    yield held_max
    for name, about, value in (
        ("waypost_connections_shed", "Connections closed because they held the most memory.", memory["shed"]),
        ("waypost_connections_shed_bytes", "Bytes that the closed connections held.", memory["shed_bytes"]),
        ("waypost_connections_displaced", "Unauthenticated connections closed to free memory.", memory["displaced"]),
        (
            "waypost_connections_refused",
            "Connections refused by a limit of user or address.",
            memory["refused"],
        ),
    ):
        yield CounterMetricFamily(name, about, value=value)


def _uplink(status: GatewayStatus) -> Iterable[Metric]:
    uplink = status.get("uplink")
    if uplink is None:
        return
    states = GaugeMetricFamily("waypost_uplink_state", "1 for the state the uplink is in.", labels=["state"])
    for state in UPLINK_STATES:
        states.add_metric([state], float(uplink.get("state") == state))
    yield states
    waiting, size = uplink.get("backlog_messages", 0), uplink.get("backlog_bytes", 0)
    yield GaugeMetricFamily("waypost_uplink_backlog_messages", "Messages the hub has not acknowledged.", value=waiting)
    yield GaugeMetricFamily("waypost_uplink_backlog_bytes", "Bytes the hub has not acknowledged.", value=size)
    yield CounterMetricFamily("waypost_uplink_sent", "Messages sent to the hub.", value=uplink.get("sent", 0))
    yield CounterMetricFamily("waypost_uplink_acked", "Messages the hub acknowledged.", value=uplink.get("acked", 0))


def _bridge(bridge: BridgeSummary, now_s: float) -> Iterable[Metric]:
    """Yield metrics of the bridge, by connector."""
    for name, about, figure in (
        ("waypost_bridge_room_bytes", "Bytes of message bodies that can still be stored.", bridge.get("room_bytes")),
        (
            "waypost_bridge_autonomy_hours",
            "Hours until the store is full if nothing is sent.",
            bridge.get("autonomy_hours"),
        ),
    ):
        if figure is not None:
            yield GaugeMetricFamily(name, about, value=figure)
    labels = ["connector"]
    up = GaugeMetricFamily("waypost_bridge_connected", "1 while the connector is connected.", labels=labels)
    messages = GaugeMetricFamily(
        "waypost_bridge_backlog_messages", "Messages its peer has not accepted.", labels=labels
    )
    size = GaugeMetricFamily(
        "waypost_bridge_backlog_bytes", "Bytes of the bodies that wait, approximately.", labels=labels
    )
    age = GaugeMetricFamily(
        "waypost_bridge_backlog_age_seconds", "Seconds since the oldest waiting message was received.", labels=labels
    )
    accepted = CounterMetricFamily("waypost_bridge_accepted", "Messages its peer accepted.", labels=labels)
    stated = GaugeMetricFamily(
        "waypost_bridge_manifest_waiting", "Manifest statements that the peer has not accepted.", labels=labels
    )
    for one in bridge.get("connectors", ()):
        label, oldest_at = [line(one.get("name", ""))], one.get("backlog_oldest_at")
        up.add_metric(label, float(one.get("state") == "connected"))
        messages.add_metric(label, one.get("backlog_messages", 0))
        size.add_metric(label, one.get("backlog_bytes", 0))
        age.add_metric(label, max(0.0, now_s - oldest_at) if oldest_at is not None else 0.0)
        accepted.add_metric(label, one.get("accepted", 0))
        stated.add_metric(label, one.get("manifest_waiting", 0))
    yield from (up, messages, size, age, accepted, stated)


def _network(network: NetworkStatus | None) -> Iterable[Metric]:
    """Yield metrics of the router network; none without one."""
    if network is None:
        return
    about = "Neighbours that are linked now."
    yield GaugeMetricFamily("waypost_network_neighbours", about, value=network["neighbours"])
    cost = GaugeMetricFamily("waypost_network_path_cost", "Cost of the path to a router.", labels=["router"])
    for router, value in network["routers"].items():
        cost.add_metric([line(router)], value)
    yield cost
    about = "Links with messages to neighbours."
    yield GaugeMetricFamily("waypost_network_links", about, value=network["links"])
    about = "Addresses that wait for a link to a neighbour, because there are too many."
    yield GaugeMetricFamily("waypost_network_links_waiting", about, value=network["waiting_links"])
    about = "Addresses with consumers here that are announced to other routers."
    yield GaugeMetricFamily("waypost_network_announced_addresses", about, value=network["announced"])
    about = "Addresses with consumers here beyond the limits, which no other router knows of."
    yield GaugeMetricFamily("waypost_network_unannounced_addresses", about, value=network["unannounced"])
    yield CounterMetricFamily("waypost_network_sent", "Messages sent to neighbours.", value=network["sent"])
    about = "Messages received from neighbours."
    yield CounterMetricFamily("waypost_network_received", about, value=network["received"])
    about = "Answers of neighbours to messages, by outcome; path_lost: a link was lost before the answer."
    outcomes = CounterMetricFamily("waypost_network_outcomes", about, labels=["outcome"])
    for name, count in network["outcomes"].items():
        outcomes.add_metric([name], count)
    yield outcomes
    about = "Messages on their way from one neighbour to another."
    yield CounterMetricFamily("waypost_network_passed", about, value=network["passed"])
    about = "Messages released because they had passed this router before, or too many routers."
    yield CounterMetricFamily("waypost_network_looped", about, value=network["looped"])
    about = "Multicast messages dropped because a neighbour was too slow."
    yield CounterMetricFamily("waypost_network_dropped", about, value=network["dropped"])


def _process(status: GatewayStatus) -> Iterable[Metric]:
    """Yield metrics of event loop, log and loss ledger."""
    loop, log = status.get("loop"), status.get("log")
    if loop is not None:
        about = "Largest delay of the event loop's timers in the last minute."
        yield GaugeMetricFamily("waypost_loop_lag_seconds", about, value=loop["lag_s"])
    if log is not None:
        about = "Log lines dropped because stderr was not read."
        yield CounterMetricFamily("waypost_log_lines_dropped", about, value=log["dropped"])
        about = "Log lines omitted because too many were alike."
        yield CounterMetricFamily("waypost_log_lines_repeated", about, value=log["repeated"])
    about = "Entries of the loss ledger, by reason."
    entered = CounterMetricFamily("waypost_ledger_entries", about, labels=["reason"])
    for reason, count in status.get("ledger", {}).items():
        entered.add_metric([line(reason)], count)
    yield entered
    receipts = dict(status.get("receipts", {}))
    about = "Messages with a landing receipt to come."
    yield GaugeMetricFamily("waypost_landing_receipts_waiting", about, value=receipts.pop("waiting", 0))
    about = "Messages that requested a landing receipt, and what became of them."
    counted = CounterMetricFamily("waypost_landing_receipts", about, labels=["event"])
    for name, count in receipts.items():
        counted.add_metric([name], count)
    yield counted


def _problems(status: GatewayStatus) -> Iterable[Metric]:
    problems = status.get("problems", ())
    counted = GaugeMetricFamily(
        "waypost_problems", "Problems by severity; errors make /healthz answer 503.", labels=["severity"]
    )
    for severity in ("error", "warning", "notice"):
        counted.add_metric([severity], sum(problem["severity"] == severity for problem in problems))
    yield counted
    about = "Muted problems; they count in waypost_problems too."
    yield GaugeMetricFamily("waypost_problems_muted", about, value=sum(bool(each.get("muted")) for each in problems))
    about = "Unix time at which a problem began."
    since = GaugeMetricFamily("waypost_problem_since_timestamp_seconds", about, labels=["problem", "what", "severity"])
    for problem in problems:
        began = datetime.datetime.fromisoformat(problem["since"]).timestamp()
        since.add_metric([line(problem["name"]), line(problem["what"]), problem["severity"]], began)
    yield since


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
