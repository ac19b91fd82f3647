"""A model is searched with its parts timed on this machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from declared.site import Site
from models.messages import n_optimizer_states
from models.named import graph
from models.soap import divide
from strategies import find, parts, starts
from strategies.question import build_question
from strategies.search import build_problem, step_seconds
from support.installed_site import busy_site

MODEL, DEVICES = ("lenet-5", (28, 28, 1), 10), 2


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return a site of this machine that other programs may also use."""
    monkeypatch.setenv("RINGSIDE_LOCK", str(tmp_path / "machine.lock"))
    monkeypatch.setattr("plan.timings.BUDGET_S", {"parts": 1.0, "messages": 1.0})
    return busy_site(time_limit_s=400)


def test_parts_are_timed_once_and_searched(
    real, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real("pytorch")
    built = graph(*MODEL)
    folder = tmp_path / "timed"
    timed = parts.time_parts(built, 8, DEVICES, 4, site, folder)
    space = divide(built, 8)
    configurations = {
        (layer.name, degrees) for layer in space.layers for degrees in layer.configurations(DEVICES)
    }
    assert {(layer, degrees) for layer, degrees, *_ in timed.costs} == configurations
    costs = {(layer, degrees): (forward, backward) for layer, degrees, forward, backward, _ in timed.costs}
    assert min(costs["conv2", (1, 1, 1, 1)]) > max(costs["flatten1", (1, 1, 1, 1)])
    records = list(folder.rglob("timing.json"))
    assert parts.time_parts(built, 8, DEVICES, 4, site, folder) == timed
    assert [*folder.rglob("timing.json")] == records, "a kept timing is not repeated"

    monkeypatch.setattr("strategies.question.time_parts", lambda *arguments: timed)
    question = build_question(model="lenet-5", image="28x28x1", batch_size=8, devices=1, measure=True)
    assert question.timed_on == timed.device
    posed = build_problem(question.job())
    unsplit = [seconds for _, degrees, *seconds in timed.costs if degrees == (1, 1, 1, 1)]
    assert step_seconds(posed, starts.data_parallel(posed)) == pytest.approx(sum(map(sum, unsplit)), abs=1e-9)
    answer = {"sent_activation_bytes": 0, "gradient_bytes": 0, "memory_bytes": 1, "weight_bytes": 1}
    start = {**answer, "method": None, "start": "data", "seconds": 1.0}
    searched = {**start, "method": "annealing", "restarts": [1.0], "ended": {"accepted": 1}, "wall_s": 1.0}
    notes = find.table(question, [start, searched]).notes
    assert "parts-measured" in [note.code for note in notes] and timed.device in str(notes[0])


def test_what_cannot_be_timed_is_refused(site: Site) -> None:
    built = graph(*MODEL)
    with pytest.raises(InputError) as refused:
        parts.time_parts(built, 8, DEVICES, 7, site)
    assert (refused.value.code, refused.value.file, refused.value.got) == (
        "not-one-of",
        "--optimizer-numbers",
        7,
    )
    for count, levels in parts.OPTIMIZERS.items():
        assert 2 + n_optimizer_states(levels) == count
    with pytest.raises(InputError) as refused:
        parts.time_parts(built, 8, DEVICES, 4, replace(site, launcher="slurm"))
    assert (refused.value.code, refused.value.file) == ("not-possible-here", "--measure")
    with pytest.raises(InputError) as refused:
        build_question(
            model="lenet-5", batch_size=8, devices=2, topology="h100", precision="amp", measure=True
        )
    assert (refused.value.code, refused.value.file) == ("conflicting-keys", "--measure")
