"""Two hubs with one registry and one lake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.processes import Waypost


@contextmanager
def hub_replicas(folder: Path, registry: str, gather_ms: int) -> Iterator[list[Waypost]]:
    """Run two hubs below a folder, with data in `first` and `second`. `gather_ms`: time that messages are gathered."""
    config = folder / "hub.yaml"
    config.write_text(
        f"apiVersion: waypost/v1\nkind: Hub\nspec: {{registry: '{registry}', gatherMilliseconds: {gather_ms}}}\n"
    )
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                Waypost(
                    folder / f"{name}.log", "hub", "run", "--data", str(folder / name), "--dev",
                    "--amqp=127.0.0.1:0", "--http=127.0.0.1:0", f"--lake={folder / 'lake'}", f"--config={config}",
                )
            )
            for name in ("first", "second")
        ]  # fmt: skip
