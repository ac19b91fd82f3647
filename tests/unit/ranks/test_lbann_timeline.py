"""LBANN's timeline as phases and operators; format of src/callbacks/timeline.cpp (v0.104)."""

from itertools import pairwise
from pathlib import Path

import pytest

from ranks.frameworks.lbann.output import UnreadableError
from ranks.frameworks.lbann.timeline import phases, read

# Three steps of two layers, of which one has weights; the third step is the second epoch's first, after a
# validation.
TEXT = """\
fp-conv1:0.001:0.002
fp-conv1:0.011:0.012
fp-conv1:1.001:1.002
fp-images:0.0005:0.001
fp-images:0.0105:0.011
fp-images:1.0005:1.001
bp-images:0.003:0.003
bp-images:0.013:0.013
bp-images:1.003:1.003
bp-conv1:0.002:0.003
bp-conv1:0.012:0.013
bp-conv1:1.002:1.003
opt-conv1.kernel:0.0035:0.006
opt-conv1.kernel:0.0135:0.016
opt-conv1.kernel:1.0035:1.006
opt-conv1.bias:0.006:0.007
opt-conv1.bias:0.016:0.017
opt-conv1.bias:1.006:1.007
"""


# Written by LBANN 0.104.0 on two ranks of a busy machine: the last two steps of an epoch, and the first two
# of the next one.
REAL = Path(__file__).with_name("lbann_output")


def written(folder: Path, text: str) -> Path:
    file = folder / "timeline.m0.0.txt"
    file.write_text(text)
    return file


def test_a_steps_phases_follow_each_other(tmp_path: Path) -> None:
    steps = {
        (epoch, step): parts for epoch, step, parts in phases(read(written(tmp_path, TEXT)), {1: 0, 2: 2})
    }
    assert list(steps) == [(1, 1), (1, 2), (2, 1)]
    assert steps[1, 2] == [
        ("data", 0.007, 0.0105),
        ("forward", 0.0105, 0.012),
        ("backward", 0.012, 0.013),
        ("metrics", 0.013, 0.0135),
        ("optimizer", 0.0135, 0.017),
    ]
    assert [part[0] for part in steps[2, 1]] == ["forward", "backward", "metrics", "optimizer"], (
        "validation came before"
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (TEXT.replace("opt-conv1.kernel:1.0035:1.006\n", ""), "different numbers of steps"),
        (TEXT.replace("opt-", "fp-"), "different numbers of steps"),
        (TEXT.removesuffix("007\n"), "unknown line"),
        ("", "different numbers of steps"),
    ],
)
def test_a_timeline_that_is_not_whole_is_refused(tmp_path: Path, changed: str, message: str) -> None:
    with pytest.raises(UnreadableError, match=message):
        read(written(tmp_path, changed))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_real_timeline_is_read_whole(rank: int) -> None:
    times = read(REAL / f"timeline.m0.{rank}.txt")
    assert {part: sum(kind == part for kind, _ in times) for part, _ in times} == {
        "forward": 21, "backward": 17, "optimizer": 8,
    }  # fmt: skip
    steps = list(phases(times, {1: 0, 2: 2}))
    assert [(epoch, step) for epoch, step, _ in steps] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for _, _, parts in steps:
        assert all(end == begin for (_, _, end), (_, begin, _) in pairwise(parts)), (
            "each begins where the last ended"
        )
        assert all(begin <= end for _, begin, end in parts)
    computed = sum(end - begin for intervals in times.values() for begin, end in intervals)
    message = sum(
        end - begin
        for _, _, parts in steps
        for phase, begin, end in parts
        if phase not in ("data", "metrics")
    )
    assert message == pytest.approx(computed, rel=0.01), "between layers there is next to nothing"
