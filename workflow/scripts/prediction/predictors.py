"""What a scaling projection is fitted to: the cells of a measured study, or cells made from numbers alone."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.records import read_timing_runs, with_batch_numbers
from common.errors import InputError
from common.tables import stored_file
from common.text import alternatives
from declared.datasets import load_dataset
from declared.factors import factor_names
from declared.mesh import PLAIN
from declared.models import model_graph, model_names
from models.graph import BYTES
from prediction.inputs import can_add_nodes, exclusion_note, is_heterogeneous, measured_cells, uses_mesh
from prediction.message_times import CollectiveBenchmark, rate_text, read_benchmark
from prediction.question import DEFAULT_FRAMEWORK, GIGABIT_BYTES, ScalingQuestion
from prediction.study import StudyPredictor

MAX_MISFIT = 2.0  # Largest factor between a given time and the law that is fitted to the given times.


@dataclass(frozen=True)
class MeasuredStudy:
    """A study's runs, and the predictor that is fitted to its cells and collective benchmark."""

    runs: pd.DataFrame
    predictor: StudyPredictor

    @property
    def exclusion_note(self) -> str:
        """A note on the cells that the predictor does not use, "" if there are none."""
        is_used_mesh = uses_mesh(self.runs) & self.runs["cell"].isin(self.predictor.cells["cell"])
        return exclusion_note(self.runs[~is_used_mesh])


def load_measured_study(folder: Path) -> MeasuredStudy:
    """Read the study that has its records, runs.csv and network.csv, in `folder`."""
    network = folder / "network.csv"
    return load_records(folder / "runs.csv", network if stored_file(network).exists() else None)


def load_records(runs_csv: Path, network_csv: Path | None) -> MeasuredStudy:
    """Read runs and benchmarks, and return the study for scaling projections.

    This differs from the validation (prediction.held_out) in three ways. Meshes are used only if nodes can be
    added to them. The benchmark is smooth (`CollectiveBenchmark.smooth`), because curves pass through
    measured and unmeasured numbers of nodes. And bands are limited by ideal scaling
    (`curves.predict_curves`): the validation prints how many measurements are in the wider bands without this
    limit.
    """
    runs = with_batch_numbers(read_timing_runs(runs_csv))
    cells = measured_cells(runs[~is_heterogeneous(runs)], include_meshes=True)
    cells = cells[~cells["uses_mesh"] | can_add_nodes(cells)].reset_index(drop=True)
    return MeasuredStudy(runs, StudyPredictor(cells, read_benchmark(network_csv, cells).smooth()))


def predictor_of_numbers(
    question: ScalingQuestion, study: MeasuredStudy | None
) -> tuple[StudyPredictor, pd.DataFrame]:
    """Return the predictor that is fitted to the numbers of a question, and the one case that they describe.

    Messages take the time of the study's collective benchmark, if a study is given.

    Raises:
        InputError: If the model is unknown, the framework was not benchmarked, or the scales contradict each
            other.
    """
    benchmark = study.predictor.benchmark if study else CollectiveBenchmark()
    framework, device = question.framework or DEFAULT_FRAMEWORK, "site"
    if study:
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
    inside_rate = math.nan if question.inside_rate is None else GIGABIT_BYTES * question.inside_rate
    levels = {
        "framework": framework, "device": device, "baseline": framework, "model": model, "dataset": dataset,
        "lbann_layout": PLAIN, "batch_size": question.batch_size, "sync_every": question.sync_every,
        "samples": question.samples, "batch_scope": "local", "training_loop": "custom", "uses_mesh": False,
        "local_batch": float(question.batch_size), "gradient_bytes": size, "n": 1, "sd": np.nan,
        "treatment": "", "inside_rate": inside_rate,
    }  # fmt: skip
    scales = pd.DataFrame(question.scales, columns=["nodes", "per_node", "optimizer_step_s"])
    n_devices = scales["nodes"] * scales["per_node"]
    n_allreduces = question.samples / (question.batch_size * question.sync_every) / n_devices
    cells = pd.DataFrame([levels] * len(scales)).assign(
        nodes=scales["nodes"], n_devices=n_devices, ranks=n_devices,
        rate=GIGABIT_BYTES * question.rate[0], batches_per_epoch=n_allreduces * question.sync_every,
        n_allreduces=n_allreduces, epoch_time_s=scales["optimizer_step_s"] * n_allreduces,
    )  # fmt: skip
    cells = cells.assign(**{name: None for name in factor_names() if name not in cells})
    predictor = StudyPredictor(cells, benchmark)
    _check_scales(question, predictor.predict(cells).seconds / n_allreduces.to_numpy())
    return predictor, cells.iloc[[-1]]


def _check_scales(question: ScalingQuestion, predicted_s: np.ndarray) -> None:
    """Raise InputError if the law misses a given time, to which it was fitted, by a factor of MAX_MISFIT."""
    for (nodes, devices, step_s), law_s in zip(question.scales, predicted_s.tolist(), strict=True):
        if law_s > MAX_MISFIT * step_s or step_s > MAX_MISFIT * law_s:
            scale, rate_bytes_s = f"{nodes}x{devices}", GIGABIT_BYTES * question.rate[0]
            problem = f"{scale}={step_s:g} contradicts the other numbers, which predict {law_s:.2g} s"
            hint = f"correct it, or the --rate of its links, {rate_text(rate_bytes_s)}"
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
