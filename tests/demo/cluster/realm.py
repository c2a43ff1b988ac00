"""Realm of Keycloak for people and devices, read from `docs/how-to/sign-in-with-keycloak.md`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

REALM: Final = "plant"
CLIENT: Final = "waypost-console"
AUDIENCE: Final = "waypost"
PASSWORD: Final = "correct horse"
DEVICE: Final = "pump-7"
"""Client of a device, which signs in with a secret of its own."""
SECRETS: Final = {AUDIENCE: "a-s3cret-of-the-node", DEVICE: "a-s3cret-of-the-pump"}
"""Secret by client."""
PEOPLE: Final = {"ann@default": "operators", "bob@default": "viewers", "eve@default": None}
"""Group by user."""
_PAGE: Final = Path(__file__).parents[3] / "docs" / "how-to" / "sign-in-with-keycloak.md"
_EXAMPLE_ROOT: Final = "https://hall.local:8444/"


def realm(roots: Sequence[str], token_s: int) -> dict[str, Any]:
    """Return the realm. `roots`: addresses of the consoles; `token_s`: life of an access token in seconds."""
    found = _example()
    clients = {client["clientId"]: client for client in found["clients"]}
    for name, secret in SECRETS.items():
        clients[name]["secret"] = secret
    console = clients[CLIENT]
    [callback] = console["redirectUris"]
    console["redirectUris"] = [callback.replace(_EXAMPLE_ROOT, root) for root in roots]
    attributes = console["attributes"]
    attributes["post.logout.redirect.uris"] = "##".join(roots)
    attributes["backchannel.logout.url"] = attributes["backchannel.logout.url"].replace(_EXAMPLE_ROOT, roots[0])
    found["users"] += [_user(name, group) for name, group in PEOPLE.items()]
    return {**found, "sslRequired": "none", "accessTokenLifespan": token_s}


def issuer_settings(issuer: str) -> dict[str, str]:
    """Return the field `oidc` of a hub's or a gateway's configuration."""
    return {
        "issuer": issuer,
        "audience": AUDIENCE,
        "clientId": CLIENT,
        "userClaim": "preferred_username",
        "rightsClaim": "rights",
    }


def _example() -> dict[str, Any]:
    """Return the realm as the page has it."""
    text = _PAGE.read_text()
    found: dict[str, Any] = json.loads(text.partition("```json\n")[2].partition("```")[0])
    return found


def _user(name: str, group: str | None) -> dict[str, Any]:
    first = name.partition("@")[0]
    return {
        "username": name,
        "enabled": True,
        "email": f"{first}@plant.example",
        "emailVerified": True,
        "firstName": first,
        "lastName": "Person",
        "credentials": [{"type": "password", "value": PASSWORD, "temporary": False}],
        "groups": [f"/{group}"] if group is not None else [],
    }
