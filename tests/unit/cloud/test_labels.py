"""Labels of gateways, and selectors over them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.hub.labels import (
    LabelError,
    LabelSelector,
    apply_changes,
    format_labels,
    parse_changes,
    parse_selector,
    validate_labels,
)
from cloud.hub.limits import LABELS_MAX, SELECTOR_CHARACTERS_MAX

BERLIN = {"site": "berlin", "ring": "canary", "example.org/floor": "2"}


class TestSelectors:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("site=berlin", True),
            ("site=paris", False),
            ("site=berlin,ring!=canary", False),
            ("site=berlin,ring!=early", True),
            ("rack!=7", True),
            ("ring", True),
            ("rack", False),
            ("!rack", True),
            ("!ring", False),
            ("example.org/floor=2, site", True),
        ],
    )
    def test_selector_chooses_gateways(self, text: str, expected: bool) -> None:
        assert parse_selector(text).matches(BERLIN) is expected

    @pytest.mark.parametrize(
        "text",
        ["", ",", "=", "a=", "=b", "a==b", "!a=b", "!!a", "a!", "a b", "a=b c", "a=b/c", "-a", "a=b,,c", "ä", "*"],
    )
    def test_invalid_selectors_raise(self, text: str) -> None:
        with pytest.raises(LabelError):
            parse_selector(text)

    def test_equal_selectors_have_one_text(self) -> None:
        assert str(parse_selector("site=berlin, ring!=canary,!x")) == str(
            parse_selector("!x,ring!=canary,site=berlin,!x")
        )

    @given(st.text())
    def test_any_text_is_a_selector_or_refused(self, text: str) -> None:
        try:
            found = parse_selector(text)
        except LabelError:
            return
        assert isinstance(found, LabelSelector)
        assert parse_selector(str(found)) == found

    def test_length_is_limited(self) -> None:
        text = ",".join(f"k{number}" for number in range(100))[: SELECTOR_CHARACTERS_MAX - 1].rstrip(",")
        parse_selector(text)
        with pytest.raises(LabelError, match="longer than 255 characters"):
            parse_selector(text + "," + "x" * SELECTOR_CHARACTERS_MAX)


class TestChanges:
    def test_labels_are_set_and_removed(self) -> None:
        after = apply_changes(BERLIN, parse_changes(["site=paris", "ring-", "rack=7", "none-"]))
        assert format_labels(after) == "example.org/floor=2,rack=7,site=paris"

    @pytest.mark.parametrize(
        "word", ["site", "=x", "-", "site=", "s ite=x", "site=x/y", "x" * 64 + "=a", "a=" + "x" * 64]
    )
    def test_invalid_changes_raise(self, word: str) -> None:
        with pytest.raises(LabelError):
            parse_changes([word])

    def test_changes_of_a_request_are_read(self) -> None:
        validate_labels({"site": None, "ring": "a.b-c_d"})
        with pytest.raises(LabelError):
            validate_labels({"site": ""})

    def test_labels_are_limited(self) -> None:
        most = {f"k{number}": "v" for number in range(LABELS_MAX)}
        assert apply_changes(most, {"k0": "w"})["k0"] == "w"
        assert len(apply_changes(most, {"k0": None, "other": "v"})) == LABELS_MAX
        with pytest.raises(LabelError, match="more than 32 labels"):
            apply_changes(most, {"other": "v"})
