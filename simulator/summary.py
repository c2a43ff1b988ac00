"""Summary of a simulation: rows for people and scripts, and whether all went well."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from edge.output.amounts import counted, number
from edge.output.errors import CommandError, Exit
from edge.output.listing import Listing
from simulator.links import DeviceLinkFault
from simulator.running import GroupRun, SimulationRun
from simulator.tally import DeviceTally, percentile_ms

GROUPS: Final = Listing(
    "simulation",
    "group",
    ("group", "devices", "connected", "readings", "acknowledged", "waiting", "dropped", "p50_ms", "p99_ms"),
)
STEPS: Final = {
    DeviceLinkFault.UNREACHABLE.value: "check that a gateway serves that address; its `ready` line has its addresses",
    DeviceLinkFault.LOGIN_REFUSED.value: "give the file of their passwords: --credentials FILE; --register-gateway DIR "
    "and --register-hub HUB write it",
    DeviceLinkFault.NOT_TRUSTED.value: "`caFile` of the gateway in the file names the certificate of its authority",
    DeviceLinkFault.NOT_MQTT.value: "the port is that of another protocol: `mqtt=` in the `ready` line of the gateway",
    DeviceLinkFault.CLOSED.value: "`waypost client refusals` at the gateway says why it closes connections",
    DeviceLinkFault.NO_ANSWER.value: "the gateway is too slow for these devices: `waypost top`, or a lower --rate",
    DeviceLinkFault.BUSY.value: "the gateway refuses for now: give the devices more time to `connect`",
}
"""Next steps by reason code."""


def group_row(run: SimulationRun, group: GroupRun) -> dict[str, Any]:
    """Return the figures of a group."""
    tally, settled = group.tally, run.settled(group)
    return {
        "group": group.name,
        "devices": group.devices,
        "connected": tally.known,
        "readings": tally.published,
        "acknowledged": tally.acknowledged,
        "waiting": tally.waiting,
        "dropped": tally.dropped,
        "repeated": tally.repeated,
        "acknowledged_per_s": round(settled.acknowledged_per_s, 1),
        "p50_ms": _rounded(settled.latency.percentile_ms(0.5)),
        "p99_ms": _rounded(settled.latency.percentile_ms(0.99)),
        "link_breaks": tally.breaks,
        "restarts": tally.resets,
        "commands_answered": tally.commands,
        "updates": dict(tally.states),
        "versions": dict(+tally.versions),
        "errors": dict(tally.errors),
    }


def totals(run: SimulationRun, seed: int) -> dict[str, Any]:
    """Return the figures of all groups."""
    tallies = [group.tally for group in run.groups]
    settled = [run.settled(group) for group in run.groups]
    latencies = [each.latency for each in settled]
    return {
        "seed": seed,
        "seconds": round(run.elapsed_s, 1),
        "devices": len(run.devices),
        "connected": sum(each.known for each in tallies),
        "acknowledged": sum(each.acknowledged for each in tallies),
        "acknowledged_per_s": round(sum(each.acknowledged_per_s for each in settled), 1),
        "waiting": sum(each.waiting for each in tallies),
        "dropped": sum(each.dropped for each in tallies),
        "p50_ms": _rounded(percentile_ms(latencies, 0.5)),
        "p99_ms": _rounded(percentile_ms(latencies, 0.99)),
        "p999_ms": _rounded(percentile_ms(latencies, 0.999)),
        "errors": dict(errors_of(run)),
    }


def errors_of(run: SimulationRun) -> Counter[str]:
    """Return the errors of all groups by reason code."""
    return sum((group.tally.errors for group in run.groups), Counter())


def lines(run: SimulationRun) -> list[str]:
    """Return sentences about what the table has no column for."""
    every = [group.tally for group in run.groups]
    found = []
    if errors := errors_of(run):
        found.append("errors: " + ", ".join(f"{code} {number(count)}" for code, count in errors.most_common()))
    happened = [
        counted(sum(each.breaks for each in every), "link break"),
        counted(sum(each.repeated for each in every), "reading sent again", "readings sent again"),
        counted(sum(each.resets for each in every), "restart"),
        counted(sum(each.commands for each in every), "command answered", "commands answered"),
    ]
    if shown := [each for each in happened if not each.startswith("0 ")]:
        found.append(", ".join(shown))
    for what, counts in (("updates", _sum(every, "states")), ("versions", _sum(every, "versions"))):
        if counts:
            found.append(f"{what}: " + ", ".join(f"{name} {number(count)}" for name, count in sorted(counts.items())))
    return found


def failure(run: SimulationRun) -> CommandError | None:
    """Return the error of a run with readings that were not acknowledged, or without a connection; None: all went
    well."""
    every = [group.tally for group in run.groups]
    waiting, dropped = sum(each.waiting for each in every), sum(each.dropped for each in every)
    connected = sum(each.known for each in every)
    if connected and not waiting and not dropped:
        return None
    worst = next((code for code, _ in errors_of(run).most_common()), "")
    step = STEPS.get(worst, "")
    if not connected:
        words = f"no device was connected: {worst}" if worst else "no device was connected: the run was too short"
        if worst == DeviceLinkFault.UNREACHABLE.value:
            return CommandError(words, step, error="unreachable", code=Exit.UNREACHABLE)
        return CommandError(words, step, error="device-failed")
    parts = [counted(waiting, "reading")] if waiting else []
    words = f"{parts[0]} not acknowledged" if parts else ""
    if dropped:
        words = ", ".join(filter(None, [words, f"{counted(dropped, 'reading')} dropped, as the buffer was full"]))
    return CommandError(f"{words}{f': {worst}' if worst else ''}", step, error="device-failed")


def _sum(every: list[DeviceTally], name: str) -> Counter[str]:
    return +sum((getattr(each, name) for each in every), Counter[str]())


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
