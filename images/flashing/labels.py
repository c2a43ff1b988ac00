"""Labels for gateways: a page to print and cut, one label for each card that was written."""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from typing import NamedTuple

_PAGE = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Labels</title><style>
body {{ font: 3.2mm/1.35 sans-serif; margin: 8mm; }}
.label {{ display: inline-block; width: 58mm; height: 30mm; margin: 1mm; padding: 2.5mm; border: 0.2mm dashed #999;
  box-sizing: border-box; overflow: hidden; vertical-align: top; page-break-inside: avoid; }}
.label b {{ display: block; font-size: 5.5mm; overflow-wrap: anywhere; }}
.label code {{ font-size: 2.6mm; }}
</style></head><body>
{labels}
</body></html>
"""
_LABEL = """\
<div class="label"><b>{name}</b>{hostname}<br>{hub}<br>{address}<br>
<code>{image}</code><br><code>{card} · {date}</code></div>"""


class Label(NamedTuple):
    """What is on one; nothing of it is a secret."""

    name: str
    hostname: str
    hub: str
    address: str
    image: str
    card: str
    """The card's own serial number, or where it was."""


def page(labels: Sequence[Label], now: float) -> str:
    """The page. `now`: UTC seconds since 1970."""
    date = time.strftime("%Y-%m-%d", time.gmtime(now))
    shown = ({key: html.escape(value) for key, value in each._asdict().items()} for each in labels)
    return _PAGE.format(labels="\n".join(_LABEL.format(date=date, **each) for each in shown))
