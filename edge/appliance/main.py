"""Root of the command line: a table of commands, each imported when it is used.

`waypost --version` and `--help` import little more than click, so they answer in a tenth of a second. If the packages
of a command are not installed, the error names the extra that has them. This module knows where commands are, not what
they do; it is the one place that turns errors into exit codes.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from bridge.version import VERSION
from edge.appliance.commands import COMMANDS, COMPLETION_VARIABLE, FROM_A_CHECKOUT, HIDDEN, SECTIONS
from edge.appliance.loading import load, name_as_called
from edge.appliance.old_names import renamed
from edge.appliance.program import as_called, log_to_stderr, program_name
from edge.output.error_codes import code_of_click
from edge.output.errors import Exit, show_error
from edge.output.terminal import say

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

JSON_OPTIONS: Final = frozenset({"--json", "-ojson", "--output=json"})
JSON_PAIRS: Final = (("-o", "json"), ("--output", "json"))
"""Options with which a command prints JSON, and its errors too."""


class Root(click.Group):
    """Group of the commands in `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table: the order of use."""
        return [name for name in COMMANDS if name not in HIDDEN]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command. Raises `CommandError` when its extra is not installed."""
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else load(cmd_name, entry)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of a line. Raises UsageError, with the closest name, for an unknown one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib  # noqa: PLC0415 - only for a mistyped name

            close = difflib.get_close_matches(args[0], (*COMMANDS, *FROM_A_CHECKOUT), n=1)
            meant = f"; did you mean `{close[0]}`?" if close else ""
            raise click.exceptions.NoSuchCommand(args[0], f"No such command: {args[0]}{meant}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names from the table, so that a Tab imports no command."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only for a shell

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=COMMANDS[name].help) for name in names]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the lines of the table, so that help imports no command."""
        width = max(map(len, self.list_commands(ctx)))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), entry.help) for name, entry in commands.items()])


def set_up_logging(verbosity: int) -> None:
    """Log warnings and worse to stderr; each step of `verbosity` adds a level, each step below 0 removes one."""
    levels = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
    level = levels[max(0, min(len(levels) - 1, verbosity + 2))]
    log_to_stderr(level)


@click.group(
    cls=Root,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(VERSION, prog_name="waypost", message="%(prog)s %(version)s")
@click.option("-v", "--verbose", count=True, help="Log more (-v: what happens, -vv: everything).")
@click.option("-q", "--quiet", count=True, help="Log less (-q: errors only).")
@click.pass_context
def root(context: click.Context, verbose: int, quiet: int) -> None:
    """Waypost: messaging that survives the power cut, from the device to the lake.

    Alone: what runs here. Exit: 0 done, 1 failed, 2 wrong usage, 3 unreachable, 4 damaged. In a checkout:
    `waypost demo`, `test`, `bench`, `docs`.
    """
    if verbose or quiet:  # otherwise each long-running command sets up its own logging
        set_up_logging(verbose - quiet)
    if context.invoked_subcommand is None:
        from edge.appliance.overview import show_overview  # noqa: PLC0415 - help needs none

        show_overview()


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code. Errors of the user are shown without a traceback."""
    name_as_called(root)
    given = renamed(sys.argv[1:] if arguments is None else arguments)
    try:
        result = root.main(
            args=given, prog_name=program_name(), standalone_mode=False, complete_var=COMPLETION_VARIABLE
        )
    except click.exceptions.Abort:
        return _fail(given, "interrupted", "", 130, "interrupted")  # 128 + SIGINT, as shells count
    except click.exceptions.NoArgsIsHelpError as why:
        say(why.format_message())
        return int(Exit.USAGE)
    except click.UsageError as why:
        context = why.ctx
        usage = f"see `{context.command_path} --help`" if context is not None else ""
        if isinstance(why, click.BadParameter) and why.message.endswith("is not readable."):
            usage = "run this as its owner: sudo -u USER …"
        return _fail(given, why.format_message(), usage, int(Exit.USAGE), code_of_click(why))
    except click.ClickException as why:
        # Commands of `spark` and `images` raise their own errors: show a hint when they have one.
        code = code_of_click(why)
        return _fail(given, why.format_message(), str(getattr(why, "hint", "")), why.exit_code, code)
    except ImportError as why:
        if not hasattr(why, "hint"):  # `bridge.native.ExtensionUnusable` has one; it cannot be imported at this point
            raise
        return _fail(given, str(why), str(why.hint), int(Exit.FAILED), "part-missing")
    return result if isinstance(result, int) else int(Exit.DONE)


def _fail(arguments: Sequence[str], message: str, hint: str, code: int, error: str) -> int:
    """Show an error, as JSON if the command prints JSON; return the exit status."""
    message, hint = as_called(message), as_called(hint)
    pairs = itertools.pairwise(arguments)
    if JSON_OPTIONS.intersection(arguments) or any(pair in JSON_PAIRS for pair in pairs):
        from edge.output.document import envelope, json  # noqa: PLC0415 - help needs none

        item = {"code": error, "exit": code, "message": message, "next": hint}
        click.echo(json(envelope("error", [item])), err=True)
    else:
        show_error(message, hint, error=error)
    return code


def main() -> None:
    """Run the console script."""
    if sys.stdout is None:  # closed by the caller (`>&-`): discard the output
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # stays open until exit
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the pipe has closed it (`waypost get | head`): no error to report.
        _discard_stdout()
        code = int(Exit.FAILED)
    except OSError as why:
        if not _stdout_fails():
            raise
        _discard_stdout()
        show_error(f"the output cannot be written: {why.strerror}", error="output-not-written")
        code = int(Exit.FAILED)
    sys.exit(code)


def _stdout_fails() -> bool:
    """Return True when stdout cannot be written, as on a full disk: another line fails too."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _discard_stdout() -> None:
    """Redirect stdout to the null device: Python flushes it at exit, and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
