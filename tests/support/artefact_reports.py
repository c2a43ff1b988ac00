"""Reports of devices about artefacts, as batches of gateways have them."""

from __future__ import annotations

import msgspec

from bridge.artefacts.report import REPORT_TYPE, UpdateMessage, UpdateState
from bridge.batch import Batch, decode, encode
from bridge.message import AMQP, CLOCK_GOOD, DURABLE, Run, Stored
from edge.broker.hono import messages
from edge.broker.message.mqtt_properties import Properties, encode_run

ADDRESS = "plant/pump-1/artefact-report"


def batch(*runs: Run, epoch: str = "e" * 32) -> Batch:
    return decode(encode([Stored(i, i + 1, run) for i, run in enumerate(runs)], space="s", epoch=epoch))


def body(
    device: str = "pump-1",
    *,
    artefact: str = "blinker",
    version: str = "1.2.0",
    reason: str = "",
    state: str = "installed",
) -> bytes:
    message = UpdateMessage(device=device, artefact=artefact, version=version, state=UpdateState(state), reason=reason)
    return msgspec.json.encode(message)


def run(address: str = ADDRESS, content: bytes | None = None, *, device: str = "pump-1", at: int = 5_000) -> Run:
    return Run(address, device, 1 | CLOCK_GOOD, encode_run(Properties()), [body() if content is None else content], at)


def event(tenant: str = "ACME", device: str = "pump-1", kind: str = REPORT_TYPE, content: bytes | None = None) -> Run:
    source = messages.MessageSource(device, messages.HTTP_ADAPTER, "/artefacts")
    message = messages.encode_bare_message(
        to=f"event/{tenant}",
        body=body(device) if content is None else content,
        now_ns=5,
        application=messages.upload_properties(source, None),
        content_type=kind,
    )
    return Run(f"event/{tenant}", device, AMQP | DURABLE | 1, messages.header(durable=True, ttl_s=None), [message], 5)
