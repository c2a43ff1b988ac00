"""`waypost` without a command: what runs on this machine, what is wrong, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from edge.appliance.here import DataDirectory, Role, directories
from edge.appliance.program import as_called, launcher, program_name
from edge.output.amounts import counted, span
from edge.output.errors import CommandError
from edge.output.terminal import say
from edge.output.text import line, word

ANSWER_S: Final = 1.5
"""Time limit for the answer of each: the overview must not wait for one that hangs."""
PROBLEMS_SHOWN_MAX: Final = 5
_COLOURS: Final = {"error": "red bold", "warning": "yellow", "notice": "cyan"}


class SeenDirectory(NamedTuple):
    """Data directory with the status of its process."""

    directory: DataDirectory
    status: dict[str, Any] | None
    """None if it does not run, or does not answer."""
    fault: str = ""
    """Reason why a running one has no status."""

    @property
    def name(self) -> str:
        """Name of the gateway; of a hub, and of a gateway without one, the name of its directory."""
        return str((self.status or {}).get("gateway") or self.directory.path.absolute().name)


def show_overview() -> None:
    """Print the overview."""
    seen = [_ask(directory) for directory in directories()]
    running = [one for one in seen if one.directory.running]
    if not running:
        say("No gateway and no hub runs on this machine, as far as this user and this directory show.")
    for one in running:
        _print_line(one)
    for one in running:
        _print_problems(one)
    say("\nNext:", style="bold")
    width = max(len(as_called(step)) for step, _ in _next_steps(seen)) + 2
    for step, about in _next_steps(seen):
        say(f"  {as_called(step):<{width}}{about}")


def _ask(directory: DataDirectory) -> SeenDirectory:
    from edge.appliance.opening import find_console, operator_client  # noqa: PLC0415 - only for what runs

    if not directory.running:
        return SeenDirectory(directory, None)
    if not directory.readable:
        return SeenDirectory(directory, None, "this user may not read it: sudo -u waypost " + program_name())
    try:
        client = operator_client(find_console(directory.path).here, directory.path)
        status = client.ask("status", answer_s=ANSWER_S)
    except CommandError as error:
        return SeenDirectory(directory, None, error.message)
    return SeenDirectory(directory, status if isinstance(status, dict) else None)


def _print_line(one: SeenDirectory) -> None:
    """Print a gateway or hub in a line."""
    directory, status = one.directory, one.status
    role = directory.role.value
    if status is None:
        say(f"{role:<8} {line(directory.path)}: ", nl=False, style="bold")
        say(as_called(line(one.fault or "it does not answer")), style="yellow")
        return
    say(f"{role:<8} {line(one.name)}", nl=False, style="bold")
    parts = _hub_parts(status) if directory.role is Role.HUB else _gateway_parts(status)
    say(line("  " + ", ".join([*parts, f"data in {directory.path}"])))


def _gateway_parts(status: dict[str, Any]) -> list[str]:
    clients, uplink = status.get("clients", {}), status.get("uplink", {})
    return [
        f"up {span(status.get('uptime_s', 0))}",
        counted(sum(count for count in clients.values() if isinstance(count, int)), "client"),
        f"{counted(uplink.get('backlog_messages', 0), 'message')} to forward",
        f"uplink {uplink.get('state', '-')}",
    ]


def _hub_parts(status: dict[str, Any]) -> list[str]:
    gateways = status.get("gateways", {})
    up_s = (status.get("now", 0) - status.get("started_at", 0)) / 1000
    return [
        f"up {span(up_s)}",
        f"{gateways.get('connected', 0):,} of {counted(gateways.get('known', 0), 'gateway')} connected",
    ]


def _print_problems(one: SeenDirectory) -> None:
    problems: Sequence[dict[str, Any]] = (one.status or {}).get("problems", ())
    found = [each for each in problems if not each.get("muted")]
    for problem in found[:PROBLEMS_SHOWN_MAX]:
        say(f"\n{problem['severity']} ", style=_COLOURS.get(problem["severity"]), nl=False)
        say(f"{line(one.name)}: {line(problem['name'])}: {line(problem['what'])}")
        say(f"  next: {as_called(line(problem['next_step']))}", style="dim")
    if len(found) > PROBLEMS_SHOWN_MAX:
        say(f"\n{counted(len(found) - PROBLEMS_SHOWN_MAX, 'more problem')} of {line(one.name)}")
    if muted := len(problems) - len(found):
        say(f"\n{counted(muted, 'problem')} of {line(one.name)} muted: waypost problem list", style="dim")


def _next_steps(seen: Sequence[SeenDirectory]) -> list[tuple[str, str]]:
    """Return commands that the user probably wants next, each with its purpose."""
    help_step = (f"{program_name()} --help", "all commands on one page")
    running = [one.directory for one in seen if one.directory.running and one.directory.readable]
    if not running:
        demo = [("waypost demo", "see the whole path, with real devices")] if launcher() is not None else []
        stopped = [one.directory for one in seen if not one.directory.running]
        starts = [_start(directory) for directory in stopped[:3]]
        new = ("waypost run --dev --data ./gw1", "try a gateway on this machine")
        lasting = ("waypost init --data ./gw1 --name gw1", "set up a gateway that lasts")
        return [*demo, *starts, new, lasting, help_step]
    steps = []
    for directory in running[:2]:
        data = f"--data {word(directory.path)}"
        if directory.role is Role.GATEWAY:
            steps += [
                (f"waypost status {data}", "the state of the gateway in full"),
                (f"waypost user add pump7 --profile sensor {data}", "let a device in"),
            ]
        else:
            steps += [
                (f"waypost gateway list {data}", "the gateways of the hub"),
                (f"waypost token create {data}", "enrol another gateway"),
            ]
        steps.append((f"waypost open {data}", f"the console of the {directory.role.value} in a browser"))
    return [*steps, help_step]


def _start(directory: DataDirectory) -> tuple[str, str]:
    program = "hub run" if directory.role is Role.HUB else "run"
    return f"waypost {program} --data {word(directory.path)}", f"start the {directory.role.value} again"
