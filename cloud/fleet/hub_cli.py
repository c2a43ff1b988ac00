"""`waypost hub` with its status, users, devices, bundles, webhooks and registry, and `revoke-certificate` with the
fleet's enrolments."""

from __future__ import annotations

import time

from cloud.fleet.audited import audited
from cloud.fleet.bundles import bundle
from cloud.fleet.devices import device
from cloud.fleet.hono.cli import import_registry
from cloud.fleet.hub_status import status
from cloud.fleet.place import HubPlace, hub_options, open_enrolments
from cloud.fleet.registry_cli import backup, migrate, move_registry, restore
from cloud.fleet.users import user
from cloud.fleet.webhooks import webhook
from cloud.hub.cli import hub
from edge.output.errors import CommandError
from edge.output.text import word

for each in (status, user, device, bundle, webhook, backup, restore, move_registry, migrate):
    hub.add_command(each)
device.add_command(import_registry)


@hub.command("revoke-certificate")
@hub_options
@audited("hub-certificate.revoke")
def revoke_certificate(target: HubPlace) -> None:
    """Revoke the hub's own certificate. Use it when its key was stolen; the hub creates another.

    Over HTTP it is that of the hub that answers: behind one address for several hubs, use their data directories.

    Enrolled gateways fetch the revocation list every four hours. From then on they refuse a server with the old
    certificate; open connections continue. If the authority's key was stolen too, create a new authority and enrol
    every gateway again.
    """
    from cloud.hub.enrolment.files import forget_certificate, hub_certificate
    from edge.output.terminal import say

    made = "revoked; the hub creates another certificate within seconds"
    if target.client is not None:
        before = target.client.ask("hub/certificate")
        match = {"If-Match": before["etag"]}
        with target.client.open("hub/certificate/revoke", method="POST", body={}, headers=match) as answer:
            done = target.client.document(answer, "POST")
        say(f"{done['serial']}: {made}")
        return
    data = target.data
    with open_enrolments(target) as place:
        shown = hub_certificate(data, place.authority)
        if shown is None:
            raise CommandError(
                f"{data} has no server certificate to revoke",
                f"start the hub: waypost hub run --data {word(data)}",
                error="no-valid-certificate",
            )
        begins_us, ends_us = (int(at * 1e6) for at in (shown.begins_at, shown.ends_at))
        now_us = time.time_ns() // 1_000
        place.enrolments.revoke_hub_certificate(shown.serial, shown.key_id, begins_us, ends_us, now_us, shown.pem)
        try:
            forget_certificate(data)
        except OSError as error:
            step = "the certificate is revoked: remove that file, then the hub creates another"
            raise CommandError(f"{error.filename}: {error.strerror}", step, error="file-not-accessible") from None
    say(f"{shown.serial}: {made}, or at its next start")
