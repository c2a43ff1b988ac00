"""Hubs with one registry and one lake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.demo.ports import free_ports
from tests.support.processes import Waypost

NAMES: Final = ("first", "second", "third")


@contextmanager
def hub_replicas(
    folder: Path, registry: str, gather_ms: int, *, count: int = 2, drain_s: int = 60
) -> Iterator[list[Waypost]]:
    """Run hubs below a folder, with data in `first`, `second` and `third`. They keep their ports when they start again.

    `gather_ms`: time that messages are gathered; `drain_s`: time in which a hub that stops closes its connections.
    """
    config = folder / "hub.yaml"
    spec = f"{{registry: '{registry}', gatherMilliseconds: {gather_ms}, drainSeconds: {drain_s}}}"
    config.write_text(f"apiVersion: waypost/v1\nkind: Hub\nspec: {spec}\n")
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                Waypost(
                    folder / f"{name}.log", "hub", "run", "--data", str(folder / name), "--dev",
                    f"--amqp=127.0.0.1:{port}", "--http=127.0.0.1:0", f"--lake={folder / 'lake'}",
                    f"--config={config}",
                )
            )
            for name, port in zip(NAMES[:count], free_ports(count), strict=True)
        ]  # fmt: skip
