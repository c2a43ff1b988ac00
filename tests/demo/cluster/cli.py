"""`./waypost hub cluster-demo`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from tests.demo.cluster.launching import Launcher
from tests.demo.cluster.programs import find_programs
from tests.demo.cluster.topology import Cluster, explain
from tests.demo.errors import DemoError
from tests.demo.processes import Children

EXIT_FAILED: Final = 1
EXIT_INTEGRITY: Final = 4
EXIT_INTERRUPTED: Final = 130
CHECKED_EVERY_S: Final = 1.0
"""Interval of looking whether all processes run."""
FOLDER_MODE: Final = 0o711
"""The user of PostgreSQL reaches its folder in it."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Options of a run."""

    hubs: int
    gateways: int
    once: bool
    seconds: float
    keycloak: bool


@click.command()
@click.option("--hubs", type=click.IntRange(1, 9), default=3, show_default=True, help="Number of hubs.")
@click.option("--gateways", type=click.IntRange(1, 50), default=3, show_default=True, help="Number of gateways.")
@click.option("--once", is_flag=True, help="Restart each hub, compare lake and acknowledgements, and end.")
@click.option("--seconds", type=click.FloatRange(1, 3600), default=10.0, show_default=True, help="Traffic of --once.")
@click.option("--keycloak", is_flag=True, help="Let people sign in at a Keycloak, and gateways enrol.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Keep everything in this new folder.")
def cluster_demo(*, hubs: int, gateways: int, once: bool, seconds: float, keycloak: bool, out: Path | None) -> None:
    """Run hubs as replicas on this machine: what a cluster of Kubernetes runs, as processes.

    HAProxy in TCP mode, three hubs, PostgreSQL with a synchronous standby for the registry, an S3 server for the lake,
    RabbitMQ for applications, and gateways with a device each. Everything listens on loopback without credentials.
    With --keycloak TLS ends at the hubs, gateways enrol through HAProxy, and people of a realm sign in.
    Ctrl-C ends all of it and deletes its files, unless --out keeps them.

    Needs Debian's packages haproxy and postgresql; RabbitMQ runs if rabbitmq-server is installed. --keycloak needs Java
    and, the first time, Maven: it fetches Keycloak (147 MB) and keeps it in ~/.cache/waypost.

    Exit codes: 0 as asked, 1 something failed to run, 4 the numbers of --once do not add up.
    """
    sys.exit(asyncio.run(_main(ClusterOptions(hubs, gateways, once, seconds, keycloak), out)))


async def _main(options: ClusterOptions, out: Path | None) -> int:
    """Run the demo; return the exit code. Signals end the run and its processes."""
    playing = asyncio.create_task(_run(options, out))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, playing.cancel)
    try:
        return await playing
    except asyncio.CancelledError:
        return EXIT_INTERRUPTED
    except DemoError as why:
        click.echo(f"error: {why}" + (f"\n{why.detail}" if why.detail else ""), err=True)
    except OSError as why:
        click.echo(f"error: {why}", err=True)
    return EXIT_FAILED


async def _run(options: ClusterOptions, out: Path | None) -> int:
    programs = find_programs(keycloak=options.keycloak)
    with _folder(out) as folder:
        async with Children(folder / "logs") as children:
            launcher = Launcher(children, programs)
            cluster = Cluster(
                folder,
                launcher,
                hubs=options.hubs,
                gateways=options.gateways,
                keycloak=options.keycloak,
                say=click.echo,
            )
            try:
                await cluster.start()
                return await (_once(cluster, options.seconds) if options.once else _stay(cluster))
            finally:
                click.echo("ending")
                await cluster.stop()


async def _once(cluster: Cluster, seconds: float) -> int:
    """Restart each hub under traffic, and compare. Return the exit code."""
    users = cluster.users()
    try:
        await users.start()
        await asyncio.sleep(seconds / 2)
        await cluster.roll()
        await asyncio.sleep(seconds / 2)
        cluster.check()
        click.echo("comparing the requests of users with the results")
        accounts = list(await users.compare())
        sums = await cluster.compare()
        accounts += await users.compare_copies(await asyncio.to_thread(cluster.rows))
    finally:
        await users.stop()
    click.echo(explain(sums))
    for each in accounts:
        click.echo(each.explain())
    return 0 if sums.adds_up and all(each.adds_up for each in accounts) else EXIT_INTEGRITY


async def _stay(cluster: Cluster) -> int:
    """Show the addresses, and stay until a signal. Raises DemoError when a process ends."""
    for name, address in cluster.addresses():
        click.echo(f"{name:<20} {address}")
    click.echo("Ctrl-C ends it")
    while True:
        cluster.check()
        await asyncio.sleep(CHECKED_EVERY_S)


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """Yield the folder of the run: a new one that is kept, or one that is deleted. Raises DemoError."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="waypost-cluster-", ignore_cleanup_errors=True) as made:
            Path(made).chmod(FOLDER_MODE)
            yield Path(made)
        return
    try:
        out.mkdir(mode=FOLDER_MODE, parents=True)
    except FileExistsError:
        raise DemoError(f"{out} exists: name a new folder in --out") from None
    yield out.resolve()
