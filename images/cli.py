"""`waypost image`: build gateways that are installed or booted without a source checkout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bridge.hub_bundles import SCHEME
from images.card.cli import configure
from images.container.cli import container
from images.errors import USAGE, ImageError
from images.options import cache_option, mirror_options, out_option

if TYPE_CHECKING:
    from images.debian import Mirror
    from images.disk.vulnerabilities import VulnerabilityData
    from images.steps import BuildSteps

machine_option = click.option(
    "--machine",
    type=click.Choice(["x86_64", "aarch64"]),
    help="Architecture to build for.  [default: that of this machine]",
)
key_option = click.option(
    "--key", type=click.Path(path_type=Path, exists=True), help="Sign with this key (PEM), with --certificate."
)
trust_option = click.option(
    "--trust",
    "trusted",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Gateways accept updates of this certificate's key too (PEM), as of the next key; repeatable.",
)
fresh_option = click.option(
    "--fresh", is_flag=True, help="Use the newest packages of Debian instead of those of the last build."
)
cve_option = click.option(
    "--cve-data",
    "cve_data",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Data of Debian's security tracker (JSON) or of OSV for PyPI (zip); repeatable. Nothing is fetched.",
)
into_option = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Folder for the results.  [default: the current one]",
)


@click.group()
def image() -> None:
    """Build a gateway to install. As a folder, a Debian package, a card image or a container image.

    Build steps with unchanged inputs are skipped.
    """


@image.command()
@cache_option
@mirror_options
@machine_option
@fresh_option
@out_option
def freeze(
    cache: Path | None,
    mirror: str | None,
    security_mirror: str | None,
    expired: bool,
    machine: str | None,
    fresh: bool,
    out: Path,
) -> None:
    """Build a gateway with its own Python.

    \b
    It runs on machines without Python:
      waypost image freeze --out ./frozen && ./frozen/waypost run --dev --data ./data
    """
    from images.debian import Mirror
    from images.frozen.freezing import PROGRAM
    from images.output import check_target, copy_tree
    from images.steps import BuildSteps, default_cache

    check_target(out, holding=PROGRAM)
    made, _ = _freeze(
        BuildSteps(cache or default_cache()), machine, Mirror(mirror, security_mirror, expired=expired), fresh=fresh
    )
    copy_tree(made, out, holding=PROGRAM)
    click.echo(out)


@image.command()
@cache_option
@mirror_options
@machine_option
@fresh_option
@into_option
def flasher(
    cache: Path | None,
    mirror: str | None,
    security_mirror: str | None,
    expired: bool,
    machine: str | None,
    fresh: bool,
    out: Path,
) -> None:
    """Build `waypost flash` as one program. It is for Linux laptops without Waypost: Debian 12 or newer.

    For another kind of machine it needs root, and takes some minutes in an emulator.

    \b
    On the laptop (Linux):
      chmod +x waypost-flash-* && sudo ./waypost-flash-* waypost-0.1.0-pi4.img.zst /dev/sdX
    For a laptop with a processor of ARM, on another machine:
      sudo waypost image flasher --machine aarch64
    """
    import platform

    from images.debian import Mirror
    from images.frozen.flasher import freeze_flasher
    from images.output import check_target, copy_file
    from images.steps import BuildSteps, default_cache

    check_target(out)
    steps, packages = BuildSteps(cache or default_cache()), Mirror(mirror, security_mirror, expired=expired)
    made = copy_file(freeze_flasher(steps, machine or platform.machine(), packages, fresh=fresh), out)
    made.chmod(0o755)
    click.echo(made)


@image.command()
@cache_option
@mirror_options
@machine_option
@fresh_option
@into_option
def package(
    cache: Path | None,
    mirror: str | None,
    security_mirror: str | None,
    expired: bool,
    machine: str | None,
    fresh: bool,
    out: Path,
) -> None:
    """Build a Debian package of a gateway. It is for Debian 12 or newer and Raspberry Pi OS.

    \b
    Install it on the gateway's machine, which also starts it:
      sudo apt install ./waypost_*.deb
    """
    from images.debian import Mirror
    from images.output import check_target, copy_file
    from images.package import deb
    from images.steps import BuildSteps, default_cache

    check_target(out)
    steps = BuildSteps(cache or default_cache())
    made = _freeze(steps, machine, Mirror(mirror, security_mirror, expired=expired), fresh=fresh)
    click.echo(copy_file(deb.build_package(steps, *made), out))


@image.command()
@cache_option
@mirror_options
@click.option(
    "--board", type=click.Choice(["pi5", "pi4", "pi3", "zero2w", "qemu"]), required=True, help="Board to build for."
)
@key_option
@click.option(
    "--certificate",
    type=click.Path(path_type=Path, exists=True),
    help="Certificate (PEM) that gateways store. Without --key: then sign with `waypost image sign`.",
)
@trust_option
@fresh_option
@into_option
@cve_option
@click.option(
    "--url", metavar="URL", help="URL of the folder from which Raspberry Pi Imager downloads it.  [default: --out]"
)
def build(
    cache: Path | None,
    mirror: str | None,
    security_mirror: str | None,
    expired: bool,
    board: str,
    key: Path | None,
    certificate: Path | None,
    trusted: tuple[Path, ...],
    fresh: bool,
    out: Path,
    cve_data: tuple[Path, ...],
    url: str | None,
) -> None:
    """Build a card image, compressed and signed.

    Its folder also gets a block map, checksums, a signature, a bill of materials and the manifest for Raspberry Pi
    Imager.

    With --cve-data it also lists the known vulnerabilities of its packages, as `waypost image cve` does later.

    Needs root. The first build takes about ten minutes with downloads. It takes five minutes after a change of the
    gateway, and one minute after a change of the files that are added to Debian. Without --key the image is signed
    with a test key of this machine.

    \b
    For a Raspberry Pi 4, and for a Raspberry Pi 5:
      sudo waypost image build --board pi4 --out ./cards
      sudo waypost image build --board pi5 --out ./cards
    """
    from images.building import build_image
    from images.debian import IMAGES, Mirror
    from images.disk import imager, vulnerabilities
    from images.disk.building import image_name
    from images.output import check_target, copy_file, write_text
    from images.steps import BuildSteps, default_cache

    _require_fetchable(url)
    check_target(out)
    known = vulnerabilities.read_data(cve_data) if cve_data else None
    folder = cache or default_cache()
    packages = Mirror(mirror, security_mirror, IMAGES, expired=expired)
    made = build_image(BuildSteps(folder), folder, board, packages, (key, certificate), trusted=trusted, fresh=fresh)
    for file in sorted(made.iterdir()):
        if file.name != imager.FILE:
            click.echo(copy_file(file, out))
    if (made / imager.FILE).is_file():
        manifest = imager.make_manifest((made / imager.FILE).read_text(), url or out.resolve().as_uri())
        click.echo(write_text(out / f"{image_name(board)}{imager.SUFFIX}", manifest))
    _say_who_signs(key, certificate)
    if known is None:
        click.echo(f"  {vulnerabilities.NO_DATA}", err=True)
        return
    _write_vulnerabilities(made / f"{image_name(board)}{vulnerabilities.SBOM_SUFFIX}", known, out)


@image.command()
@click.argument("sbom", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@cve_option
@into_option
def cve(sbom: Path, cve_data: tuple[Path, ...], out: Path) -> None:
    """List known vulnerabilities of an image.

    It reads the bill of materials (X.spdx.json), and writes X.cve.json, and X.cve.txt as a table. Repeat it with newer
    data, also for images of earlier releases.

    \b
    The data of Debian's security tracker, and of OSV for the gateway's Python packages:
      curl -o tracker.json https://security-tracker.debian.org/tracker/data/json
      curl -o pypi.zip https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip
      waypost image cve waypost-0.1.0-pi4.spdx.json --cve-data tracker.json --cve-data pypi.zip
    """
    from images.disk import vulnerabilities
    from images.output import check_target

    check_target(out)
    if not cve_data:
        raise ImageError("name the data to compare with: --cve-data", hint=vulnerabilities.SOURCES, code=USAGE)
    _write_vulnerabilities(sbom, vulnerabilities.read_data(cve_data), out)


@image.command()
@cache_option
@mirror_options
@key_option
@click.option(
    "--certificate",
    type=click.Path(path_type=Path, exists=True),
    help="Certificate (PEM) that gateways have. Without --key: then sign with `waypost image sign`.",
)
@trust_option
@fresh_option
@into_option
@click.option(
    "--url",
    metavar="URL",
    help="URL of the folder from which gateways will download it, or `hub:` for their hub; also writes the `System` "
    "resource.",
)
def bundle(
    cache: Path | None,
    mirror: str | None,
    security_mirror: str | None,
    expired: bool,
    key: Path | None,
    certificate: Path | None,
    trusted: tuple[Path, ...],
    fresh: bool,
    out: Path,
    url: str | None,
) -> None:
    """Build the bundle of an update. It is signed like an image.

    Gateways accept it if their image was signed with the same key. A bundle works on all boards, because it contains
    neither firmware nor boot loader. Needs root. With the index of its blocks (.raucb.blocks) next to it on the
    server, gateways fetch only what changed.

    \b
    On a gateway:
      waypost update install waypost-*.raucb
    From a hub, in stages, which serves the bundle itself (or --url https://files.example/waypost):
      waypost image bundle --url hub:
      waypost hub bundle add --data HUBDIR waypost-*.raucb
      waypost rollout start -f waypost-*.system.yaml --waves 1,10%,100% 'store-*'
    """
    from images.building import build_bundle
    from images.debian import IMAGES, Mirror
    from images.disk.bundle import make_resource, resource_name
    from images.output import check_target, copy_file, write_text
    from images.steps import BuildSteps, default_cache

    if url is not None and certificate is not None and key is None:
        hint = "give --url to `waypost image sign`"
        raise ImageError("a System has the checksum of the signed bundle", hint=hint, code=USAGE)
    if url != SCHEME:
        _require_fetchable(url)
    check_target(out)
    folder = cache or default_cache()
    packages = Mirror(mirror, security_mirror, IMAGES, expired=expired)
    made = build_bundle(BuildSteps(folder), folder, packages, (key, certificate), trusted=trusted, fresh=fresh)
    click.echo(copy_file(made.file, out))
    click.echo(copy_file(made.block_index, out))
    if url is not None:
        click.echo(write_text(out / resource_name(made), make_resource(made, url)))
    _say_who_signs(key, certificate)


@image.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--builder-certificate",
    "builder",
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Certificate of the building machine's test key (PEM), to verify the files.",
)
@click.option(
    "--key",
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Sign with this key (PEM).",
)
@click.option(
    "--certificate",
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Certificate of that key (PEM), which gateways have.",
)
@click.option(
    "--trusts",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Certificate that the systems have to trust (PEM), for a change of the key; name all.  "
    "[default: --certificate]",
)
@into_option
@click.option(
    "--url", metavar="URL", help="URL of the folder of the bundles, or `hub:`; also writes the `System` resource."
)
def sign(
    files: tuple[Path, ...],
    builder: Path,
    key: Path,
    certificate: Path,
    trusts: tuple[Path, ...],
    out: Path,
    url: str | None,
) -> None:
    """Sign what another machine has built.

    The key stays on a machine without a network, and the building machine has its certificate only. FILES are checksums
    of images (X.sha256, with the image's files next to them) and bundles (X.raucb, with X.raucb.blocks). The building
    machine's signature and all checksums are verified before. So is which keys gateways with these systems will trust:
    exactly those of --trusts, and never the building machine's.

    \b
    The building machine, with the certificate of the key:
      sudo waypost image build --board pi4 --certificate release.pem --out ./cards
      sudo waypost image bundle --certificate release.pem --out ./cards
    The machine with the key; builder.pem is development-key/certificate.pem of the builder's cache:
      waypost image sign cards/*.sha256 cards/*.raucb --builder-certificate builder.pem \\
        --key key.pem --certificate release.pem --out ./signed
    """
    import tempfile

    from images.disk import signing
    from images.disk.bundle import make_resource, resource_name
    from images.disk.release_signing import BUNDLE, ReleaseSigner, check_files
    from images.output import check_target, copy_file, write_text

    if url is not None and not any(file.suffix == BUNDLE for file in files):
        raise click.UsageError("--url requires a bundle")
    if url != SCHEME:
        _require_fetchable(url)
    check_target(out)
    check_files(files, out)
    keys = signing.load_keys(Path(), key, certificate)
    signing.require_other_keys(builder, (certificate, *trusts))
    with tempfile.TemporaryDirectory(prefix="waypost-sign-") as work:
        signer = ReleaseSigner(keys, builder, Path(work), trusts)
        bundles = [signer.sign_bundle(file) for file in files if file.suffix == BUNDLE]
        signatures = [signer.sign_checksums(file) for file in files if file.suffix != BUNDLE]
        for made in bundles:
            click.echo(copy_file(made.block_index, out))
            click.echo(copy_file(made.file, out))
            if url is not None:
                click.echo(write_text(out / resource_name(made), make_resource(made, url)))
        for signature in signatures:
            click.echo(copy_file(signature, out))


image.add_command(configure)
image.add_command(container)


@image.command("run")
@click.argument("img", type=click.Path(path_type=Path))
@click.option(
    "--port", "ports", metavar="HOST:GUEST", multiple=True, help="Port to forward; repeatable.  [default: 21883:1883 …]"
)
@click.option("--disk", type=click.Path(path_type=Path), help="Keep the card in this file, for the next run.")
@click.option(
    "--screenshot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write an image of its screen (SVG) once it serves, and stop.",
)
@click.option("--until", metavar="TEXT", help="With --screenshot: wait for this text on the console instead.")
def run_image(img: Path, ports: tuple[str, ...], disk: Path | None, screenshot: Path | None, until: str | None) -> None:
    """Boot an image in an emulator (QEMU).

    The gateway's ports on this machine are 20000 higher. This terminal is the console; Ctrl-A X stops the machine.

    \b
    MQTT is at 127.0.0.1:21883 and AMQP at 25672. An enrolled gateway has MQTT over TLS at 28883 and HTTPS at 20443:
      waypost image run ./cards/waypost-0.1.0-qemu.img.zst
    """
    import tempfile

    from images.emulator import machine, screen
    from images.output import check_target, write_text

    if until is not None and screenshot is None:
        raise click.UsageError("--until requires --screenshot")
    if screenshot is not None:
        check_target(screenshot.parent)
    forwarded = machine.parse_ports(ports)
    if disk is None or not disk.exists():
        machine.require_image(img)
    machine.check_prerequisites(forwarded)
    with tempfile.TemporaryDirectory(prefix="waypost-image-") as folder:
        card = machine.make_disk(img, Path(folder), Path(folder) / "log", kept=disk)
        words = machine.build_command(card, forwarded)
        if screenshot is None:
            raise SystemExit(machine.boot(words))
        console = machine.boot_until(words, until or machine.SERVES, machine.SERVES_S)
        click.echo(write_text(screenshot, screen.render_svg(console, img.name)))


def _write_vulnerabilities(sbom: Path, data: VulnerabilityData, out: Path) -> None:
    """Write the known vulnerabilities of an image as a document and as a table."""
    from images.disk import vulnerabilities
    from images.output import write_text

    found = vulnerabilities.list_vulnerabilities(sbom, data)
    name = sbom.name.removesuffix(vulnerabilities.SBOM_SUFFIX)
    click.echo(write_text(out / f"{name}{vulnerabilities.SUFFIX}", found.to_json()))
    click.echo(write_text(out / f"{name}{vulnerabilities.TABLE_SUFFIX}", found.to_table()))


def _say_who_signs(key: Path | None, certificate: Path | None) -> None:
    if certificate is not None and key is None:
        words = "signed with the test key of this machine, which gateways of these images refuse"
        click.echo(f"  {words}: see `waypost image sign --help`", err=True)
    elif key is None:
        words = "for trials: gateways of these images trust the test key of this machine"
        click.echo(f"  {words}; for releases name --certificate", err=True)


def _require_fetchable(url: str | None) -> None:
    """Raise ImageError unless the URL is HTTP or HTTPS."""
    if url is not None and not url.startswith(("https://", "http://")):
        raise ImageError(f"--url {url}: expected https://host/path", code=USAGE)


def _freeze(steps: BuildSteps, machine: str | None, mirror: Mirror, *, fresh: bool) -> tuple[Path, str]:
    """Return the folder of a frozen gateway, and its architecture."""
    import platform

    from images.frozen import by_machine

    machine = machine or platform.machine()
    return by_machine.freeze(steps, machine, mirror, fresh=fresh), machine
