"""Hostile names of clients: for logs, terminals, spreadsheets, pages and metrics."""

from __future__ import annotations

from typing import Final

HOSTILE: Final = (
    "a\n2026-01-01 00:00:00,000 ERROR   edge: forged",
    "a\r\nb",
    "a\x1b[2J\x1b]0;owned\x07",
    "a\x9b2J",
    "a\u202egpj.exe",
    "a\u2066b\u2069",
    "a\u2028b\u2029c\x85d",
    "a\u200bb\ufeff",
    "\t=1+1",
    '=HYPERLINK("http://example.invalid","x")',
    "+1+cmd|'/C calc'!A0",
    "-2+3",
    "@SUM(1)",
    "[bold red]x[/bold red][link=http://example.invalid]y[/link]",
    "[/]",
    "<script>alert(1)</script>",
    "\" onmouseover='alert(1)' x=\"",
    "</script><img src=x onerror=alert(1)>",
    'x"} 1\nwaypost_forged 1',
    "a\\",
    "../../etc/passwd",
)
"""None has U+0000, which MQTT and AMQP refuse; those with `+` and `#` are not valid topic names."""
