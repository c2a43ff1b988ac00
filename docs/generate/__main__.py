"""Build the docs site and serve it: `./waypost docs [--build FOLDER]`."""

from __future__ import annotations

import functools
import http.server
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
from sphinx.cmd.build import build_main

DOCS: Final = Path(__file__).resolve().parents[1]
ADDRESS: Final = "127.0.0.1"


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serve files without a line for each request."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Log nothing."""


def build(folder: Path) -> int:
    """Build the whole site into a folder; return 0 when there was no warning."""
    with TemporaryDirectory() as doctrees:
        options = ["-b", "html", "-E", "-q", "-W", "--keep-going", "-d", doctrees]
        return int(build_main([*options, str(DOCS), str(folder)]))


def serve(folder: Path, port: int) -> None:
    """Serve a folder on this machine until Ctrl-C."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer((ADDRESS, port), handler) as server:
        print(f"ready http://{ADDRESS}:{server.server_port}", flush=True)  # noqa: T201 - the answer of a command
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--build", "target", metavar="FOLDER", type=click.Path(path_type=Path), help="Build there, and end.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free port.")
def main(target: Path | None, port: int) -> None:
    """Build the docs site and serve it on this machine until Ctrl-C."""
    if target is not None:
        sys.exit(build(target))
    with TemporaryDirectory() as folder:
        code = build(Path(folder))
        if code:
            sys.exit(code)
        serve(Path(folder), port)


if __name__ == "__main__":
    main(prog_name="waypost docs")
