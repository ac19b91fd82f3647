"""Learning rates of a run, step by step."""

from pathlib import Path
from typing import Any

import pytest

from ranks.worker.context import Context
from ranks.worker.group import Group

PLAIN = {
    "learning_rate": 0.4,
    "lr_scaling": "none",
    "lr_warmup_epochs": 0,
    "lr_final_share": 0.0,
    "lr_step_epochs": 2,
    "lr_step_factor": 0.1,
    "sync_every": 1,
    "epochs": 4,
}


def rates(**levels: Any) -> list[float]:
    """Return the learning rates of all steps of a run with two batches per epoch."""
    spec = {"levels": {**PLAIN, **levels}, "steps": 2}
    context = Context(Path(), {"spec": spec}, 0, 0, Group.__new__(Group))
    return [context.learning_rate(update) for update in range(2 * spec["levels"]["epochs"])]


def test_cosine_falls_from_warm_up_to_its_final_share() -> None:
    """After two steps of warm-up, six steps of half a cosine, of which the seventh would have 0.04."""
    falling = [1, 0.9397, 0.775, 0.55, 0.325, 0.1603]
    expected = [0.2, 0.4, *(0.4 * share for share in falling)]
    assert rates(lr_schedule="cosine", lr_warmup_epochs=1, lr_final_share=0.1) == pytest.approx(
        expected, abs=1e-4
    )


def test_steps_count_epochs_of_the_run() -> None:
    assert rates(lr_schedule="step", lr_warmup_epochs=1) == pytest.approx([0.2, *[0.4] * 3, *[0.04] * 4])


def test_constant_rate_is_that_after_warm_up() -> None:
    assert rates(lr_schedule="constant", lr_warmup_epochs=1) == pytest.approx([0.2, *[0.4] * 7])
