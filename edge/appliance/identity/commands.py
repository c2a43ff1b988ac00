"""`waypost enrol`, and the enrolment by `waypost init`, with errors for the command line."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from edge.appliance.program import as_called
from edge.output.errors import CommandError, Exit
from edge.output.password import ask_secret
from edge.output.terminal import say
from edge.output.text import word

if TYPE_CHECKING:
    from bridge.enrolment import EnrolmentToken
    from bridge.proxy import Proxy
    from bridge.resources.resource import Resource
    from bridge.resources.values import HubUrl
    from edge.appliance.identity.enrolling import EnrolmentResult

WHERE_TOKENS_ARE_MADE = "a token is made at the hub: waypost token create --data HUBDIR"
SECURE_HINT = (
    "write it as amqps://HOST:PORT, with the port after amqps= in the hub's `ready` line; where a firewall allows only "
    "HTTPS, as wss://HOST:PORT, with the port after https="
)

HUB_HELP = (
    "Hub to send to: amqps://HOST:PORT, or wss://HOST:PORT over WebSocket. Repeatable: the next one is used when the "
    "one before does not answer."
)
PROXY_VARIABLE = "WAYPOST_PROXY"
ENROL_VARIABLE = "WAYPOST_TOKEN"
ENROL_HELP = (
    "Token from the hub (waypost token create). Prefer --token-file or the environment variable WAYPOST_TOKEN: "
    "`ps` shows command lines to every user."
)
ENROL_FILE_HELP = "File with the token; - is standard input, with a prompt on a terminal."
TOKEN_BYTES_MAX = 4_096
"""Bytes that are read of a token file; a token has about 100."""
PROXY_HELP = "HTTP proxy for the connection to the hub: http://USER:PASSWORD@HOST:PORT."


@click.command()
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True, help="Data directory."
)
@click.option("--token", envvar=ENROL_VARIABLE, help=ENROL_HELP)
@click.option("--token-file", type=click.File(), help=ENROL_FILE_HELP)
@click.option("--hub", "hubs", metavar="URL", multiple=True, help=HUB_HELP + " [default: the hub it is configured for]")
@click.option("--proxy", "proxy_url", metavar="URL", envvar=PROXY_VARIABLE, help=PROXY_HELP)
def enrol(
    data: Path, token: str | None, token_file: TextIO | None, hubs: tuple[str, ...], proxy_url: str | None
) -> None:
    """Enrol a gateway at a hub. It gets a certificate from the hub, and uses it.

    Use it for a gateway that had no hub or was connected without TLS, that moves to another hub, or after its
    certificate has expired or was revoked. Stored messages stay, and the hub still knows which of them it has. The
    gateway may run. `waypost bridge forward` chooses what is sent to the hub.
    """
    from bridge.resources.errors import ConfigurationRejected
    from edge.configuration.file import RepositoryError
    from edge.configuration.forwarders import forwards_to_hub
    from edge.configuration.repository import Repository
    from edge.configuration.resources import GatewaySpec

    token = token_of(token, token_file)
    if token is None:
        raise CommandError("a token is needed", hint=ENROL_HELP, code=Exit.USAGE, error="no-token")
    repository = Repository(data)
    try:
        applied = repository.own()
        found = next((each for each in applied if isinstance(each.spec, GatewaySpec)), None)
        if found is None or not isinstance(found.spec, GatewaySpec):
            raise CommandError(
                f"{data} has no Gateway applied",
                hint=f"create one: waypost init --data {word(data)} …",
                error="no-configuration",
            )
        part = found.spec.hub
        urls = hubs or (part.urls if part is not None else ())
        if not urls:
            raise CommandError("the gateway has no hub: give --hub", hint=SECURE_HINT, code=Exit.USAGE, error="no-hub")
        proxy = proxy_of(proxy_url) or (part.proxy if part is not None else None)
        name = part.gateway if part is not None and part.gateway is not None else found.name
        identity = enrolled_at(urls, token, data, name, proxy)
        changed = _with_identity(found, urls, identity, proxy)
        version, changes = repository.apply([changed])
        forwards = forwards_to_hub(repository.load().resources)
    except ConfigurationRejected as rejected:
        raise CommandError(
            "\n".join(str(error) for error in rejected.errors), code=Exit.USAGE, error="configuration-rejected"
        ) from None
    except RepositoryError as error:
        raise CommandError(str(error), error="configuration-not-readable") from None
    for change in changes:
        say(f"{change.kind}/{change.name} {change.verb}")
    say(f"configuration version {version}")
    say(f"a running gateway applies it by itself; otherwise: waypost run --data {word(data)}")
    if not forwards:
        step = f"waypost bridge forward 'plant/#' --data {word(data)}"
        say(as_called(f"note: nothing is forwarded to the hub yet: {step}"), style="yellow", err=True)


def token_of(token: str | None, file: TextIO | None) -> str | None:
    """Return the token of an option, the environment or a file; prompt for it when the file is a terminal."""
    if file is None:
        return token
    if file.isatty():
        return ask_secret("token").strip()
    return file.read(TOKEN_BYTES_MAX).strip()


def proxy_of(url: str | None) -> Proxy | None:
    """Return the proxy of an option. Raises CommandError."""
    from bridge.proxy import parse_proxy

    try:
        return parse_proxy(url) if url else None
    except ValueError as error:
        raise CommandError(str(error), hint=PROXY_HELP, code=Exit.USAGE, error="invalid-proxy") from None


def enrolled_at(urls: Sequence[str], token_text: str, data: Path, gateway: str, proxy: Proxy | None = None) -> Path:
    """Enrol at the first of a hub's URLs that answers, print the result, and return the identity file.

    Raises CommandError.
    """
    from bridge.enrolment import EnrolmentToken, EnrolmentTokenError
    from bridge.resources.values import HubUrl
    from edge.appliance.identity.enrolling import try_in_order

    try:
        token = EnrolmentToken.parse(token_text)
        places = {url: HubUrl.parse(url) for url in urls}
    except EnrolmentTokenError as error:
        raise CommandError(str(error), hint=WHERE_TOKENS_ARE_MADE, code=Exit.USAGE, error="invalid-token") from None
    except ValueError as error:
        raise CommandError(str(error), hint=SECURE_HINT, code=Exit.USAGE, error="invalid-hub") from None
    for url, place in places.items():
        if not place.secure:
            raise CommandError(
                f"{url} is without TLS: gateways cannot enrol there", hint=SECURE_HINT, code=Exit.USAGE, error="no-tls"
            )
    with _explained(", ".join(urls)):
        url, enrolled = try_in_order(places, lambda url: _enrol(data, token, gateway, proxy, places[url]))
    _say(enrolled, url)
    return enrolled.file


def _enrol(data: Path, token: EnrolmentToken, gateway: str, proxy: Proxy | None, place: HubUrl) -> EnrolmentResult:
    from edge.appliance.identity.enrolling import enrol as enrol_at
    from edge.appliance.identity.exchange import HubEnrolmentClient

    return enrol_at(data, HubEnrolmentClient(place.endpoint, proxy=proxy, amqp=place.path is None), token, gateway)


@contextlib.contextmanager
def _explained(url: str) -> Iterator[None]:
    from edge.appliance.identity.exchange import AnswerLost, HubUnreachable, NotIssued, WrongHub
    from edge.appliance.identity.request import CertificateMismatch

    try:
        yield
    except AnswerLost as error:
        step = "run the same command again: the token stays valid for this gateway's key"
        raise CommandError(str(error), hint=step, code=Exit.UNREACHABLE, error="hub-unreachable") from None
    except HubUnreachable as error:
        step = f"check that the hub runs and listens at {url}. Nothing was created; run the same command again"
        raise CommandError(str(error), hint=step, code=Exit.UNREACHABLE, error="hub-unreachable") from None
    except WrongHub as error:
        step = "compare the address with the hub's, and its names (hub run --name); check this machine's clock"
        raise CommandError(str(error), hint=step, error="certificate-not-trusted") from None
    except NotIssued as error:
        raise CommandError(
            f"the hub refuses a certificate: {error}", hint=WHERE_TOKENS_ARE_MADE, error="enrolment-refused"
        ) from None
    except CertificateMismatch as error:
        raise CommandError(str(error), hint="a fault of the hub: see its log", error="answer-not-understood") from None


def _say(enrolled: EnrolmentResult, url: str) -> None:
    from edge.appliance.identity.enrolling import CLOCK_OFF_S
    from edge.appliance.identity.files import ends_at

    issued = enrolled.issued
    until = time.strftime("%Y-%m-%d", time.gmtime(ends_at(issued.certificate)))
    say(f"enrolled as {issued.gateway} of tenant {issued.tenant} at {url}; the certificate is valid until {until}")
    if abs(enrolled.clock_off_s) > CLOCK_OFF_S:
        local, remote = (time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at)) for at in (time.time(), issued.now))
        what = f"this machine's clock shows {local} UTC, the hub's {remote}: the hub's was used"
        say(f"note: {what}. Set the clock (timedatectl) before the gateway runs", style="yellow", err=True)


def _with_identity(found: Resource, urls: Sequence[str], identity: Path, proxy: Proxy | None) -> Resource:
    """Return the Gateway resource with its hub and its identity at this hub."""
    from bridge.resources.parse import parse, to_yaml
    from edge.appliance.identity.location import hub_tls
    from edge.configuration.first_gateway import hub_of
    from edge.configuration.kinds import KINDS

    document: dict[str, Any] = dict(found.document)
    spec = dict(document.get("spec") or {})
    spec["hub"] = {**(spec.get("hub") or {}), **hub_of(urls, hub_tls(identity), proxy)}
    document["spec"] = spec
    (changed,) = parse(KINDS, to_yaml(document), "enrol")
    return changed
