"""A predictor that is fitted to numbers alone: the size of a model, and the time of a few optimizer steps."""

import math

import numpy as np
import pandas as pd

from common.errors import InputError
from common.text import alternatives
from declared.datasets import load_dataset
from declared.factors import factor_names
from declared.mesh import PLAIN
from declared.models import model_graph, model_names
from models.graph import BYTES
from prediction.message_times import CollectiveBenchmark, rate_text
from prediction.question import DEFAULT_FRAMEWORK, GIGABIT_BYTES, ScalingQuestion
from prediction.study_predictor import StudyPredictor

MAX_MISFIT = 2.0  # Largest factor between a given time and the law that is fitted to the given times.


def predictor_of_numbers(
    question: ScalingQuestion, benchmark: CollectiveBenchmark | None
) -> tuple[StudyPredictor, pd.DataFrame]:
    """Return the predictor that is fitted to the numbers of a question, and the one case that they describe.

    Args:
        question: A question with measured steps.
        benchmark: The collective benchmark of the study that the question names, which times messages; None:
            the question names no study.

    Raises:
        InputError: If the model is unknown, the framework was not benchmarked, or the steps contradict each
            other.
    """
    framework, device = question.framework or DEFAULT_FRAMEWORK, "site"
    if benchmark is not None:
        benchmarked = benchmark.framework_devices
        names = sorted({name for name, _ in benchmarked})
        framework = question.framework or (names[0] if len(names) == 1 else DEFAULT_FRAMEWORK)
        if framework not in names:
            problem = f"'{framework}' has no collective benchmark"
            raise InputError(
                "unknown-name", problem, file="--framework", got=framework, expected=names or "none"
            )
        device = next(device for name, device in benchmarked if name == framework)
    size, model, dataset = _requested_size(question)
    inside_rate = GIGABIT_BYTES * (question.inside_rate_gbit_s or math.nan)
    levels = {
        "framework": framework, "device": device, "baseline": framework, "model": model, "dataset": dataset,
        "lbann_layout": PLAIN, "batch_size": question.batch_size, "sync_every": question.sync_every,
        "samples": question.samples, "batch_scope": "local", "training_loop": "custom", "uses_mesh": False,
        "local_batch": float(question.batch_size), "gradient_bytes": size, "n": 1, "sd": np.nan,
        "treatment": "", "inside_rate": inside_rate,
    }  # fmt: skip
    steps = pd.DataFrame(question.measured_steps, columns=["nodes", "per_node", "optimizer_step_s"])
    n_devices = steps["nodes"] * steps["per_node"]
    n_allreduces = question.samples / (question.batch_size * question.sync_every) / n_devices
    cells = pd.DataFrame([levels] * len(steps)).assign(
        nodes=steps["nodes"], n_devices=n_devices, ranks=n_devices,
        rate=question.measured_rate_bytes_s, batches_per_epoch=n_allreduces * question.sync_every,
        n_allreduces=n_allreduces, epoch_time_s=steps["optimizer_step_s"] * n_allreduces,
    )  # fmt: skip
    cells = cells.assign(**{name: None for name in factor_names() if name not in cells})
    predictor = StudyPredictor(cells, benchmark or CollectiveBenchmark())
    _check_contradiction(question, predictor.predict(cells).seconds / n_allreduces.to_numpy())
    return predictor, cells.iloc[[-1]]


def _check_contradiction(question: ScalingQuestion, predicted_s: np.ndarray) -> None:
    """Raise InputError if the law misses a given time, to which it was fitted, by a factor of MAX_MISFIT."""
    for (nodes, devices, step_s), law_s in zip(question.measured_steps, predicted_s.tolist(), strict=True):
        if law_s > MAX_MISFIT * step_s or step_s > MAX_MISFIT * law_s:
            scale = f"{nodes}x{devices}"
            problem = f"{scale}={step_s:g} contradicts the other numbers, which predict {law_s:.2g} s"
            hint = f"correct it, or the --rate of its links, {rate_text(question.measured_rate_bytes_s)}"
            raise InputError("contradicting-places", problem, file="--measured", got=scale, hint=hint)


def _requested_size(question: ScalingQuestion) -> tuple[float, str, str]:
    """Return the gradient bytes of the model in question, and the answer's names of model and data set."""
    model, dataset = question.model, question.dataset
    if model is None:
        size = question.gradient_bytes or BYTES * float(question.parameters or 0.0)
        return size, f"{size / 1e6:g} MB of gradients", "any"
    if model not in (models := model_names()):
        facts = {"file": "--model", "got": model, **alternatives(model, models)}
        raise InputError("unknown-name", f"'{model}' is unknown", **facts)
    load_dataset(dataset, "--dataset")
    try:
        return float(model_graph(model, dataset).gradient_bytes), model, dataset
    except ValueError as error:
        problem, hint = f"{model} for {dataset}: {error}", "name another --dataset, or model"
        raise InputError("conflicting-keys", problem, file="--model", got=model, hint=hint) from None
