"""A lake's place as an option of a command."""

from __future__ import annotations

import click

from cloud.place.place import Place, parse


class PlaceOption(click.ParamType[Place]):
    """A folder, or a URI."""

    name = "place"

    def convert(self, value: str | Place, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        """Fails with what is wrong."""
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
