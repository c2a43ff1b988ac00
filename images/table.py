"""CSV tables written with a spreadsheet, in the dialect of any country."""

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
"""First line that states the delimiter in files of Excel; some programs leave it in."""


def is_table(path: Path) -> bool:
    """Return whether the name of a file is that of a table."""
    return path.suffix.lower() == SUFFIX


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not empty: the number of the last line of each, and its cells as written.

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
            hint = "is there an unclosed quotation mark?"
            raise ImageError(f"{path}, row {begin}: {error}", hint=hint, code=USAGE) from None
        if any(map(str.strip, cells)):
            yield before + reader.line_num, cells
