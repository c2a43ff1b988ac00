"""Pages of both consoles, read from their own lists, so that a new page is in every test by itself."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from tests.support.checkout import ROOT

SHARED: Final = ROOT / "bridge" / "console"
HOSTILE: Final = "<img src=x onerror=alert(1)>\u202etxt"
"""Name that becomes markup, and turns the direction of text, on a page that does not escape it."""
_PAGE: Final = re.compile(r'\{ page: "(\w+)".*?key: "(\w)".*?view: (?:lazy\(\(\) => import\("\./(\w+\.js)"\)|(\w+))')
_IMPORT: Final = re.compile(r'(?:from|import)\s*\(?"\./([\w/.]+)"')
_CHOICE: Final = re.compile(r'^const (SHOWN|VIEWS|FILTERS) = (\[\[".*\]\]);$', re.MULTILINE)


class ConsolePage(NamedTuple):
    """Line in the list of pages of an app."""

    name: str
    key: str
    """Letter that opens it after `g`."""
    module: str
    """File of its view."""


class ConsoleApp(NamedTuple):
    """Console of a gateway or of a hub."""

    name: str
    folder: Path
    more: tuple[str, ...]
    """Addresses of pages about one thing: a device, a gateway, a form."""

    @property
    def script(self) -> Path:
        """Return the module with the list of pages."""
        return self.folder / f"{self.name}.js"

    @property
    def pages(self) -> tuple[ConsolePage, ...]:
        """Return the pages, in their order."""
        text = self.script.read_text()
        imported = dict(re.findall(r'import \{ (\w+) \} from "\./(\w+\.js)"', text))
        found = [ConsolePage(name, key, lazy or imported[view]) for name, key, lazy, view in _PAGE.findall(text)]
        assert len(found) == text.count("{ page:"), f"{self.script.name}: a line of the list is not understood"
        return tuple(found)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the address of each page with each choice of its panel, then those in `more`."""
        every = [address for page in self.pages for address in (page.name, *self._choices(page))]
        return tuple(dict.fromkeys((*every, *self.more)))

    def _choices(self, page: ConsolePage) -> list[str]:
        found = _CHOICE.search(self._file(page.module).read_text())
        options = [] if found is None else [str(key) for key, _ in json.loads(found[2])]
        return [f"{page.name}?show={key}" for key in options if key]

    def sources(self, page: ConsolePage) -> tuple[Path, ...]:
        """Return the modules of a page in the folder of the app: the first one, and those that it imports."""
        found = [page.module]
        for module in found:
            text = self._file(module).read_text()
            new = [name for name in _IMPORT.findall(text) if (self.folder / name).exists()]
            found += [name for name in dict.fromkeys(new) if name not in found]
        return tuple(self.folder / name for name in sorted(found) if (self.folder / name).exists())

    def _file(self, module: str) -> Path:
        """Return a module of the app, or one that both apps have."""
        return self.folder / module if (self.folder / module).exists() else SHARED / module


_TABS: Final = ("completeness", "configuration", "commands", "identity", "history")
GATEWAY: Final = ConsoleApp(
    "gateway",
    ROOT / "edge" / "appliance" / "console" / "pages",
    (
        "devices?follow=pump7",
        "addresses?show=tree",
        f"devices/{quote(f'mqtt/{HOSTILE}', safe='')}",
        "addresses/plant%2Ftemp",
        f"addresses/{quote(f'plant/{HOSTILE}', safe='')}",
        "addresses?new=1",
        "messages?show=browse&address=%23",
        f"messages?show=browse&address={quote(f'queue/{HOSTILE}', safe='')}",
        f"users/{quote('pump7', safe='')}",
    ),
)
HUB: Final = ConsoleApp(
    "hub",
    ROOT / "cloud" / "console" / "pages",
    (
        "fleet/default%2Fgw1",
        *(f"fleet/default%2Fgw1?tab={tab}" for tab in _TABS),
        "fleet/problems",
        f"fleet/problems?name={quote(HOSTILE, safe='')}",
        f"fleet?show=all&problem={quote(HOSTILE, safe='')}&older_than=9.0&seen_before=7d&selector=site%3Dlyon",
        "configuration?edit=new",
        "people?show=tenants&tenant=default",
        f"commands?gateway={quote('gw1', safe='')}",
    ),
)
APPS: Final = (GATEWAY, HUB)


@cache
def shared_sources() -> tuple[Path, ...]:
    """Return the files that all pages share, without other people's."""
    return tuple(sorted(path for path in SHARED.iterdir() if path.suffix in (".js", ".css", ".svg")))
