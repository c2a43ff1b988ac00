"""Combine the options of `waypost run` with the applied resources into one `BrokerConfiguration`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bridge.resources.endpoint import ListenEndpoint
from bridge.resources.resource import Resource
from edge.broker.configuration import BrokerConfiguration, Listener
from edge.configuration.effective import build_configuration, development_preset, require_credentials, with_hub
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository
from edge.configuration.resources import SHORT_FORMS
from edge.configuration.tenant_spaces import container_of
from edge.output.text import word


class OptionsRefused(Exception):
    """The options do not configure a gateway; `hint` gives the next step."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `waypost run`."""

    data: Path
    root: Path = Path("/")
    """Root of the machine's file system, which names the running system."""
    config: Path | None = None
    dev: bool = False
    mqtt: str | None = None
    amqp: str | None = None
    http: str | None = None
    mqtt_ws: str | None = None
    amqp_ws: str | None = None
    hub: str | None = None
    gateway: str | None = None
    forward: Sequence[str] = ()


def configuration_of(options: RunOptions, resources: Sequence[Resource] | None = None) -> BrokerConfiguration:
    """Return the configuration of these resources and options; None: of the resources that the options select.

    Raises OptionsRefused and the errors of `resources_of`.
    """
    resources = resources_of(options) if resources is None else resources
    configuration = _base(options, resources)
    configuration = _with_listeners(configuration, _given(options))
    if options.hub is not None:
        configuration = _with_hub(configuration, options)
    elif options.forward:
        raise OptionsRefused("--forward needs a hub to forward to", "give --hub amqp://HOST:PORT and --gateway NAME")
    elif options.gateway is not None:
        configuration = msgspec.structs.replace(configuration, gateway=options.gateway)
    configuration = _with_containers(configuration, configuration.gateway)
    configuration = msgspec.structs.replace(configuration, spaces=tuple(_tenant_spaces(configuration)))
    if not configuration.listeners:
        raise OptionsRefused(
            "nothing is configured: no listener for devices, no resources",
            f"set it up: waypost init --data {word(options.data)}; or try it out with --dev",
        )
    if not options.dev:
        return require_credentials(configuration, resources)
    for endpoint in (listener.endpoint for listener in configuration.listeners):
        if not endpoint.loopback:
            raise OptionsRefused(
                f"--dev needs no credentials, so it listens on loopback only, and {endpoint.host} is not",
                "listen on 127.0.0.1, or configure the gateway with resources and run it without --dev",
            )
    return configuration


def resources_of(options: RunOptions) -> Sequence[Resource]:
    """Return the resources of --config, or the applied ones. Raises `ConfigurationRejected`, `RepositoryError`."""
    if options.config is None:
        return Repository(options.data).load().resources
    from bridge.resources.parse import read_whole  # noqa: PLC0415 - YAML: half a MiB that only --config needs

    return read_whole(KINDS, [str(options.config)])


def _base(options: RunOptions, resources: Sequence[Resource]) -> BrokerConfiguration:
    """Return the configuration of the resources.

    With --dev, the preset adds listeners and addresses that the applied resources do not name.
    """
    if not options.dev or options.config is not None:
        return build_configuration(resources)
    if not resources:
        return development_preset()
    configuration, preset = build_configuration(resources), development_preset()
    configuration = msgspec.structs.replace(configuration, addresses=configuration.addresses or preset.addresses)
    named = configuration.listeners
    return _with_listeners(msgspec.structs.replace(configuration, listeners=preset.listeners), named)


def _given(options: RunOptions) -> list[Listener]:
    """Return the listeners of the options. Raises OptionsRefused."""
    texts = msgspec.structs.asdict(options)
    given = []
    for field, (protocol, websocket, tls) in SHORT_FORMS.items():
        text = texts.get(field)
        if text is not None:
            name = field.replace("_", "-")
            try:
                given.append(Listener(protocol, ListenEndpoint.parse(text), websocket, tls))
            except ValueError as error:
                raise OptionsRefused(f"--{name} {text}: {error}", f"for example --{name} 127.0.0.1:0") from None
    return given


def _with_listeners(configuration: BrokerConfiguration, listeners: Sequence[Listener]) -> BrokerConfiguration:
    """Add these listeners; they replace those of the same name."""
    by_name = {listener.name: listener for listener in (*configuration.listeners, *listeners)}
    return msgspec.structs.replace(configuration, listeners=tuple(by_name.values()))


def _with_containers(configuration: BrokerConfiguration, usual: str) -> BrokerConfiguration:
    """Name the container of each connector like this, unless it has a name."""
    connectors = tuple(
        msgspec.structs.replace(connector, container=connector.container or usual)
        for connector in configuration.connectors
    )
    return msgspec.structs.replace(configuration, connectors=connectors)


def _tenant_spaces(configuration: BrokerConfiguration) -> Iterator[BrokerConfiguration]:
    """Yield the further address spaces with what they have from the gateway."""
    for each in configuration.spaces:
        yield _with_containers(
            msgspec.structs.replace(
                each,
                gateway=configuration.gateway,
                limits=configuration.limits,
                endurance_bytes=configuration.endurance_bytes,
                legacy_dollar_topics=configuration.legacy_dollar_topics,
            ),
            container_of(configuration.gateway, each.space),
        )


def _with_hub(configuration: BrokerConfiguration, options: RunOptions) -> BrokerConfiguration:
    if options.gateway is None or not options.forward:
        raise OptionsRefused(
            "--hub also needs --gateway and --forward",
            "name this gateway with --gateway NAME, and give at least one filter, for example --forward '#'",
        )
    try:
        return with_hub(configuration, str(options.hub), options.gateway, options.forward)
    except ValueError as error:
        raise OptionsRefused(str(error), "--hub amqp://HOST:PORT --gateway NAME --forward 'plant/#'") from None
