"""Command-line option for the place of a lake."""

from __future__ import annotations

import click

from cloud.place.place import LakePlace, parse


class PlaceOption(click.ParamType[LakePlace]):
    """A folder or a URI."""

    name = "place"

    def convert(self, value: str | LakePlace, param: click.Parameter | None, ctx: click.Context | None) -> LakePlace:
        """Parse the place; fail with the reason."""
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
