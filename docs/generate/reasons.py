"""Reason codes: the words and numbers that programs compare, from the enumerations that hold them."""

from __future__ import annotations

import ast
from typing import Final, NamedTuple

from docs.generate import markdown, source

REFUSALS: Final = source.enumeration("edge/broker/model/interfaces.py", "not authorized")
REASON_CODES: Final = source.enumeration("edge/broker/message/mqtt_reason_codes.py", 0x87)
ANSWERS: Final = {
    "MQTT 5": "edge/broker/mqtt/answers.py",
    "AMQP 1.0": "edge/broker/amqp/addressing.py",
    "HTTP": "edge/broker/http/api.py",
    "Hono": "edge/broker/hono/errors.py",
}
"""Module of each protocol that maps refusals to its own codes."""


class Vocabulary(NamedTuple):
    """A set of words that programs compare."""

    title: str
    path: str
    word: str | int
    """One of its members' values."""
    about: str


VOCABULARIES: Final = (
    Vocabulary(
        "MQTT 5 reason codes", "edge/broker/message/mqtt_reason_codes.py", 0x87,
        "Section 2.4 of the standard; clients of MQTT 3 get the return codes of their version.",
    ),
    Vocabulary(
        "Refused clients", "edge/broker/model/refusals.py", "wrong-password",
        "Field `reason` of `GET /api/v1/refusals` and of `waypost client refusals`, label of `waypost_refused_total`.",
    ),
    Vocabulary(
        "Loss ledger: dropped at delivery", "edge/broker/delivery/dead_letters.py", "delivery attempts exceeded",
        "Column `reason` of table `ledger`, and of `waypost store info`. A message that was moved to a dead letter "
        "address has `dead-lettered: ` before the word.",
    ),
    Vocabulary(
        "Loss ledger: dropped by a hub", "cloud/lake/landing.py", "quarantined", "Column `reason` of table `ledger`.",
    ),
    Vocabulary(
        "Enrolment refused", "bridge/enrolment.py", "token-spent",
        "Field `reason` of the answer of `POST /enrolment/certificate`, `/renewal` and `/attestation`.",
    ),
    Vocabulary(
        "Configuration from a hub", "bridge/desired.py", "refused", "Fate of a version that is not in force.",
    ),
    Vocabulary(
        "System update of a gateway", "bridge/desired.py", "fetching", "Progress of a gateway.",
    ),
    Vocabulary(
        "Commands to devices", "cloud/hub/registry/commands.py", "cancelling", "Field `state` of `/api/v1/commands`.",
    ),
    Vocabulary(
        "Online commands", "bridge/command.py", "device-not-connected",
        "Field `reason_code` of `/api/v1/commands`, and after `waypost:` the condition of a rejected AMQP message.",
    ),
    Vocabulary(
        "Roll-outs", "cloud/hub/rollout.py", "halted", "Field `state` of `/api/v1/rollouts`.",
    ),
    Vocabulary(
        "Artefacts refused", "bridge/artefacts/faults.py", "wrong-board",
        "Reason of a refused artefact, at the maker, at a hub and at a gateway.",
    ),
    Vocabulary(
        "Members of a roll-out", "cloud/hub/rollout.py", "superseded", "Progress of a gateway in a roll-out.",
    ),
    Vocabulary(
        "Severities of problems", "edge/health/problems.py", "notice", "An error makes `/healthz` answer 503.",
    ),
    Vocabulary(
        "Exit codes of commands", "edge/output/errors.py", 4, "Every command ends with one of them.",
    ),
)  # fmt: skip


def refusals() -> list[dict[str, str]]:
    """Return, for each refusal of a message, its word and the code of each protocol."""
    tables = {protocol: _mapping(place) for protocol, place in ANSWERS.items()}
    rows = []
    for each in REFUSALS.members:
        [word] = source.texts(each.value, {})
        codes = {protocol: table.get(each.name, "") for protocol, table in tables.items()}
        rows.append({"refusal": word, **codes, "about": each.about})
    return rows


def _mapping(path: str) -> dict[str, str]:
    """Return the table of a module that maps refusals to codes, as text."""
    for each in source.constants(path):
        if isinstance(each.value, ast.Dict) and any(_is_refusal(key) for key in each.value.keys):
            found = {
                key.attr: _code(value)
                for key, value in zip(each.value.keys, each.value.values, strict=True)
                if isinstance(key, ast.Attribute)
            }
            if len(found) > 5:
                return found
    raise LookupError(f"{path} has no table of refusals")


def _is_refusal(node: ast.expr | None) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id=name)):
            return name == REFUSALS.name
    return False


def _code(node: ast.expr) -> str:
    match node:
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == REASON_CODES.name:
            codes = {each.name: each.value for each in REASON_CODES.members}
            [number] = source.texts(codes[name], {})
            return f"0x{int(number):02X} {name.lower().replace('_', ' ')}"
        case ast.Constant(value=value):
            return str(value)
    return ast.unparse(node)


def page() -> str:
    """Return the reference of reason codes."""
    parts = [markdown.heading(2, "A message that is refused", "refusals")]
    parts.append(
        "Answer of a gateway, by protocol. AMQP answers with the outcome `rejected` and this condition, "
        "or with `modified` where a consumer has given the message back.\n"
    )
    protocols = list(ANSWERS)
    rows = [
        (each["refusal"], *(markdown.code(each[name]) for name in protocols), markdown.prose(each["about"]))
        for each in refusals()
    ]
    parts.append(markdown.table(("refusal", *protocols, ""), rows))
    for vocabulary in VOCABULARIES:
        parts.append(markdown.heading(2, vocabulary.title, markdown.anchor(f"reasons {vocabulary.title}")))
        parts.append(vocabulary.about + "\n")
        parts.append(_vocabulary(vocabulary))
    parts.append(_rejects())
    return "\n".join(parts)


def members(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return (code, meaning) of each word of a vocabulary."""
    rows = []
    for each in source.enumeration(vocabulary.path, vocabulary.word).members:
        [word] = source.texts(each.value, {})
        number = isinstance(each.value, ast.Constant) and isinstance(each.value.value, int)
        shown = f"0x{int(word):02X}" if number and vocabulary.word == 0x87 else word
        name = each.name.lower().replace("_", " ") if number else ""
        rows.append((shown, " ".join(filter(None, (name, each.about)))))
    return rows


def _vocabulary(vocabulary: Vocabulary) -> str:
    rows = [(markdown.code(code), markdown.prose(about)) for code, about in members(vocabulary)]
    return markdown.table(("code", "meaning"), rows)


def rejects() -> list[tuple[str, str]]:
    """Return (reason, next step) of table `reject`."""
    from spark.decoding import reasons  # noqa: PLC0415 - constants without Spark

    return [
        (word, reasons.NEXT_STEPS.get(word, ""))
        for name, word in vars(reasons).items()
        if name.isupper()
        and not name.startswith("_")
        and isinstance(word, str)
        and name != "NEXT_STEPS"
        and not name.endswith("_MAX")
    ]


def _rejects() -> str:
    rows = [(markdown.code(word), markdown.prose(step)) for word, step in rejects()]
    return "\n".join(
        [
            markdown.heading(2, "Payloads that could not be read", "reasons-reject"),
            "Column `reason` of table `reject`. Without a next step the word says what the device has to correct.\n",
            markdown.table(("reason", "next step"), rows),
        ]
    )
