"""`waypost gateway` and `waypost token`: certificates, labels and enrolment tokens of a hub's gateways."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cloud.fleet.audited import audited
from cloud.fleet.configuration import selector_option
from cloud.fleet.labels import label
from cloud.fleet.place import (
    FleetError,
    config_option,
    data_option,
    json_option,
    open_enrolments,
    parse_duration,
    tenant_option,
)
from edge.output.listing import Listing, output_option, print_listing
from edge.output.text import word
from edge.output.times import moment_us

if TYPE_CHECKING:
    from cloud.hub.registry.enrolments import CertificateRecord

GATEWAYS: Final = Listing(
    "gateway", "gateway", ("tenant", "gateway", "state", "ends_at", "labels"), ("serial",), "no gateway has enrolled"
)
TOKENS: Final = Listing("token", "id", ("id", "tenant", "gateway", "state", "expires_at"), empty="no tokens")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def gateway() -> None:
    """Manage the gateways of a hub. Works while the hub runs."""


@click.group()
def token() -> None:
    """Manage enrolment tokens. Each enrols one gateway."""


@token.command()
@data_option
@config_option
@tenant_option
@click.option("--gateway", help="Name of the gateway, which may exist already.  [default: any new name]")
@click.option("--expires", default="24h", show_default=True, metavar="TIME", help="Validity: 30m, 24h, 7d.")
@click.option("--count", default=1, show_default=True, type=click.IntRange(min=1), help="Number of tokens.")
@click.option("--label", "words", multiple=True, metavar="KEY=VALUE", help="Label for the gateway; repeatable.")
@json_option
@audited("token.create")
def create(
    data: Path,
    config: Path | None,
    tenant: str,
    gateway: str | None,
    expires: str,
    count: int,
    words: Sequence[str],
    as_json: bool,
) -> None:
    """Create enrolment tokens. Each enrols one gateway, once. The hub stores only hashes: copy the tokens now.

    \b
    At the gateway:
      WAYPOST_TOKEN=TOKEN waypost init --data DIR --hub amqps://HOST:5671 --forward 'plant/#'
    """
    from bridge.enrolment import EnrolmentToken
    from cloud.hub.enrolment.limits import TOKEN_EXPIRES_S_MAX, TOKENS_AT_ONCE_MAX
    from cloud.hub.labels import LabelError, apply_changes, parse_changes
    from cloud.hub.peers import gateway_fault, tenant_fault
    from cloud.hub.registry.enrolments import TokenRecord
    from cloud.hub.registry.labels import encode
    from edge.output.terminal import say, say_json

    life_s = parse_duration(expires)
    if life_s > TOKEN_EXPIRES_S_MAX:
        raise FleetError(
            f"--expires {expires}: a token is valid for {TOKEN_EXPIRES_S_MAX / 86_400:.0f} days at most", code=2
        )
    if count > TOKENS_AT_ONCE_MAX or (gateway is not None and count > 1):
        most = "one token for one gateway" if gateway is not None else f"{TOKENS_AT_ONCE_MAX} tokens at once at most"
        raise FleetError(f"--count {count}: {most}", code=2)
    if fault := tenant_fault(tenant) or (gateway is not None and gateway_fault(gateway)):
        raise FleetError(fault, code=2)
    try:
        labels = encode(apply_changes({}, parse_changes(words)))
    except LabelError as error:
        raise FleetError(f"--label: {error}", code=2) from None
    with open_enrolments(data, config) as place:
        now_us = time.time_ns() // 1_000
        made = [EnrolmentToken.make(place.authority.fingerprint) for _ in range(count)]
        ends_us = now_us + int(life_s * 1e6)
        records = [TokenRecord(each.id, each.digest, tenant, gateway, now_us, ends_us) for each in made]
        place.enrolments.add([each._replace(labels=labels) for each in records])
    if as_json:
        common = {"tenant": tenant, "gateway": gateway, "expires_at": moment_us(ends_us)}
        say_json([{"id": each.id, "token": each.text, **common} for each in made])
        return
    for each in made:
        say(each.text)


@token.command("list")
@data_option
@config_option
@output_option
@json_option
def list_tokens(data: Path, config: Path | None, form: str, as_json: bool) -> None:
    """List tokens and their states."""
    from cloud.hub.enrolment.tokens import state_of
    from edge.output.terminal import say_json

    with open_enrolments(data, config) as place:
        found = place.enrolments.tokens()
        gateways = {each.serial: each.gateway for each in place.enrolments.certificates()}
    now_us = time.time_ns() // 1_000
    rows = [
        {
            "id": each.id,
            "tenant": each.tenant,
            "gateway": gateways.get(each.serial or "", each.gateway),
            "state": state_of(each, now_us),
            "expires_at": moment_us(each.expires_at),
        }
        for each in found
    ]
    if as_json:
        say_json(rows)
        return
    print_listing(TOKENS, rows, form)


@token.command("revoke")
@data_option
@config_option
@click.argument("token_id", metavar="ID")
@audited("token.revoke", "token_id")
def revoke_token(data: Path, config: Path | None, token_id: str) -> None:
    """Revoke an unused token. ID: from `token list`."""
    from edge.output.terminal import say

    with open_enrolments(data, config) as place:
        before = place.enrolments.revoke_token(token_id, time.time_ns() // 1_000)
    if before is None:
        raise FleetError(f"no token with ID {token_id}", f"list them: waypost token list --data {word(data)}")
    if before.spent_at is not None:
        step = f"to revoke the gateway: waypost gateway revoke --data {word(data)} GATEWAY"
        raise FleetError(f"token {token_id} was already used to enrol a gateway", step)
    say(f"{token_id}: revoked")


@gateway.command("list")
@data_option
@config_option
@click.option("--all", "everyone", is_flag=True, help="Include forgotten gateways.")
@selector_option
@output_option
@json_option
def list_gateways(
    data: Path, config: Path | None, everyone: bool, selector: str | None, form: str, as_json: bool
) -> None:
    """List enrolled gateways. Shows the labels of each, and its certificate that expires last."""
    from cloud.hub.labels import LabelError, parse_selector
    from edge.output.terminal import say_json

    try:
        chosen = parse_selector(selector) if selector is not None else None
    except LabelError as error:
        raise FleetError(f"--selector: {error}", code=2) from None
    with open_enrolments(data, config) as place:
        found, forgotten = place.enrolments.certificates(), place.enrolments.forgotten()
        labels = place.enrolments.labels()
    now_us = time.time_ns() // 1_000
    last: dict[tuple[str, str], CertificateRecord] = {}
    for each in found:
        known = last.get((each.tenant, each.gateway))
        if known is None or (each.good(now_us), each.ends_at) >= (known.good(now_us), known.ends_at):
            last[each.tenant, each.gateway] = each
    rows: list[dict[str, Any]] = [
        {
            "tenant": each.tenant,
            "gateway": each.gateway,
            "state": "forgotten" if key in forgotten else _certificate_state(each, now_us),
            "ends_at": moment_us(each.ends_at),
            "serial": each.serial,
            "labels": labels.get(key, {}),
        }
        for key, each in last.items()
        if (everyone or key not in forgotten) and (chosen is None or chosen.matches(labels.get(key, {})))
    ]
    if as_json:
        say_json(rows)
        return
    print_listing(GATEWAYS, rows, form)


@gateway.command()
@data_option
@config_option
@tenant_option
@json_option
@click.argument("gateway")
def show(data: Path, config: Path | None, tenant: str, as_json: bool, gateway: str) -> None:
    """Show one gateway. Its certificate is shown, and the report of its first start.

    The report lists name, networks, clock and root file system. A warning follows if the root file system is not that
    of the card image or the update.
    """
    import json

    from edge.output.terminal import say, say_json

    with open_enrolments(data, config) as place:
        mine = [each for each in place.enrolments.certificates() if (each.tenant, each.gateway) == (tenant, gateway)]
        report = place.enrolments.attestation(tenant, gateway)
    if not mine:
        raise FleetError(
            f"gateway {gateway} of tenant {tenant} is not enrolled",
            f"list them: waypost gateway list --data {word(data)}",
        )
    now_us = time.time_ns() // 1_000
    last = max(mine, key=lambda each: (each.good(now_us), each.ends_at))
    document: dict[str, Any] = {
        "tenant": tenant,
        "gateway": gateway,
        "state": _certificate_state(last, now_us),
        "ends_at": moment_us(last.ends_at),
        "attested_at": moment_us(report[0]) if report is not None else None,
        "attestation": json.loads(report[1]) if report is not None else None,
    }
    if as_json:
        say_json(document)
        return
    attestation: dict[str, Any] = document.pop("attestation") or {}
    for name, value in {**document, **attestation}.items():
        shown = ", ".join(value) if isinstance(value, list) else value
        say(f"{name:<17} {shown or '-'}")
    if attestation and attestation["root"] and attestation["root"] != attestation["root_expected"]:
        say(
            "warning: the root file system differs from the card image and from the installed update",
            style="yellow",
            err=True,
        )


@gateway.command()
@data_option
@config_option
@tenant_option
@click.argument("gateway")
@audited("gateway.revoke", "gateway")
def revoke(data: Path, config: Path | None, tenant: str, gateway: str) -> None:
    """Revoke the certificates of a gateway. A running hub disconnects it within seconds.

    The gateway continues to store messages. To enrol it again, create a token for its name
    (`token create --gateway NAME`) and run `waypost enrol` there.
    """
    from edge.output.terminal import say

    with open_enrolments(data, config) as place:
        count = place.enrolments.revoke(tenant, gateway, time.time_ns() // 1_000)
    if not count:
        raise FleetError(
            f"gateway {gateway} of tenant {tenant} has no valid certificate",
            f"list them: waypost gateway list --data {word(data)}",
        )
    say(f"{gateway}: {count} {'certificate' if count == 1 else 'certificates'} revoked")


@gateway.command()
@data_option
@config_option
@tenant_option
@json_option
@click.argument("gateway")
@audited("gateway.forget", "gateway")
def forget(data: Path, config: Path | None, tenant: str, as_json: bool, gateway: str) -> None:
    """Forget a gateway that no longer exists. Its name becomes free, and it no longer counts for its tenant's quota.

    Revoke its certificates first (`waypost gateway revoke`), unless they have expired. Its messages and positions are
    kept, so nothing lands twice if it enrols again. A new gateway may use the name with any token.
    """
    from cloud.hub.registry.enrolments import ForgetRefusal, NotForgotten
    from edge.output.terminal import say, say_json

    options = f"--data {word(data)} --tenant {word(tenant)} {word(gateway)}"
    steps = {
        ForgetRefusal.UNKNOWN: f"list them: waypost gateway list --data {word(data)}",
        ForgetRefusal.GOOD_CERTIFICATE: f"revoke it first: waypost gateway revoke {options}",
        ForgetRefusal.CONNECTED: "a running hub disconnects a revoked gateway within seconds: check it, then retry",
    }
    with open_enrolments(data, config) as place:
        try:
            at_us = place.enrolments.forget(tenant, gateway, time.time_ns() // 1_000)
        except NotForgotten as error:
            raise FleetError(str(error), steps[error.why]) from None
    if as_json:
        say_json({"tenant": tenant, "gateway": gateway, "forgotten_at": moment_us(at_us)})
        return
    say(f"{gateway}: forgotten")


gateway.add_command(label)


def _certificate_state(certificate: CertificateRecord, now_us: int) -> str:
    """Return the state of a certificate: ``good``, ``ended`` or ``revoked``."""
    if certificate.good(now_us):
        return "good"
    return "ended" if certificate.revoked_at is None else "revoked"
