"""Checks the statements of gateways: each signature, the chain of each address, and the closings of each hour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bridge.manifest import ManifestStatement
from cloud.lake.sequences import SequenceStream
from cloud.proof.statements import (
    FindingKind,
    LandedStatement,
    ProofFinding,
    StatementKeys,
    chain_faults,
    closing_faults,
    read_statement,
    statement_fault,
)


class StatementCheck:
    """Statements of some gateways. `add` each row of `manifests`, then call `valid`."""

    def __init__(self, find: Callable[[Iterable[ProofFinding]], None]) -> None:
        """`find` gets the faults."""
        self.keys = StatementKeys()
        self.read: dict[tuple[SequenceStream, str], LandedStatement] = {}
        """Statements by stream and digest."""
        self._find = find

    def add(self, row: Mapping[str, Any]) -> None:
        """Read a row of `manifests`."""
        signed = read_statement(row)
        if isinstance(signed, str):
            name = (row["tenant"], row["gateway"], row["epoch"], row["address"])
            words = f"not a valid statement: {signed}"
            self._find([ProofFinding(FindingKind.FORGED, *name, row["first_sequence"], row["last_sequence"], words)])
            return
        self.keys.learn(signed)
        before = self.read.get((signed.stream, signed.statement.digest))
        if before is None or statement_fault(before, self.keys):  # after a crash of the hub it may be there twice
            self.read[signed.stream, signed.statement.digest] = signed

    def valid(self, *, whole: bool) -> dict[SequenceStream, list[LandedStatement]]:
        """Return the valid statements by stream; report the faults of others, and of chains and closings.

        `whole`: the chains are known from their start.
        """
        valid: dict[SequenceStream, list[LandedStatement]] = {}
        gateways: dict[tuple[str, str], list[ManifestStatement]] = {}
        for signed in self.read.values():
            why, span = statement_fault(signed, self.keys), signed.statement
            if why is not None:
                fault = (FindingKind.FORGED, *signed.stream, span.first_sequence, span.last_sequence, why)
                self._find([ProofFinding(*fault)])
                continue
            valid.setdefault(signed.stream, []).append(signed)
            gateways.setdefault((signed.stream.tenant, signed.stream.gateway), []).append(signed.statement)
        for stream, chain in valid.items():
            self._find(chain_faults(stream, [signed.statement for signed in chain], whole=whole))
        for (tenant, gateway), made in gateways.items():
            self._find(closing_faults(tenant, gateway, made, whole=whole))
        return valid
