"""Logs of a store as a forwarder reads them."""

from __future__ import annotations

from hypothesis import strategies as st

from bridge.message import Run, Stored

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


addresses = st.sampled_from(["a", "b", "plant/7/temp", "ü/🙂"])


runs = st.builds(
    Run,
    addresses,
    names,
    st.integers(0, 63),
    st.binary(max_size=8),
    st.lists(st.binary(max_size=20), min_size=1, max_size=5),
    st.integers(0, 2**63 - 1),
)


@st.composite
def logs(draw: st.DrawFn) -> list[Stored]:
    """Draw a log as a forwarder reads it: dense per address, with gaps."""
    following = dict.fromkeys(["a", "b", "plant/7/temp", "ü/🙂"], 0)
    following["b"] = draw(st.integers(0, 2**62))
    result: list[Stored] = []
    for position, run in enumerate(draw(st.lists(runs, min_size=1, max_size=12))):
        following[run.address] += draw(st.sampled_from([0, 0, 0, 1, 1000]))
        result.append(Stored(position, following[run.address], run))
        following[run.address] += len(run)
    return result
