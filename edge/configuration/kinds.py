"""Kinds of a gateway: the types of `resources` with the checks of `validate`."""

from __future__ import annotations

from typing import Final

from bridge.resources.fields import Effect
from bridge.resources.resource import ResourceKind, ResourceKinds
from edge.configuration.resources import (
    AddressSpaceSpec,
    AddressSpec,
    ArtefactsSpec,
    DeviceSpec,
    GatewaySpec,
    MessagingUserSpec,
    SystemSpec,
    TenantSpaceSpec,
)
from edge.configuration.validate import CHECKS

KINDS: Final = ResourceKinds(
    (
        ResourceKind("Gateway", GatewaySpec, ("gateway", "gateways", "gw"), single=True),
        ResourceKind(
            "AddressSpace",
            AddressSpaceSpec,
            ("addressspace", "addressspaces", "as"),
            "enmasse.io/v1beta1",
            single=True,
            default_name="default",
            renamed=Effect.RESTART,
        ),
        ResourceKind("TenantSpace", TenantSpaceSpec, ("tenantspace", "tenantspaces", "ts")),
        ResourceKind("Address", AddressSpec, ("address", "addresses", "addr"), "enmasse.io/v1beta1"),
        ResourceKind(
            "MessagingUser", MessagingUserSpec, ("messaginguser", "messagingusers", "mu"), "user.enmasse.io/v1beta1"
        ),
        ResourceKind("Device", DeviceSpec, ("device", "devices", "dev")),
        ResourceKind("Artefacts", ArtefactsSpec, ("artefacts", "art"), single=True),
        ResourceKind("System", SystemSpec, ("system", "sys"), single=True),
    ),
    CHECKS,
)
"""All kinds, in the order of display."""
