"""Tables that a person wrote in a spreadsheet: CSV, as the program of any country saves it."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from images.errors import USAGE, ImageError

SUFFIX: Final = ".csv"
DELIMITERS: Final = (",", ";", "\t")
_NAMED_DELIMITER: Final = re.compile(r'"?sep=(.)"?', re.IGNORECASE)
"""A first line by which Excel knows the delimiter; not all programs take it away."""


def is_table(path: Path) -> bool:
    """By its name."""
    return path.suffix.lower() == SUFFIX


def rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(number of the line it ends in, cells) of the rows that have something in them, cells as they are written.

    Raises ImageError.
    """
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise ImageError(f"{path}: {error.strerror}", code=USAGE) from None
    except UnicodeDecodeError:
        raise ImageError(f"{path} is not in UTF-8", hint='save it as "CSV UTF-8"', code=USAGE) from None
    head, _, behind = text.partition("\n")
    named = _NAMED_DELIMITER.fullmatch(head)
    before = 1 if named else 0
    delimiter = named[1] if named else max(DELIMITERS, key=head.count)
    reader = csv.reader(io.StringIO(behind if named else text), delimiter=delimiter, strict=True)
    while True:
        begin = before + reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            hint = "is there a quotation mark that none ends?"
            raise ImageError(f"{path}, row {begin}: {error}", hint=hint, code=USAGE) from None
        if any(map(str.strip, cells)):
            yield before + reader.line_num, cells
