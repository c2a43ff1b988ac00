"""`waypost gateway` and `waypost token`: certificates, labels and enrolment tokens of a hub's gateways."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import click

from cloud.fleet.audited import audited, change_of
from cloud.fleet.configuration import selector_option
from cloud.fleet.gateway_search import find_gateways, search_options
from cloud.fleet.labels import label
from cloud.fleet.place import (
    DEFAULT_TENANT,
    HubPlace,
    hub_options,
    open_enrolments,
    parse_duration,
    tenant_option,
)
from cloud.fleet.problems import problems, with_problem
from edge.output.amounts import counted
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, Listing, json_option, output_option, print_listing
from edge.output.terminal import say
from edge.output.text import line, word
from edge.output.times import moment_us

if TYPE_CHECKING:
    from cloud.hub.registry.enrolments import CertificateRecord

GATEWAYS: Final = Listing(
    "gateway", "gateway", ("tenant", "gateway", "state", "ends_at", "labels"), ("serial",), "no gateway has enrolled"
)
REMOTE_GATEWAYS: Final = Listing(
    "gateway",
    "gateway",
    ("tenant", "gateway", "condition", "last_seen", "labels"),
    ("version", "why", "remote"),
    GATEWAYS.empty,
)
"""Over HTTP: how the gateways are connected, instead of their certificates."""

TOKENS: Final = Listing("token", "id", ("id", "tenant", "gateway", "state", "expires_at"), empty="no tokens")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def gateway() -> None:
    """Manage the gateways of a hub. Works while the hub runs, and with `waypost login` from any machine."""


@click.group()
def token() -> None:
    """Manage enrolment tokens. Each enrols one gateway."""


@token.command()
@hub_options
@tenant_option
@click.option("--gateway", help="Name of the gateway, which may exist already.  [default: any new name]")
@click.option("--expires", default="24h", show_default=True, metavar="TIME", help="Validity: 30m, 24h, 7d.")
@click.option("--count", default=1, show_default=True, type=click.IntRange(min=1), help="Number of tokens.")
@click.option("--label", "words", multiple=True, metavar="KEY=VALUE", help="Label for the gateway; repeatable.")
@json_option("token")
@audited("token.create")
def create(
    hub: HubPlace,
    tenant: str,
    gateway: str | None,
    expires: str,
    count: int,
    words: Sequence[str],
    as_json: JsonOutput | None,
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
    from cloud.hub.registry.labels import decode, encode

    life_s = parse_duration(expires)
    if life_s > TOKEN_EXPIRES_S_MAX:
        raise CommandError(
            f"--expires {expires}: a token is valid for {TOKEN_EXPIRES_S_MAX / 86_400:.0f} days at most",
            code=Exit.USAGE,
            error="invalid-value",
        )
    if count > TOKENS_AT_ONCE_MAX or (gateway is not None and count > 1):
        most = "one token for one gateway" if gateway is not None else f"{TOKENS_AT_ONCE_MAX} tokens at once at most"
        raise CommandError(f"--count {count}: {most}", code=Exit.USAGE, error="invalid-value")
    if fault := tenant_fault(tenant or DEFAULT_TENANT) or (gateway is not None and gateway_fault(gateway)):
        raise CommandError(fault, code=Exit.USAGE, error="invalid-name")
    try:
        labels = encode(apply_changes({}, parse_changes(words)))
    except LabelError as error:
        raise CommandError(f"--label: {error}", code=Exit.USAGE, error="invalid-label") from None
    common: dict[str, Any]
    if hub.client is not None:
        wanted = {"count": count, "labels": decode(labels), "expires_s": life_s, "tenant": tenant}
        body = {**wanted, "gateways": [gateway] if gateway is not None else []}
        found = hub.client.ask("tokens", method="POST", body=body)["tokens"]
        _print_tokens([_token_row(each) for each in found], as_json)
        return
    with open_enrolments(hub) as place:
        now_us = time.time_ns() // 1_000
        made = [EnrolmentToken.make(place.authority.fingerprint) for _ in range(count)]
        ends_us = now_us + int(life_s * 1e6)
        records = [TokenRecord(each.id, each.digest, tenant, gateway, now_us, ends_us) for each in made]
        place.enrolments.add([each._replace(labels=labels) for each in records])
    common = {"tenant": tenant, "gateway": gateway, "expires_at": moment_us(ends_us)}
    _print_tokens([{"id": each.id, "token": each.text, **common} for each in made], as_json)


def _print_tokens(rows: Sequence[dict[str, Any]], as_json: JsonOutput | None) -> None:
    """Print new tokens."""
    if as_json:
        as_json.show(rows)
        return
    for row in rows:
        say(row["token"])


def _token_row(document: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a token of the API."""
    kept: dict[str, Any] = {
        name: document[name] for name in ("id", "token", "tenant", "gateway", "state") if name in document
    }
    return {**kept, "gateway": document["gateway"] or None, "expires_at": _moment_ms(document["expires_at"])}


def _moment_ms(utc_ms: int | None) -> str | None:
    return None if utc_ms is None else moment_us(utc_ms * 1_000)


@token.command("list")
@hub_options
@output_option("token")
def list_tokens(hub: HubPlace, form: str) -> None:
    """List tokens and their states."""
    from cloud.hub.enrolment.tokens import state_of

    if hub.client is not None:
        print_listing(TOKENS, [_token_row(each) for each in hub.client.pages("tokens", "tokens")], form)
        return
    with open_enrolments(hub) as place:
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
    print_listing(TOKENS, rows, form)


@token.command("revoke")
@hub_options
@click.argument("token_id", metavar="ID")
@audited("token.revoke", "token_id")
def revoke_token(hub: HubPlace, token_id: str) -> None:
    """Revoke an unused token. ID: from `token list`."""
    if hub.client is not None:
        hub.client.ask(f"tokens/{quote(token_id, safe='')}", method="DELETE")
        say(f"{token_id}: revoked")
        return
    with open_enrolments(hub) as place:
        before = place.enrolments.revoke_token(token_id, time.time_ns() // 1_000)
    if before is None:
        raise CommandError(
            f"no token with ID {token_id}",
            f"list them: waypost token list {hub.quoted()}",
            error="token-not-found",
        )
    if before.spent_at is not None:
        step = f"to revoke the gateway: waypost gateway revoke {hub.quoted()} GATEWAY"
        raise CommandError(f"token {token_id} was already used to enrol a gateway", step, error="token-spent")
    change_of(before.tenant)
    say(f"{token_id}: revoked")


@gateway.command("list")
@hub_options
@click.option("--all", "everyone", is_flag=True, help="Include forgotten gateways.")
@selector_option
@search_options
@output_option("gateway")
def list_gateways(search: dict[str, str], hub: HubPlace, everyone: bool, selector: str | None, form: str) -> None:
    """List enrolled gateways. Shows the labels of each, and its certificate that expires last.

    Over HTTP it shows how each is connected (`condition`) instead of its certificate.

    \b
      waypost gateway list --older-than 1.5.0 -l site=lyon
      waypost gateway list --problem store --severity error
      waypost gateway list --seen-before 7d -o json
    """
    from cloud.hub.labels import LabelError, parse_selector

    try:
        chosen = parse_selector(selector) if selector is not None else None
    except LabelError as error:
        raise CommandError(f"--selector: {error}", code=Exit.USAGE, error="invalid-selector") from None
    if hub.client is not None:
        found_there = hub.client.pages("gateways", "gateways", {"selector": selector, **search}, sort="name")
        print_listing(REMOTE_GATEWAYS, [_gateway_row(each) for each in found_there], form)
        return
    with open_enrolments(hub) as place:
        found, forgotten = place.enrolments.certificates(), place.enrolments.forgotten()
        labels = place.enrolments.labels()
        if search:
            matching = find_gateways(place.registry, search)
            found = [each for each in found if (each.tenant, each.gateway) in matching]
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
    print_listing(GATEWAYS, rows, form)


def _gateway_row(document: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a gateway of the API."""
    return {
        "tenant": document["tenant"],
        "gateway": document["name"],
        "condition": document["state"],
        "why": document["why"],
        "remote": document["remote"],
        "version": (document["status"] or {}).get("version"),
        "last_seen": _moment_ms(document["last_seen"]),
        "labels": document["labels"],
    }


@gateway.command()
@hub_options
@tenant_option
@json_option("gateway")
@click.argument("gateway")
def show(hub: HubPlace, tenant: str, as_json: JsonOutput | None, gateway: str) -> None:
    """Show one gateway. Its certificate is shown, and the report of its first start.

    The report lists name, networks, clock and root file system. A warning follows if the root file system is not that
    of the card image or the update.
    """
    import json

    if hub.client is not None:
        document = hub.client.ask(f"gateways/{quote(gateway, safe='')}", tenant=tenant or None)
        if as_json:
            as_json.show([document])
            return
        for name in ("tenant", "name", "state", "why", "next_step", "remote", "landed", "waiting_messages"):
            say(line(f"{name:<17} {document[name] if document[name] is not None else '-'}"))
        say(f"{'last_seen':<17} {_moment_ms(document['last_seen']) or '-'}")
        return
    with open_enrolments(hub) as place:
        mine = [each for each in place.enrolments.certificates() if (each.tenant, each.gateway) == (tenant, gateway)]
        report = place.enrolments.attestation(tenant, gateway)
    if not mine:
        raise CommandError(
            f"gateway {gateway} of tenant {tenant} is not enrolled",
            f"list them: waypost gateway list {hub.quoted()}",
            error="gateway-not-found",
        )
    now_us = time.time_ns() // 1_000
    last = max(mine, key=lambda each: (each.good(now_us), each.ends_at))
    document = {
        "tenant": tenant,
        "gateway": gateway,
        "state": _certificate_state(last, now_us),
        "ends_at": moment_us(last.ends_at),
        "attested_at": moment_us(report[0]) if report is not None else None,
        "attestation": json.loads(report[1]) if report is not None else None,
    }
    if as_json:
        as_json.show([document])
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
@hub_options
@tenant_option
@click.argument("gateway")
@audited("gateway.revoke", "gateway")
def revoke(hub: HubPlace, tenant: str, gateway: str) -> None:
    """Revoke the certificates of a gateway. A running hub disconnects it within seconds.

    The gateway continues to store messages. To enrol it again, create a token for its name
    (`token create --gateway NAME`) and run `waypost enrol` there.
    """
    if hub.client is not None:
        path = f"gateways/{quote(gateway, safe='')}/revoke"
        done = hub.client.ask(path, method="POST", tenant=tenant or None)
        say(f"{gateway}: {counted(done['certificates'], 'certificate')} revoked")
        return
    with open_enrolments(hub) as place:
        count = place.enrolments.revoke(tenant, gateway, time.time_ns() // 1_000)
    if not count:
        raise CommandError(
            f"gateway {gateway} of tenant {tenant} has no valid certificate",
            f"list them: waypost gateway list {hub.quoted()}",
            error="no-valid-certificate",
        )
    say(f"{gateway}: {counted(count, 'certificate')} revoked")


@gateway.command()
@hub_options
@tenant_option
@json_option("gateway")
@click.argument("gateway")
@audited("gateway.forget", "gateway")
def forget(hub: HubPlace, tenant: str, as_json: JsonOutput | None, gateway: str) -> None:
    """Forget a gateway that no longer exists. Its name becomes free, and it no longer counts for its tenant's quota.

    Revoke its certificates first (`waypost gateway revoke`), unless they have expired. Its messages and positions are
    kept, so nothing lands twice if it enrols again. A new gateway may use the name with any token.
    """
    from cloud.hub.registry.enrolments import ForgetRefusal, NotForgotten

    if hub.client is not None:
        path = f"gateways/{quote(gateway, safe='')}/forget"
        done = hub.client.ask(path, method="POST", tenant=tenant or None)
        row = {"tenant": done["tenant"], "gateway": gateway, "forgotten_at": _moment_ms(done["forgotten_at"])}
        _print_forgotten(row, as_json)
        return
    options = f"{hub.quoted()} --tenant {word(tenant)} {word(gateway)}"
    steps = {
        ForgetRefusal.UNKNOWN: f"list them: waypost gateway list {hub.quoted()}",
        ForgetRefusal.GOOD_CERTIFICATE: f"revoke it first: waypost gateway revoke {options}",
        ForgetRefusal.CONNECTED: "a running hub disconnects a revoked gateway within seconds: check it, then retry",
    }
    with open_enrolments(hub) as place:
        try:
            at_us = place.enrolments.forget(tenant, gateway, time.time_ns() // 1_000)
        except NotForgotten as error:
            raise CommandError(str(error), steps[error.why], error="gateway-not-forgotten") from None
    _print_forgotten({"tenant": tenant, "gateway": gateway, "forgotten_at": moment_us(at_us)}, as_json)


def _print_forgotten(row: dict[str, Any], as_json: JsonOutput | None) -> None:
    if as_json:
        as_json.show([row])
        return
    say(f"{row['gateway']}: forgotten")


for each in (label, problems, with_problem):
    gateway.add_command(each)


def _certificate_state(certificate: CertificateRecord, now_us: int) -> str:
    """Return the state of a certificate: ``good``, ``ended`` or ``revoked``."""
    if certificate.good(now_us):
        return "good"
    return "ended" if certificate.revoked_at is None else "revoked"
