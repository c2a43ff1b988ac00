"""Gateways as processes that link as routers of one network: an upper one, and others that dial it."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.support.processes import Waypost

UPPER = """
{{apiVersion: waypost/v1, kind: Gateway, metadata: {{name: upper}}, spec: {{listeners: {{amqp: "127.0.0.1:0"}}}}}}
---
{{apiVersion: waypost/v1, kind: AddressSpace, metadata: {{name: default}},
  spec: {{authenticationService: {{name: standard}}}}}}
---
{{apiVersion: waypost/v1, kind: Address, metadata: {{name: default.jobs}}, spec: {{address: jobs/#, type: anycast}}}}
---
{{apiVersion: waypost/v1, kind: MessagingUser, metadata: {{name: default.hall-3}},
  spec: {{username: hall-3, authentication: {{type: password, password: {password}}},
         authorization: [{rule}]}}}}
---
{{apiVersion: waypost/v1, kind: MessagingUser, metadata: {{name: default.worker}},
  spec: {{username: worker, authentication: {{type: password, password: {password}}},
         authorization: [{{addresses: ["jobs/#"], operations: [recv]}}]}}}}
"""
LOWER = """
{{apiVersion: waypost/v1, kind: Gateway, metadata: {{name: {name}}},
  spec: {{listeners: {{amqp: "127.0.0.1:0", http: "127.0.0.1:0"}}}}}}
---
{{apiVersion: waypost/v1, kind: AddressSpace, metadata: {{name: default}},
  spec: {{authenticationService: {{name: none}},
         connectors: [{{name: up, type: router, endpointHosts: [{{host: 127.0.0.1, port: {port}}}],
                       router: {{cost: 3}}, credentials: {{username: hall-3, password: secret}}}}]}}}}
---
{{apiVersion: waypost/v1, kind: Address, metadata: {{name: default.jobs}}, spec: {{address: jobs/#, type: anycast}}}}
"""
ROUTER = '{addresses: ["$network"], operations: [relay]}'


def gateway(folder: Path, name: str, text: str) -> Waypost:
    (folder / f"{name}.yaml").write_text(text)
    arguments = ("run", "--data", str(folder / name), "--config", str(folder / f"{name}.yaml"))
    return Waypost(folder / f"{name}.log", *arguments)


def upper(folder: Path, rule: str) -> Waypost:
    return gateway(folder, "upper", UPPER.format(password=base64.b64encode(b"secret").decode(), rule=rule))
