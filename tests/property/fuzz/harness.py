"""The loop the atheris harnesses share; atheris is no dependency: `pip install atheris` where it is wanted."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RSS_MIB_MAX = 1_024
"""libFuzzer ends the run above it: nothing a stream does may add up."""
INPUT_BYTES_MAX = 8_192
INPUT_S_MAX = 10


def run(protocol: str, arguments: Sequence[str]) -> None:
    """Fuzz until libFuzzer's own arguments say stop (``-max_total_time=600``). Exits 3 without atheris."""
    atheris = _atheris()
    with atheris.instrument_imports(include=["bridge", "edge.broker"]):
        from tests.property.fuzz import corpus, parser, target  # noqa: PLC0415
    seeds = corpus.mqtt_seeds() if protocol == "mqtt" else corpus.amqp_seeds()
    broker = target.Target()

    def one(data: bytes) -> None:
        if data:  # the first byte says how the rest is cut into reads
            broker.feed("mqtt" if protocol == "mqtt" else "amqp", parser.reads(data))

    _fuzz(atheris, protocol, arguments, [b"\0" + seed for seed in seeds], one)


def run_parser(name: str, arguments: Sequence[str]) -> None:
    """The same for one of `parsers.PARSERS`."""
    atheris = _atheris()
    with atheris.instrument_imports(include=["bridge", "edge", "cloud", "h11", "wsproto"]):
        from tests.property.fuzz import parsers  # noqa: PLC0415
    parser = parsers.PARSERS[name]

    def one(data: bytes) -> None:
        with contextlib.suppress(*parser.raises):
            parser.take(data)

    _fuzz(atheris, name, arguments, parser.seeds, one)


def _atheris() -> Any:
    try:
        import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]  # noqa: PLC0415
    except ImportError:
        print("atheris is not installed: pip install atheris (or run the same by hypothesis: pytest)", file=sys.stderr)
        sys.exit(3)
    return atheris


def _fuzz(
    atheris: Any, name: str, arguments: Sequence[str], seeds: Sequence[bytes], one: Callable[[bytes], None]
) -> None:
    with tempfile.TemporaryDirectory(prefix=f"waypost-fuzz-{name}-") as folder:
        for i, seed in enumerate(seeds):
            (Path(folder) / f"seed-{i}").write_bytes(seed)
        bounds = [f"-rss_limit_mb={RSS_MIB_MAX}", f"-timeout={INPUT_S_MAX}", f"-max_len={INPUT_BYTES_MAX}"]
        replays = any(Path(argument).is_file() for argument in arguments)
        atheris.Setup([sys.argv[0], *bounds, *arguments, *([] if replays else [folder])], one)
        atheris.Fuzz()
