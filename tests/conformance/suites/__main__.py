"""`./waypost test --suite NAME PATH`: run a suite of another project against a gateway, and compare with the page.

Exit code 1: a case failed that `docs/reference/interoperability.md` does not list.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from tests.conformance.suites.case import SuiteError, excluded, listed, summarize
from tests.conformance.suites.paho import FILES, run_paho


@click.command()
@click.argument("suite", type=click.Choice(sorted(FILES)))
@click.argument("path", type=click.Path(path_type=Path, exists=True, resolve_path=True))
@click.option("-k", "words", default="", help="Run only cases with this in their names.")
def main(suite: str, path: Path, words: str) -> None:
    """Run SUITE of the checkout at PATH."""
    rows = listed()
    with tempfile.TemporaryDirectory(prefix="waypost-suite-") as folder:
        try:
            results = run_paho(
                suite, path, Path(folder), lambda name: words in name and not excluded(suite, name, rows)
            )
        except SuiteError as why:
            raise click.ClickException(str(why)) from None
    found = summarize(suite, results, rows)
    for each in found.unexpected:
        click.echo(f"FAILED {each.name}\n{each.detail}\n")
    for name in found.deviations:
        click.echo(f"deviation {name}")
    for name in found.better:
        click.echo(f"listed as a deviation, and passed: {name}")
    click.echo(f"{suite}: {found.passed} of {found.applicable} applicable cases passed")
    sys.exit(1 if found.unexpected else 0)


if __name__ == "__main__":
    main()
