"""The kinds of a gateway, as they are registered: the types of `resources`, the checks of `validate`."""

from __future__ import annotations

from typing import Final

from bridge.resources.fields import Effect
from bridge.resources.resource import Kind, Kinds
from edge.configuration.resources import (
    AddressSpaceSpec,
    AddressSpec,
    DeviceSpec,
    GatewaySpec,
    MessagingUserSpec,
    SystemSpec,
)
from edge.configuration.validate import CHECKS

KINDS: Final = Kinds(
    (
        Kind("Gateway", GatewaySpec, ("gateway", "gateways", "gw"), single=True),
        Kind(
            "AddressSpace",
            AddressSpaceSpec,
            ("addressspace", "addressspaces", "as"),
            "enmasse.io/v1beta1",
            single=True,
            default_name="default",
            renamed=Effect.RESTART,
        ),
        Kind("Address", AddressSpec, ("address", "addresses", "addr"), "enmasse.io/v1beta1"),
        Kind("MessagingUser", MessagingUserSpec, ("messaginguser", "messagingusers", "mu"), "user.enmasse.io/v1beta1"),
        Kind("Device", DeviceSpec, ("device", "devices", "dev")),
        Kind("System", SystemSpec, ("system", "sys"), single=True),
    ),
    CHECKS,
)
"""In the order in which resources are shown."""
