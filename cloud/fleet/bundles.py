"""`waypost hub bundle add | list | remove`: update bundles that a hub serves to its gateways.

The commands work on the hub's folder of bundles; a running hub serves them at once.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cloud.fleet.audited import audited, change_of
from cloud.fleet.place import HubPlace, hub_of, hub_options
from edge.output.errors import CommandError
from edge.output.listing import JsonOutput, Listing, json_option, output_option, print_listing
from edge.output.terminal import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloud.hub.bundles.folder import BundleFolder

BUNDLES: Final = Listing("bundle", "name", ("name", "size", "has_index"), ("sha256",), empty="no bundles")


@click.group()
def bundle() -> None:
    """Manage update bundles that a hub serves.

    Gateways fetch them over the port of their uplink, with their certificate. A `System` resource names such a bundle
    by `url: hub:NAME`, which `waypost image bundle --url hub:` writes.
    """


@bundle.command()
@hub_options
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@json_option("bundle")
@audited("bundle.add", "file")
def add(hub: HubPlace, file: str, as_json: JsonOutput | None) -> None:
    """Add a bundle (.raucb).

    Its index (.raucb.blocks) is added too if it is next to it: then gateways fetch only what their running system does
    not have. A bundle of the same name is never replaced, as gateways may be fetching it.

    \b
    waypost hub bundle add --data HUBDIR cards/waypost-0.2.0-arm64.raucb
    waypost rollout start --data HUBDIR -f cards/waypost-0.2.0-arm64.system.yaml --waves 1,10%,100% 'store-*'
    """
    with _folder(hub) as folder:
        made = folder.add(Path(file))
    change_of("")
    if as_json:
        as_json.show([made._asdict()])
        return
    index = "with its index" if made.has_index else "without an index, so gateways fetch all of it"
    say(f"{made.name}: {made.size >> 20} MiB, {index}")
    say(f"a System names it by: url: hub:{made.name}")


@bundle.command("list")
@hub_options
@output_option("bundle")
def list_bundles(hub: HubPlace, form: str) -> None:
    """List the bundles of a hub."""
    with _folder(hub) as folder:
        rows = [each._asdict() for each in folder.bundles()]
    print_listing(BUNDLES, rows, form)


@bundle.command()
@hub_options
@click.argument("name")
@click.option("--force", is_flag=True, help="Remove it although gateways still need it.")
@json_option("bundle")
@audited("bundle.remove", "name")
def remove(hub: HubPlace, name: str, force: bool, as_json: JsonOutput | None) -> None:
    """Remove a bundle. Downloads that run end well.

    It is refused while a roll-out, a selector or the configuration of a gateway that has not updated names the bundle.
    """
    if not force:
        _require_unused(hub, name)
    with _folder(hub) as folder:
        removed = folder.remove(name)
    if not removed:
        step = f"list them: waypost hub bundle list {hub.quoted()}"
        raise CommandError(f"the hub has no bundle {name}", step, error="bundle-not-found")
    change_of("")
    if as_json:
        as_json.show([{"name": name}])
        return
    say(f"{name}: removed")


def _require_unused(hub: HubPlace, name: str) -> None:
    """Raise CommandError while gateways need a bundle."""
    from cloud.hub.registry.bundle_use import find_bundle_use
    from cloud.hub.registry.opening import open_registry

    with hub_of(hub) as (_, registry), contextlib.closing(open_registry(registry).database) as database:
        use = find_bundle_use(database, name)
    if any(use):
        step = "abort the roll-out, apply another System, or remove it all the same: --force"
        raise CommandError(f"{name} is needed by {use}", step, error="bundle-in-use")


@contextlib.contextmanager
def _folder(hub: HubPlace) -> Iterator[BundleFolder]:
    """Yield the folder of a hub's bundles. Raises CommandError, also for what the body refuses."""
    from cloud.hub.bundles.folder import BundleFolder, BundleRefused

    with hub_of(hub) as (settings, _):
        try:
            yield BundleFolder.of(settings.bundles, hub.data)
        except BundleRefused as refused:
            raise CommandError(str(refused), refused.hint, error="bundle-refused") from None
