"""Realm of Keycloak for people of the consoles, as `docs/how-to/sign-in-with-keycloak.md` describes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

REALM: Final = "plant"
CLIENT: Final = "waypost-console"
AUDIENCE: Final = "waypost"
PASSWORD: Final = "correct horse"
GROUPS: Final = {"operators": ["view:#", "manage:#"], "viewers": ["view:#"]}
"""Rights by group."""
PEOPLE: Final = {"ann@default": "operators", "bob@default": "viewers", "eve@default": None}
"""Group by user."""


def realm(roots: Sequence[str], token_s: int) -> dict[str, Any]:
    """Return the realm. `roots`: addresses of the consoles; `token_s`: life of an access token in seconds."""
    in_access_token = {"access.token.claim": "true", "id.token.claim": "false"}
    audience = {"included.custom.audience": AUDIENCE, **in_access_token}
    rights = {
        "usermodel.clientRoleMapping.clientId": CLIENT,
        "claim.name": "rights",
        "jsonType.label": "String",
        "multivalued": "true",
        **in_access_token,
    }
    mappers = {"oidc-audience-mapper": audience, "oidc-usermodel-client-role-mapper": rights}
    client = {
        "clientId": CLIENT,
        "publicClient": True,
        "standardFlowEnabled": True,
        "directAccessGrantsEnabled": False,
        "redirectUris": [f"{root}api/v1/session/oidc/callback" for root in roots],
        "attributes": {
            "pkce.code.challenge.method": "S256",
            "post.logout.redirect.uris": "##".join(roots),
            "backchannel.logout.url": f"{roots[0]}api/v1/session/oidc/logout",
            "backchannel.logout.session.required": "true",
        },
        "protocolMappers": [
            {"name": kind, "protocol": "openid-connect", "protocolMapper": kind, "config": config}
            for kind, config in mappers.items()
        ],
    }
    names = sorted({right for rights_of in GROUPS.values() for right in rights_of})
    return {
        "realm": REALM,
        "enabled": True,
        "sslRequired": "none",
        "accessTokenLifespan": token_s,
        "clients": [client],
        "roles": {"client": {CLIENT: [{"name": name} for name in names]}},
        "groups": [{"name": group, "clientRoles": {CLIENT: found}} for group, found in GROUPS.items()],
        "users": [_user(name, group) for name, group in PEOPLE.items()],
    }


def issuer_settings(issuer: str) -> dict[str, str]:
    """Return the field `oidc` of a hub's or a gateway's configuration."""
    return {
        "issuer": issuer,
        "audience": AUDIENCE,
        "clientId": CLIENT,
        "userClaim": "preferred_username",
        "rightsClaim": "rights",
    }


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
