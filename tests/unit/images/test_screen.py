from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree

import pytest

from images.emulator.machine import boot_until
from images.emulator.screen import HEIGHT, render_lines, render_svg
from images.errors import ImageError

OK = "[\x1b[0;32m  OK  \x1b[0m] "


def test_lines_overwritten_by_systemd_are_hidden() -> None:
    said = (
        f"{OK}Mounted /var.\r\n"
        "[ ***  ] Job data.mount running (1s)\r\n\x1bM\r\x1b[K[  *** ] Job data.mount running (2s)\r\n"
        f"\x1bM\r\x1b[K{OK}Mounted /data.\r\n\x1b[Khall login: "
    )
    assert render_lines(said)[1:] == [f"{OK}Mounted /data.", "hall login: "]


def test_picture_has_the_last_lines_and_is_xml() -> None:
    svg = render_svg("".join(f"line<{number}>\r\n" for number in range(100)), "waypost.img")
    text = "".join(ElementTree.fromstring(svg).itertext()).replace("\xa0", " ")
    assert "waypost.img" in text
    assert "line<99>" in text
    assert f"line<{99 - HEIGHT}>" not in text
    assert "url(" not in svg.replace("url(#", ""), "nothing from elsewhere"


def test_screen_is_watched_until_the_text_appears() -> None:
    said = boot_until(
        [sys.executable, "-c", "print('be'); print('good', flush=True); import time; time.sleep(60)"], "good", 60
    )
    assert said.split() == ["be", "good"]


@pytest.mark.parametrize(("code", "limit_s", "said"), [
    ("print('broken')", 60.0, r"the machine ended; its last lines:\nbroken$"),
    ("import time; time.sleep(60)", 0.2, r"did not show 'good' within 0 s; its last lines:\n$"),
])  # fmt: skip
def test_missing_text_is_an_error_with_the_last_lines(code: str, limit_s: float, said: str) -> None:
    with pytest.raises(ImageError, match=said):
        boot_until([sys.executable, "-c", code], "good", limit_s)
