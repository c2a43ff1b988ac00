"""The loop both atheris harnesses share; atheris is no dependency: `pip install atheris` where it is wanted."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

RSS_MIB_MAX = 1_024
"""libFuzzer ends the run above it: nothing a stream does may add up."""
INPUT_BYTES_MAX = 8_192
INPUT_S_MAX = 10
SIZES = (0, 1, 7, 100)


def run(protocol: str, arguments: Sequence[str]) -> None:
    """Fuzz until libFuzzer's own arguments say stop (``-max_total_time=600``). Exits 3 without atheris."""
    try:
        import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]  # noqa: PLC0415
    except ImportError:
        print("atheris is not installed: pip install atheris (or run the same by hypothesis: pytest)", file=sys.stderr)
        sys.exit(3)
    with atheris.instrument_imports(include=["bridge", "edge.broker"]):
        from tests.property.fuzz import corpus, target  # noqa: PLC0415
    seeds = corpus.mqtt_seeds() if protocol == "mqtt" else corpus.amqp_seeds()
    broker = target.Target()

    def one(data: bytes) -> None:
        if data:  # the first byte says how the rest is cut into reads
            broker.feed(
                "mqtt" if protocol == "mqtt" else "amqp", target.in_pieces(data[1:], SIZES[data[0] % len(SIZES)])
            )

    with tempfile.TemporaryDirectory(prefix=f"waypost-fuzz-{protocol}-") as folder:
        for i, seed in enumerate(seeds):
            (Path(folder) / f"seed-{i}").write_bytes(b"\0" + seed)
        bounds = [f"-rss_limit_mb={RSS_MIB_MAX}", f"-timeout={INPUT_S_MAX}", f"-max_len={INPUT_BYTES_MAX}"]
        replays = any(Path(argument).is_file() for argument in arguments)
        atheris.Setup([sys.argv[0], *bounds, *arguments, *([] if replays else [folder])], one)
        atheris.Fuzz()
