"""`waypost run` and `waypost status`: run a gateway, and show the status of a running one."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from bridge.resources.endpoint import authority
from edge.appliance.limits import FILES_BESIDE_CONNECTIONS
from edge.appliance.program import log_to_stderr
from edge.appliance.running import data_option, gateway_client, http_option
from edge.broker.listeners.endpoints import remove_endpoints, write_endpoints
from edge.health.process import allow_files
from edge.output.amounts import counted
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, json_option
from edge.output.terminal import styled

if TYPE_CHECKING:
    from rich.console import Console

    from bridge.desired import SignedDesired, VerifiedDesired
    from edge.appliance.configuring.service import ConfigurationService
    from edge.appliance.gateway import Gateway
    from edge.broker.configuration import BrokerConfiguration
    from edge.configuration.following import AppliedConfiguration, ConfigurationFollower
    from edge.configuration.options import RunOptions
    from edge.configuration.trials import Trials

log = logging.getLogger(__name__)

_COUNTED: Final = {"unrouted": "to no subscriber"}
"""Names of message counters for people, where they differ from the key of the status."""


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Data directory; created when it does not exist.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, exists=True),
    help="YAML file of resources, used instead of the applied ones.",
)
@click.option("--dev", is_flag=True, help="Try Waypost: loopback only, no authentication, a preset address space.")
@click.option("--mqtt", metavar="HOST:PORT", help="Listen for MQTT here; port 0 picks a free one.")
@click.option("--amqp", metavar="HOST:PORT", help="Listen for AMQP 1.0 here.")
@click.option("--http", metavar="HOST:PORT", help="Serve console, HTTP API and status here.")
@click.option("--mqtt-ws", metavar="HOST:PORT", help="Listen for MQTT over WebSocket here.")
@click.option("--amqp-ws", metavar="HOST:PORT", help="Listen for AMQP 1.0 over WebSocket here.")
@click.option("--hub", metavar="URL", help="Bridge to this hub: amqp://HOST:PORT. Needs --gateway and --forward.")
@click.option("--gateway", metavar="NAME", help="Name of this gateway at the hub.")
@click.option("--forward", "filters", metavar="FILTER", multiple=True, help="Forward messages that match this filter.")
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/"),
    hidden=True,
    help="Root of the machine's file system, with the record of the running system.",
)
def run(
    data: Path,
    config: Path | None,
    dev: bool,
    mqtt: str | None,
    amqp: str | None,
    http: str | None,
    mqtt_ws: str | None,
    amqp_ws: str | None,
    hub: str | None,
    gateway: str | None,
    filters: tuple[str, ...],
    root: Path,
) -> None:
    """Run a gateway until SIGTERM.

    Prints one line when it is ready: `ready mqtt=HOST:PORT amqp=HOST:PORT http=HOST:PORT`.

    \b
    A gateway to try, with an uplink to a hub on this machine:
      waypost run --data ./gw1 --dev --hub amqp://127.0.0.1:5673 --gateway gw1 --forward 'plant/#'
    """
    from edge.configuration.options import RunOptions

    options = RunOptions(
        data=data,
        root=root,
        config=config,
        dev=dev,
        mqtt=mqtt,
        amqp=amqp,
        http=http,
        mqtt_ws=mqtt_ws,
        amqp_ws=amqp_ws,
        hub=hub,
        gateway=gateway,
        forward=filters,
    )
    prepared = _read_configuration(options)
    _require_parts()
    log_to_stderr(logging.INFO)
    faulthandler.enable()  # a watchdog ends this process by SIGABRT: the log then shows each thread's stack
    while not _serve(options, *prepared):
        prepared = _read_configuration(options)
    sys.exit(int(Exit.DONE))


def _read_configuration(options: RunOptions) -> tuple[BrokerConfiguration, AppliedConfiguration]:
    """Return the configuration to serve. A trial of the hub's configuration that cannot be served is rolled back.

    Raises CommandError.
    """
    from bridge.resources.errors import ConfigurationRejected
    from edge.configuration.file import RepositoryError
    from edge.configuration.following import AppliedConfiguration
    from edge.configuration.local_trial import end_trial_at_start
    from edge.configuration.options import OptionsRefused, configuration_of
    from edge.configuration.trials import count_start, roll_back_start

    try:
        count_start(options)
        if options.config is None:
            end_trial_at_start(options.data)
        while True:
            try:
                applied = AppliedConfiguration.read(options)
                return configuration_of(options, applied.resources), applied
            except (OptionsRefused, ConfigurationRejected) as error:
                if not roll_back_start(options, str(error)):
                    raise
    except OptionsRefused as refused:
        raise CommandError(str(refused), hint=refused.hint, code=Exit.USAGE, error="configuration-rejected") from None
    except ConfigurationRejected as rejected:
        lines = "\n".join(str(error) for error in rejected.errors)
        raise CommandError(
            lines,
            hint="nothing was started; correct the resources above",
            code=Exit.USAGE,
            error="configuration-rejected",
        ) from None
    except RepositoryError as error:
        raise CommandError(str(error), error="configuration-not-readable") from None


def _require_parts() -> None:
    """Refuse to start a gateway that lacks a part. Raises CommandError."""
    from edge.appliance.parts import fault_of

    fault = fault_of()
    if fault:
        hint = "reinstall Waypost: pip install --force-reinstall 'waypost[edge]'"
        raise CommandError(f"a part of the gateway cannot be loaded: {fault}", hint=hint, error="part-missing")


def _serve(options: RunOptions, configuration: BrokerConfiguration, applied: AppliedConfiguration) -> bool:
    """Serve until stopped; return False to restart the gateway. Raises CommandError."""
    import uvloop

    from edge.broker.listeners.tcp import ListenError, require_free
    from edge.broker.security.credentials import CredentialsError
    from edge.broker.store.errors import StoreBusy, StoreError
    from edge.broker.store.lock import is_held
    from edge.broker.store.sqlite import check_directory
    from edge.configuration.trials import roll_back_start
    from edge.health.data_owner import forbid_core_dumps
    from edge.health.priority import raise_priority, shorten_thread_switches

    try:
        forbid_core_dumps()
        raise_priority()
        shorten_thread_switches()
        check_directory(options.data)
        for listener in configuration.listeners:
            if not is_held(options.data):  # otherwise the gateway that holds the directory is the problem to report
                require_free(listener.name, listener.endpoint.host, listener.endpoint.port)
        return bool(uvloop.run(_run(configuration, options, applied)))
    except ListenError as error:
        if roll_back_start(options, str(error)):
            return False
        raise CommandError(str(error), code=Exit.USAGE, error="port-not-free") from None
    except StoreBusy as error:
        raise CommandError(str(error), code=Exit.USAGE, error="store-in-use") from None
    except (StoreError, CredentialsError) as error:
        raise CommandError(str(error), error="store-not-opened") from None


def _allow_files(wanted: int) -> None:
    """Raise the limit of open files to the connection limit.

    Log a warning when the hard limit is lower: the system then refuses the connections beyond it.
    """
    allowed = allow_files(wanted)
    if allowed < wanted:
        log.warning("only %d files can be open, for up to %d connections: raise the limit (ulimit -n)", allowed, wanted)


async def _run(configuration: BrokerConfiguration, options: RunOptions, applied: AppliedConfiguration) -> bool:
    """Serve until SIGTERM; return False to restart the gateway."""
    from edge.appliance.gateway import Gateway
    from edge.broker.listeners.heap import collect_seldom
    from edge.broker.store.errors import StoreReplaced
    from edge.configuration.following import ConfigurationFollower
    from edge.health.service_manager import ServiceManager
    from edge.output.logs import unhandled

    manager = ServiceManager(os.environ)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(unhandled)
    ended, stopped = asyncio.Event(), asyncio.Event()

    def end() -> None:
        stopped.set()
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    _allow_files(configuration.limits.connections_max + FILES_BESIDE_CONNECTIONS)
    collect_seldom()
    gc.disable()  # until the store is read: saves a third of the start-up with 100 000 names
    following = ConfigurationFollower(options, applied)
    trials = _trials(options, following, restart=ended.set)
    configuring = partial(_configuring, options, following, trials) if options.config is None else None
    gateway = Gateway(configuration, options.data, configuring, development=options.dev, trials=trials)
    bound = await gateway.start()
    sys.path_importer_cache.clear()  # listings of module folders, half a MiB; the next import reads them again
    gc.freeze()  # objects made so far live as long as the process
    gc.enable()
    replaced = asyncio.create_task(gateway.replaced())
    replaced.add_done_callback(lambda _: ended.set())
    watching = asyncio.create_task(following.watch(gateway, trials.send_report))
    trials.start(gateway)
    first = [name for name in ("mqtt", "amqp", "http") if name in bound]
    names = [*first, *(name for name in bound if name not in first)]
    places = (f"{name}={authority(*bound[name])}" for name in names)
    _note_endpoints(options.data, bound)
    with contextlib.suppress(BrokenPipeError):  # after a restart the reader of the first line may have gone
        print("ready", *places, flush=True)  # the documented interface: one line on stdout
    manager.notify_ready(gateway.works)
    await ended.wait()
    remove_endpoints(options.data)
    if stopped.is_set():  # a restart is not reported to the service manager
        manager.stop()
    gone = replaced.done()
    replaced.cancel()
    watching.cancel()
    await trials.stop()
    await gateway.stop()
    if gone:
        raise StoreReplaced(
            f"{options.data} was deleted or moved and created again while the gateway ran. The gateway has stopped: "
            "it can no longer read or write its store. Start it again to serve the directory that is there now"
        )
    return stopped.is_set()


def _note_endpoints(data: Path, bound: Mapping[str, tuple[str, int]]) -> None:
    try:
        write_endpoints(data, bound)
    except OSError as error:  # a full disk must not keep the gateway from serving
        log.warning("%s: %s; commands on this machine need --http", error.filename or data, error.strerror or error)


def _trials(options: RunOptions, following: ConfigurationFollower, restart: Callable[[], None]) -> Trials:
    """Return the trials of configurations from the hub; `restart` restarts the gateway."""
    from edge.appliance.identity.location import identity_file
    from edge.appliance.update.following import SystemFollower
    from edge.configuration.trials import Trials

    return Trials(
        options.data,
        following,
        certificate=identity_file(options.data),
        verify=partial(_verify, options.data),
        system=SystemFollower(options.data, options.root),
        restart=restart,
    )


def _verify(data: Path, signed: SignedDesired) -> VerifiedDesired:
    """Verify a document from the hub. Raises `DesiredError`."""
    from edge.appliance.identity.signature import verify

    return verify(signed, data)


def _configuring(
    options: RunOptions, following: ConfigurationFollower, trials: Trials, gateway: Gateway
) -> ConfigurationService:
    """Return the configuration of a gateway for its console and for AMQP. It is not available with --config."""
    from edge.appliance.configuring.service import ConfigurationService
    from edge.configuration.local import LocalConfiguration
    from edge.configuration.management import AddressAdministration
    from edge.configuration.repository import Repository

    async def reload() -> None:
        await following.follow(gateway)
        trials.send_report()

    repository = Repository(options.data)
    local = LocalConfiguration(repository, following)
    plan = partial(_bridge_plan, options.data)
    return ConfigurationService(local, AddressAdministration(repository, reload), reload, plan)


def _bridge_plan(data: Path, before: BrokerConfiguration, after: BrokerConfiguration) -> list[str]:
    """Return what changes at connectors and forwarders, as sentences."""
    from edge.appliance.crossing.plan import changes, waiting_in

    return [change.sentence for change in changes(before, after, waiting_in(data))]


@click.command()
@data_option
@http_option
@json_option("status")
def status(data: Path | None, http: str | None, as_json: JsonOutput | None) -> None:
    """Show the status of a gateway.

    If the gateway requires a login, give --data and run this command as the gateway's user.
    """
    client = gateway_client(data, http)
    document = client.ask("status")
    if not isinstance(document, dict) or "store" not in document:
        raise CommandError(
            f"{client.url} is not a gateway",
            hint="for a hub: waypost hub status, or its console in a browser",
            error="answer-not-understood",
        )
    if as_json:
        as_json.show([document])
        return
    _print_status(document)


def _print_status(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from edge.appliance.wear import Outlook, advice, lasting_line, written_line
    from edge.health.printing import print_problems

    wear = msgspec.convert(document["store"]["wear"], Outlook)
    uplink, messages, clients = document["uplink"], document["messages"], document["clients"]
    store = document["store"]
    memory = store.get("memory_bytes", 0)
    table = Table(show_header=False, box=None, pad_edge=False)
    rows = {
        "gateway": f"{document['gateway'] or '-'}  (epoch {document['epoch'][:8]}, version {document['version']})"
        + (", development mode: no credentials" if document.get("dev") else ""),
        "up": f"{document['uptime_s']:.0f} s",
        "clients": ", ".join(f"{count} {name}" for name, count in clients.items()),
        "messages": ", ".join(f"{count:,} {_COUNTED.get(name, name)}" for name, count in messages.items()),
        "store": f"{counted(store['messages'], 'message')}, {store['file_bytes'] / 1e6:,.1f} MB on disk"
        + (f", {memory / 1e3:,.1f} kB of messages in memory only" if memory else ""),
        "written": written_line(wear),
        "card": lasting_line(wear),
        "uplink": _format_uplinks(document),
        "clock": "synchronized by a time service" if document.get("clock") == "good" else "not known to be correct",
        "backlog": f"{counted(uplink.get('backlog_messages', 0), 'message')} not accepted by {_receiver(document)} yet",
    }
    if (set_up := document.get("first_boot") or {}).get("done_at"):
        rows["set up"] = f"{set_up['done_at']} by its card, as {set_up.get('hostname', '-')}"
    progress = uplink.get("progress") or {}
    if progress.get("budget_bytes"):
        spent, budget = progress["spent_bytes"], progress["budget_bytes"]
        rows["budget"] = (
            f"{spent / 1e6:,.1f} of {budget / 1e6:,.1f} MB of this month used ({100 * spent / budget:.0f} %)"
        )
    spare = advice(wear)
    if spare is not None:
        rows["advice"] = spare
    for name, value in rows.items():
        table.add_row(styled(name, "bold"), styled(value))
    out = Console()
    print_problems(document.get("problems", ()), out)
    out.print(table)
    rooms = [room for room in document["store"]["room"] if room["quota"] is not None or room["reserve"]]
    if rooms or document["store"]["quota"] is not None:
        _print_room(document["store"], out)


def _format_uplinks(document: dict[str, Any]) -> str:
    """Return the state of a single connector, or one line for each of several."""
    connectors = document.get("bridge", {}).get("connectors", ())
    if len(connectors) < 2:
        uplink = document["uplink"]
        return f"{uplink['state']} {uplink.get('endpoint', '')}{''.join(map(_failure_of, connectors))}"
    lines = [
        f"{each['name']} ({each['type']}): {each['state']} {each['endpoint'] or ''}{_failure_of(each)}"
        for each in connectors
    ]
    return "\n".join([*lines, "details: waypost bridge status"])


def _failure_of(connector: dict[str, Any]) -> str:
    """Return the reason why a connector is not connected; empty when it is."""
    error = connector.get("last_error")
    return f": {error}" if error and connector["state"] == "connecting" else ""


def _receiver(document: dict[str, Any]) -> str:
    """Return the name of the receivers of forwarded messages."""
    types = {each["type"] for each in document.get("bridge", {}).get("connectors", ())}
    return "the hub" if types <= {"waypost"} else "their peers"


def _print_room(store: dict[str, Any], out: Console) -> None:
    """Print use and quota of each address, in the order in which addresses give way when space runs out."""
    from rich.table import Table

    def size(count: int | None) -> str:
        return "-" if count is None else f"{count / 1e6:,.1f}"

    full = (
        "free space is at the configured minimum (limits.freeFloorBytes)"
        if store["at_floor"]
        else f"space: {size(store['quota'])} MB"
    )
    table = Table(title=f"Space, MB ({full})", title_justify="left", box=None, pad_edge=False)
    for name in ("address", "used", "quota", "reserve", "when full", "priority", "refused"):
        table.add_column(name, justify="left" if name in ("address", "when full") else "right")
    for room in store["room"]:
        sizes = (size(room[name]) for name in ("used", "quota", "reserve"))
        table.add_row(styled(room["address"]), *sizes, room["when_full"], str(room["priority"]), f"{room['refused']:,}")
    out.print(table)
