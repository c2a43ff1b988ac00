"""Steps of `waypost init`: ask for missing settings, check all of them, then create store, resources and unit."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from bridge.hidden import hides
from bridge.resources.endpoint import ListenEndpoint
from bridge.resources.errors import ConfigurationRejected
from bridge.resources.parse import parse
from bridge.resources.resource import Resource
from edge.appliance.identity.commands import enrolled_at, proxy_of
from edge.appliance.identity.location import hub_tls
from edge.appliance.identity.own_certificate import OwnCertificate, fingerprint_of
from edge.appliance.initial import systemd as units
from edge.appliance.initial.defaults import AMQP, HTTP, HTTPS, MQTT, NONE
from edge.appliance.limits import FILES_BESIDE_CONNECTIONS
from edge.appliance.opening import reachable_url
from edge.appliance.program import as_called, launcher
from edge.broker.store.errors import StoreError
from edge.broker.store.sqlite import make_directory, open_store
from edge.configuration.effective import build_configuration, exposure, notices
from edge.configuration.file import RepositoryError
from edge.configuration.first_gateway import FirstGateway, yaml_of
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository
from edge.output.amounts import counted
from edge.output.errors import CommandError, Exit
from edge.output.terminal import say
from edge.output.text import word

FILE_NAME: Final = "gateway.yaml"
FILE_MODE: Final = 0o600
HEAD: Final = """\
# Made by `waypost init`. Change it, then: waypost apply --data DIR -f FILE
# Clients need credentials: waypost user add NAME --data DIR --profile sensor
"""
HUB_EXAMPLE: Final = "for example --hub amqps://hub.example:5671 --forward 'plant/#'"
NOTHING_MADE: Final = "nothing was created; run it again when that is fixed"


@hides("token", "proxy")
class InitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command; None: not given."""

    name: str | None
    mqtt: str | None
    amqp: str | None
    http: str | None
    https: str | None
    hub: Sequence[str]
    """URLs of the hub."""
    forward: Sequence[str]
    token: str | None = None
    """Token for the enrolment at the hub."""
    proxy: str | None = None
    """URL of the proxy to the hub."""

    @property
    def anything(self) -> bool:
        return msgspec.structs.replace(self, proxy=None) != NOTHING  # the proxy may be from the environment


NOTHING: Final = InitOptions(name=None, mqtt=None, amqp=None, http=None, https=None, hub=(), forward=())


def make(data: Path, options: InitOptions, *, systemd: bool) -> None:
    """Create the gateway in `data`, and show the next step. Raises CommandError; then nothing was created."""
    repository = Repository(data)
    try:
        applied = repository.load().resources
        if options.anything and applied:
            raise _configured(data, options.hub)
        wanted = None
        if options.anything:
            wanted = _preset(options)
        elif sys.stdin.isatty() and not applied:
            wanted = _ask_settings(_preset(options))
        file, unit = data / FILE_NAME, data.resolve() / units.UNIT_NAME
        with contextlib.ExitStack() as undo:
            undo.callback(_remove_empty, [folder for folder in (data, *data.parents) if not folder.exists()])
            if wanted is not None and options.token is not None:
                if not wanted.hub:
                    raise CommandError(
                        "--token needs a hub", hint=f"give it, {HUB_EXAMPLE}", code=Exit.USAGE, error="no-hub"
                    )
                _check(wanted, file)
                make_directory(data)
                identity = enrolled_at(wanted.hub, options.token, data, wanted.name, wanted.proxy)
                wanted = msgspec.structs.replace(wanted, hub_tls=hub_tls(identity))
            made = _apply_resources(repository, file, wanted, undo) if wanted is not None else []
            applied = repository.load().resources
            if systemd:
                _write_unit(data, unit, applied, undo)
            own = _make_certificate(data, applied, undo)
            epoch = _create_store(data)  # last: on failure it removes its files
            undo.pop_all()
    except ConfigurationRejected as rejected:
        lines = "\n".join(str(error) for error in rejected.errors)
        raise CommandError(
            lines, hint="nothing was created; correct the options", code=Exit.USAGE, error="configuration-rejected"
        ) from None
    except (RepositoryError, StoreError) as error:
        raise CommandError(str(error), hint=NOTHING_MADE, error="configuration-not-readable") from None
    except OSError as error:
        raise CommandError(
            f"{error.filename or data}: {error.strerror or error}", hint=NOTHING_MADE, error="file-not-accessible"
        ) from None
    say(f"{data}: store ready, epoch {epoch}")
    if made:
        _say_applied(file, made)
    if own is not None:
        _say_console(applied, own)
    if systemd:
        _say_unit(unit)
    _say_next(data, applied, service=systemd)


def _remove_empty(folders: Sequence[Path]) -> None:
    with contextlib.suppress(OSError):  # another process has put a file there
        for folder in folders:
            folder.rmdir()


def _preset(options: InitOptions) -> FirstGateway:
    """Return the options, with defaults for the others. Raises CommandError.

    With loopback addresses alone there is no HTTPS listener by default.
    """
    mqtt = _listener_address("mqtt", MQTT if options.mqtt is None else options.mqtt)
    amqp = _listener_address("amqp", AMQP if options.amqp is None else options.amqp)
    http = _listener_address("http", HTTP if options.http is None else options.http)
    private = all(ListenEndpoint.parse(place).loopback for place in (mqtt, amqp, http) if place is not None)
    https = options.https if options.https is not None else NONE if private else HTTPS
    return FirstGateway(
        name=_machine_name() if options.name is None else options.name,
        mqtt=mqtt,
        amqp=amqp,
        http=http,
        https=_listener_address("https", https),
        hub=options.hub,
        proxy=proxy_of(options.proxy),
        forward=options.forward,
    )


def _configured(data: Path, hub: Sequence[str]) -> CommandError:
    """Return the error for a directory that is configured. `hub`: URLs of the hub that it was to be connected to."""
    of = f"--data {word(data)}"
    steps = [f"see them: waypost get {of} -o yaml", f"change them: waypost apply {of} -f FILE"]
    if hub:
        enrol = f"waypost enrol {of} --hub {word(hub[0])} --token-file -"
        steps = [f"connect it to the hub: {enrol}", f"then forward to it: waypost bridge forward 'plant/#' {of}"]
    return CommandError(
        f"{data} has resources applied already",
        hint="\n".join(steps),
        code=Exit.USAGE,
        error="gateway-exists",
    )


def _machine_name() -> str:
    """Return the host name of this machine without its domain, as the name of a gateway."""
    return socket.gethostname().partition(".")[0].lower() or "gateway"


def _listener_address(name: str, text: str) -> str | None:
    """Check the address of a listener; return None for `NONE`. Raises CommandError."""
    if text == NONE:
        return None
    try:
        ListenEndpoint.parse(text)
    except ValueError as why:
        step = f"for example --{name} 0.0.0.0:1883, 127.0.0.1:1883 for this machine only, or {NONE}"
        raise CommandError(f"--{name} {text}: {why}", hint=step, code=Exit.USAGE, error="invalid-value") from None
    return text


def _ask_settings(preset: FirstGateway) -> FirstGateway:
    """Ask for the settings on the terminal; Enter takes the default in brackets."""

    def place(name: str, question: str, default: str | None) -> str | None:
        while True:
            answer: str = click.prompt(question, default=default or NONE)
            try:
                return _listener_address(name, answer)
            except CommandError as why:
                say(f"  {why.message}")

    say(f"Enter takes the value in brackets; {NONE} means no listener.")
    name: str = click.prompt("Name of this gateway", default=preset.name)
    mqtt = place("mqtt", "MQTT devices connect at", preset.mqtt)
    amqp = place("amqp", "AMQP 1.0 clients connect at", preset.amqp)
    http = place("http", "Console and status at", preset.http)
    https = place("https", "The same for other machines, over TLS, at", preset.https)
    hub: str = click.prompt(f"Hub to send to, amqps://HOST:PORT or {NONE}", default=NONE)
    if hub == NONE:
        return FirstGateway(name=name, mqtt=mqtt, amqp=amqp, http=http, https=https)
    forward: str = click.prompt("Topics to forward to the hub", default="plant/#")
    return FirstGateway(name=name, mqtt=mqtt, amqp=amqp, http=http, https=https, hub=(hub,), forward=(forward,))


def _apply_resources(
    repository: Repository, file: Path, wanted: FirstGateway, undo: contextlib.ExitStack
) -> list[Resource]:
    """Apply the resources of the gateway and write their file; all of it is checked before anything is created.

    Raises CommandError, ConfigurationRejected, RepositoryError, StoreError, OSError."""
    text, resources = _check(wanted, file)
    make_directory(file.parent)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    undo.callback(file.unlink, missing_ok=True)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
    if not repository.folder.exists():
        undo.callback(shutil.rmtree, repository.folder, ignore_errors=True)
    repository.apply(resources)
    return resources


def _check(wanted: FirstGateway, file: Path) -> tuple[str, list[Resource]]:
    """Return the resources as text, and parsed. Raises CommandError, ConfigurationRejected."""
    if bool(wanted.hub) != bool(wanted.forward):
        raise CommandError(
            "--hub and --forward go together",
            hint=HUB_EXAMPLE,
            code=Exit.USAGE,
            error="no-hub",
        )
    text = as_called(HEAD) + yaml_of(wanted)
    resources = parse(KINDS, text, FILE_NAME)
    errors = KINDS.validate(resources)
    if errors:
        raise ConfigurationRejected(errors)
    if file.exists():
        raise CommandError(
            f"{file} exists already",
            hint=f"apply it: waypost apply --data {word(file.parent)} -f {word(file)}",
            error="file-exists",
        )
    return text, resources


def _make_certificate(data: Path, applied: Sequence[Resource], undo: contextlib.ExitStack) -> OwnCertificate | None:
    """Make the certificate of the listeners with TLS, so that its fingerprint can be shown; None if there are none, or
    the resources name another one. Raises OSError."""
    configuration = build_configuration(applied)
    if configuration.tls is not None or not any(listener.tls for listener in configuration.listeners):
        return None
    own = OwnCertificate(data, configuration.gateway)
    if not own.file.exists():
        if not own.file.parent.exists():
            undo.callback(shutil.rmtree, own.file.parent, ignore_errors=True)
        make_directory(data)
    own.keep(time.time())
    return own


def _say_console(applied: Sequence[Resource], own: OwnCertificate) -> None:
    """Show where other machines find the console, and the certificate that they will be shown."""
    endpoint = build_configuration(applied).endpoint("https")
    if endpoint is None:
        return
    say(f"console for other machines: {reachable_url('https', endpoint)}")
    say(f"  its certificate has the SHA-256 fingerprint {fingerprint_of(own.file)}")


def _create_store(data: Path) -> str:
    """Create or open the store, and return its epoch. Raises StoreError."""
    store = open_store(data, post=lambda _callback: None)  # no loop: `close` finishes pending work
    epoch = store.lineage.epoch
    store.close()
    return epoch


def _write_unit(data: Path, file: Path, applied: Sequence[Resource], undo: contextlib.ExitStack) -> None:
    """Write the systemd unit. Raises StoreError, OSError."""
    configuration = build_configuration(applied)
    files = configuration.limits.connections_max + FILES_BESIDE_CONNECTIONS
    ports = [listener.endpoint.port for listener in configuration.listeners]
    name = configuration.gateway or data.name
    make_directory(file.parent)
    if not file.exists():
        undo.callback(file.unlink, missing_ok=True)
    file.write_text(units.unit(name, file.parent, files=files, ports=ports, launcher=launcher()))


def _say_applied(file: Path, resources: Sequence[Resource]) -> None:
    say(f"{file}: {counted(len(resources), 'resource')}, written and applied")
    for note in (*notices(resources), *exposure(resources)):
        say(f"note: {note}", style="yellow", err=True)


def _say_unit(file: Path) -> None:
    say(f"{file}: written; enable it:")
    for step in units.steps(file.parent, file):
        say(f"  {step}")
    closed = units.closed_folder()
    if closed is not None:
        step = "move this program, for example to /opt/waypost, before you enable the unit"
        say(f"note: user {units.USER} cannot read {closed}: {step}", style="yellow", err=True)


def _say_next(data: Path, applied: Sequence[Resource], *, service: bool) -> None:
    if not applied:
        apply = as_called(f"waypost apply --data {word(data)} -f gateway.yaml")
        say(f"next: {apply}, or waypost init with --name, --mqtt … or on a terminal")
        return
    as_user = "sudo -u waypost " if service else ""
    add = as_called(f"waypost user add NAME --data {word(data)} --profile sensor")
    say(f"next: {as_user}{add}   # a password for each device")
    if not service:
        say(as_called(f"      waypost run --data {word(data)}"))
    if build_configuration(applied).endpoint("https") is not None:
        opens = as_called(f"waypost open --data {word(data)} --qr")
        say(f"      {as_user}{opens}   # sign in to the console of the running gateway, here or with a phone")
