"""The command line: every command with its arguments and options, from click."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import click

from docs.generate import markdown
from docs.generate.source import ROOT
from edge.appliance import where
from edge.appliance.commands import COMMANDS
from edge.appliance.main import root

PROGRAM = "waypost"


class Shown(NamedTuple):
    """A command and the words that call it, without the program's name."""

    words: tuple[str, ...]
    command: click.Command

    @property
    def label(self) -> str:
        """Label of the command's section."""
        return markdown.anchor(f"command {' '.join(self.words)}")


def commands() -> Iterator[Shown]:
    """Yield every command, groups before their commands."""
    context = click.Context(root)
    for name in COMMANDS:
        command = root.get_command(context, name)
        if command is not None and not command.hidden:
            yield from _below((name,), command)


def _below(words: tuple[str, ...], command: click.Command) -> Iterator[Shown]:
    yield Shown(words, command)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _below((*words, name), inner)


def page() -> str:
    """Return the reference of commands."""
    every = list(commands())
    parts = [_overview(every), _common(), _launcher()]
    parts += [_section(each) for each in every]
    return "\n".join(parts)


def _overview(every: Sequence[Shown]) -> str:
    rows = [
        (f"[`{PROGRAM} {each.words[0]}`](#{each.label})", markdown.prose(COMMANDS[each.words[0]].help))
        for each in every
        if len(each.words) == 1
    ]
    return markdown.heading(2, "Overview", "command-overview") + "\n" + markdown.table(("command", "for"), rows)


def _common() -> str:
    parameters = [each for each in root.get_params(click.Context(root)) if isinstance(each, click.Option)]
    return (
        markdown.heading(2, "Options of every command", "command-options")
        + f"\nThey stand before the command: `{PROGRAM} -v run …`.\n\n"
        + _options(parameters, click.Context(root))
    )


def _launcher() -> str:
    """Return what the launcher of a checkout understands itself, from its own first comment."""
    comment = re.findall(r"^#   (\./waypost \w+.*?)\s{2,}(.*)$", (ROOT / "waypost").read_text(), re.MULTILINE)
    rows = [(markdown.code(line), markdown.prose(about)) for line, about in comment]
    return (
        markdown.heading(2, "From a checkout", "command-checkout")
        + "\n`./waypost` makes its environment at the first use, and adds commands of its own:\n\n"
        + markdown.table(("command", "for"), rows)
    )


def _section(shown: Shown) -> str:
    command, words = shown.command, " ".join((PROGRAM, *shown.words))
    context = click.Context(command, info_name=words)
    parts = [markdown.heading(1 + min(len(shown.words), 3), f"`{words}`", shown.label)]
    parts += _help(command)
    usage = " ".join((words, *command.collect_usage_pieces(context)))
    parts.append(f"```console\n{usage}\n```\n")
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    if arguments:
        rows = [(markdown.code(each.make_metavar(context)), _required(each)) for each in arguments]
        parts.append(markdown.table(("argument", ""), rows))
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    if options:
        parts.append(_options(options, context))
    if isinstance(command, click.Group):
        inner = [Shown((*shown.words, name), command) for name in command.list_commands(context)]
        rows = [
            (f"[`{PROGRAM} {' '.join(each.words)}`](#{each.label})", _short(command, each.words[-1], context))
            for each in inner
        ]
        parts.append(markdown.table(("command", "for"), rows))
    return "\n".join(parts)


def _short(group: click.Group, name: str, context: click.Context) -> str:
    command = group.get_command(context, name)
    return markdown.prose(command.get_short_help_str(limit=200)) if command is not None else ""


def _help(command: click.Command) -> Iterator[str]:
    """Yield the paragraphs of a command's help; `\\b` begins one that keeps its lines."""
    text = (command.help or "").partition("\f")[0]
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if paragraph.lstrip().startswith("\b"):
            kept = paragraph.replace("\b\n", "").replace("\b", "")
            yield f"```text\n{kept}\n```\n"
        elif paragraph:
            yield markdown.prose(paragraph) + "\n"


def _required(argument: click.Argument) -> str:
    return "required" if argument.required else "optional"


def _options(options: Sequence[click.Option], context: click.Context) -> str:
    rows = []
    for each in options:
        names = ", ".join(markdown.code(name) for name in (*each.opts, *each.secondary_opts))
        metavar = "" if each.is_flag or each.count else each.make_metavar(context)
        about = [markdown.prose(each.help or "")]
        about += ["Required."] if each.required else []
        about += ["May be given several times."] if each.multiple else []
        about += [f"Environment: {markdown.code(str(each.envvar))}."] if each.envvar else []
        rows.append((names, markdown.code(metavar), _default(each), " ".join(filter(None, about))))
    return markdown.table(("option", "value", "default", "what it does"), rows)


def _default(option: click.Option) -> str:
    if where.is_found(option):
        return "[found](#command-context)"
    value = option.to_info_dict().get("default")
    if option.is_flag or option.count or value in (None, (), [], ""):
        return ""
    if callable(value) or "Sentinel" in type(value).__name__ or "Unset" in type(value).__name__:
        return ""
    return markdown.code(str(value))
