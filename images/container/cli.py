"""`waypost image container`: a gateway, a hub or Spark's jobs in a container."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

import click

from images.errors import USAGE, ImageError
from images.options import cache_option, mirror_options, out_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from images.debian import Mirror
    from images.steps import Steps


@click.command()
@click.argument("role", type=click.Choice(["gateway", "hub", "analytics"]))
@cache_option
@mirror_options
@click.option(
    "--machine",
    "machines",
    type=click.Choice(["x86_64", "aarch64"]),
    multiple=True,
    help="For machines of this kind; repeatable.  [default: the one it is made on]",
)
@click.option(
    "--oci", is_flag=True, help="Build it, too, without Docker: an OCI archive beside the folder. Needs root."
)
@click.option("--fresh", is_flag=True, help="Take Debian's newest packages, not those of the last build.")
@out_option
def container(
    role: str,
    cache: Path | None,
    mirror: str | None,
    security_mirror: str | None,
    machines: tuple[str, ...],
    oci: bool,
    fresh: bool,
    out: Path,
) -> None:
    """Make what a container is built from, for Docker or balena.

    OUT is then a folder with a Dockerfile, what starts it, and all that they copy.

    \b
    A fleet of balena, or a machine with Docker:
      waypost image container gateway --machine aarch64 --out ./gateway && (cd gateway && balena push acme/gateways)
      waypost image container hub --out ./hub && (cd hub && HUB_NAME=hub.example docker compose up --build)

    \b
    A cluster of Kubernetes, for Spark's jobs on a lake in a bucket:
      waypost image container analytics --out ./analytics && docker build --tag waypost-analytics ./analytics
      kubectl apply -f ./analytics/spark-application.yaml
    """
    from images.container import oci as archives
    from images.debian import Mirror
    from images.output import copy_tree, require_place
    from images.package import deb
    from images.steps import Steps, default_cache

    require_place(out, holding="Dockerfile")
    steps, packages = Steps(cache or default_cache()), Mirror(mirror, security_mirror)
    wanted = machines or (platform.machine(),)
    if oci:
        archives.ready([deb.ARCHITECTURES[machine] for machine in wanted])
    context = (
        _gateway(steps, packages, wanted, fresh=fresh) if role == "gateway" else _of_this_machine(steps, role, wanted)
    )
    copy_tree(context, out, holding="Dockerfile")
    click.echo(out)
    if oci:
        for machine in wanted:
            click.echo(_built(steps, packages, role, machine, out, fresh=fresh))


def _gateway(steps: Steps, mirror: Mirror, machines: tuple[str, ...], *, fresh: bool) -> Path:
    from images.container import building
    from images.frozen import made
    from images.package import deb

    packages: Mapping[str, Path] = {
        deb.ARCHITECTURES[machine]: deb.package(steps, made.frozen(steps, machine, mirror, fresh=fresh), machine)
        for machine in machines
    }
    return building.gateway(steps, packages)


def _of_this_machine(steps: Steps, role: str, machines: tuple[str, ...]) -> Path:
    from images.container import building

    if machines != (platform.machine(),):
        raise ImageError(
            f"a container of a {role} is made on a machine of its kind; this is {platform.machine()}",
            hint="leave --machine out",
            code=USAGE,
        )
    return building.hub(steps) if role == "hub" else building.analytics(steps)


def _built(steps: Steps, mirror: Mirror, role: str, machine: str, context: Path, *, fresh: bool) -> Path:
    from images import source
    from images.container import oci
    from images.package import deb

    architecture = deb.ARCHITECTURES[machine]
    archive = oci.base(steps, mirror, architecture, oci.PACKAGES[role], fresh=fresh)
    target = context.with_name(f"waypost-{role}-{source.version()}-{architecture}.oci.tar")
    log = target.with_suffix(".log")
    log.unlink(missing_ok=True)
    oci.build(context, archive, architecture, f"waypost-{role}:{source.version()}", target, log)
    log.unlink()
    return target
