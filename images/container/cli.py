"""`waypost image container`: containers of a gateway, a hub or the Spark jobs."""

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
    from images.steps import BuildSteps


@click.command()
@click.argument("role", type=click.Choice(["gateway", "hub", "analytics"]))
@cache_option
@mirror_options
@click.option(
    "--machine",
    "machines",
    type=click.Choice(["x86_64", "aarch64"]),
    multiple=True,
    help="Kind of machine to build for; repeatable.  [default: this one's]",
)
@click.option(
    "--oci", is_flag=True, help="Also build it without Docker: an OCI archive next to the folder. Needs root."
)
@click.option("--fresh", is_flag=True, help="Take Debian's newest packages, not those of the last build.")
@out_option
def container(
    role: str,
    cache: Path | None,
    mirror: str | None,
    security_mirror: str | None,
    expired: bool,
    machines: tuple[str, ...],
    oci: bool,
    fresh: bool,
    out: Path,
) -> None:
    """Make the build folder of a container. It is for Docker or balena.

    OUT is a folder with a Dockerfile and all files that it copies.

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
    from images.output import check_target, copy_tree
    from images.package import deb
    from images.steps import BuildSteps, default_cache

    check_target(out, holding="Dockerfile")
    steps, packages = BuildSteps(cache or default_cache()), Mirror(mirror, security_mirror, expired=expired)
    wanted = machines or (platform.machine(),)
    if oci:
        archives.check_prerequisites([deb.ARCHITECTURES[machine] for machine in wanted])
    context = (
        _build_gateway(steps, packages, wanted, fresh=fresh)
        if role == "gateway"
        else _build_for_this_machine(steps, role, wanted)
    )
    copy_tree(context, out, holding="Dockerfile")
    click.echo(out)
    if oci:
        for machine in wanted:
            click.echo(_build_archive(steps, packages, role, machine, out, fresh=fresh))


def _build_gateway(steps: BuildSteps, mirror: Mirror, machines: tuple[str, ...], *, fresh: bool) -> Path:
    from images.container import building
    from images.frozen import by_machine
    from images.package import deb

    packages: Mapping[str, Path] = {
        deb.ARCHITECTURES[machine]: deb.build_package(
            steps, by_machine.freeze(steps, machine, mirror, fresh=fresh), machine
        )
        for machine in machines
    }
    return building.build_gateway(steps, packages)


def _build_for_this_machine(steps: BuildSteps, role: str, machines: tuple[str, ...]) -> Path:
    from images.container import building

    if machines != (platform.machine(),):
        raise ImageError(
            f"a container for {role} must be built on such a machine; this is {platform.machine()}",
            hint="leave out --machine",
            code=USAGE,
        )
    return building.build_hub(steps) if role == "hub" else building.build_analytics(steps)


def _build_archive(steps: BuildSteps, mirror: Mirror, role: str, machine: str, context: Path, *, fresh: bool) -> Path:
    from images import source
    from images.container import oci
    from images.package import deb

    architecture = deb.ARCHITECTURES[machine]
    archive = oci.build_base(steps, mirror, architecture, oci.PACKAGES[role], fresh=fresh)
    target = context.with_name(f"waypost-{role}-{source.read_version()}-{architecture}.oci.tar")
    log = target.with_suffix(".log")
    log.unlink(missing_ok=True)
    oci.build(context, archive, architecture, f"waypost-{role}:{source.read_version()}", target, log)
    log.unlink()
    return target
