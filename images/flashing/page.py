"""Page of labels to print and cut. Each label repeats its text as a QR code (ISO/IEC 18004)."""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from typing import Final

import segno

from images.flashing.labels import Label

MODULE_MM: Final = 0.4
"""Width of a module: nearly 5 dots of a 300 dpi printer, which a phone's camera can resolve."""
QUIET_MODULES: Final = 4
"""White margin around the code, as ISO/IEC 18004 requires."""
CODE_BYTES_MAX: Final = 450
"""Bytes of UTF-8 in a code: a symbol of version 16, 36 mm wide. A larger one does not fit next to the text."""

_PAGE = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Labels</title><style>
@page {{ margin: 8mm; }}
body {{ font: 3.2mm/1.35 sans-serif; margin: 8mm; color: #000; background: #fff; }}
.label {{ display: inline-flex; gap: 1.5mm; width: 88mm; min-height: 30mm; margin: 1mm; padding: 2mm;
  border: 0.2mm dashed #999; box-sizing: border-box; vertical-align: top; break-inside: avoid; }}
.label div {{ flex: 1; min-width: 0; overflow-wrap: anywhere; }}
.label b {{ display: block; font-size: 5mm; line-height: 1.2; }}
.label code {{ font-size: 2.6mm; }}
.label svg {{ flex: none; shape-rendering: crispEdges; }}
@media print {{ body {{ margin: 0; }} }}
</style></head><body>
{labels}
</body></html>
"""
_LABEL = """\
<div class="label"><div><b>{name}</b>{hostname}<br>{hub}<br>{address}<br>
<code>{image}</code><br><code>{card} · {date}</code></div>{code}</div>"""
_NO_CODE = "<i>too long for a code</i>"


def render_page(labels: Sequence[Label], now: float) -> str:
    """Return the page as HTML. `now`: UTC seconds since 1970."""
    date = time.strftime("%Y-%m-%d", time.gmtime(now))
    return _PAGE.format(labels="\n".join(_render_label(each, date) for each in labels))


def _render_label(label: Label, date: str) -> str:
    shown = {key: html.escape(value) for key, value in label._asdict().items()}
    return _LABEL.format(date=date, code=_render_code(label.code_text(date)), **shown)


def _render_code(text: str) -> str:
    """Return the text as a QR code in SVG. Level M can be read with up to 15 % of it damaged."""
    if len(text.encode()) > CODE_BYTES_MAX:
        return _NO_CODE
    code = segno.make_qr(text, error="m", encoding="utf-8")
    modules, _ = code.symbol_size(border=QUIET_MODULES)
    drawn: str = code.svg_inline(border=QUIET_MODULES, omitsize=True, light="#fff", svgclass=None, lineclass=None)
    width = f"{modules * MODULE_MM:.1f}mm"
    return drawn.replace("<svg", f'<svg width="{width}" height="{width}" role="img" aria-label="QR code"', 1)
