"""Read trainer_state.json of Hugging Face's Trainer, or only its ``log_history``.

The Trainer logs no step times. The state that it saves at the end (``trainer.save_state()``) has the time of
the whole training, ``train_runtime``. The result is one entry with the mean step time, including warm-up. For
a resumed training, the mean is too small: ``train_runtime`` begins at the resumption, but the number of steps
counts all.
"""

import json
from collections.abc import Iterable
from typing import Any

from training_logs.log import Log, LogError, Step, drop_unknown, natural_number, positive

MARK = '"log_history"'
MAX_ROUNDING = 0.02  # largest relative rounding error of train_steps_per_second, which has three decimals
_EXPECTED = "trainer_state.json that trainer.save_state() writes after the training"


def read(lines: Iterable[str]) -> Log:
    """Return one entry with the mean step time, and facts.

    Raises:
        LogError: If the text is not JSON, or lacks the time of the training or the number of steps.
    """
    try:
        state = json.loads("".join(lines))
    except json.JSONDecodeError as error:
        raise LogError(error.lineno, f"is not valid JSON: {error.msg}", _EXPECTED) from None
    except (RecursionError, ValueError):
        raise LogError(0, "is not JSON that can be read", _EXPECTED) from None
    history = state.get("log_history") if isinstance(state, dict) else state
    if not isinstance(history, list):
        raise LogError(0, "has no log_history", _EXPECTED)
    entries = [entry for entry in history if isinstance(entry, dict)]
    summary = next((entry for entry in reversed(entries) if positive(entry.get("train_runtime"))), None)
    if summary is None:
        raise LogError(0, "has no train_runtime, the time of the training", _EXPECTED)
    total = state if isinstance(state, dict) else {}
    runtime, rate = float(summary["train_runtime"]), positive(summary.get("train_steps_per_second"))
    n_steps = natural_number(summary.get("step")) or natural_number(total.get("global_step"))
    if n_steps is None and rate is not None and 0.0005 / rate <= MAX_ROUNDING:
        n_steps = max(1, round(min(rate * runtime, 1e15)))
    if n_steps is None:
        raise LogError(0, "has no number of steps", _EXPECTED)
    sample_rate, token_rate = (
        positive(summary.get(name)) for name in ("train_samples_per_second", "train_tokens_per_second")
    )
    step = Step(
        n_steps,
        runtime / n_steps,
        samples=sample_rate * runtime / n_steps if sample_rate else None,
        tokens=token_rate * runtime / n_steps if token_rate else None,
        loss=_loss(summary, entries),
        n_steps=n_steps,
    )
    facts: dict[str, Any] = {
        "framework": "transformers",
        "local_batch": natural_number(total.get("train_batch_size")),
        "run_seconds": runtime,
    }
    return Log((step,), drop_unknown(facts))


def _loss(summary: dict[str, Any], entries: list[dict[str, Any]]) -> float | None:
    losses = [entry["loss"] for entry in entries if isinstance(entry.get("loss"), (int, float))]
    loss = losses[-1] if losses else summary.get("train_loss")
    return float(loss) if isinstance(loss, (int, float)) else None
