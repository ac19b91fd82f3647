"""Utilization of devices: operations of training over their peak, and bytes of collectives per second.

    MFU = operations of forward and backward pass x samples/s / (devices x peak)

HFU also counts recomputed forward passes (Chowdhery et al., arXiv:2204.02311; Korthikanti et al., MLSys
2023). Operations come from an import that states them, from the model's graph (`models.operations`), or are 6
x parameters x tokens. The peak is the one that a site or an import states, or else that of
`declared.devices`. Runs without operations or peak have no MFU, but a reason. A share above 1 proves that
operations or peak are wrong, so it is an error.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis import conditions, tables
from analysis.cell_means import estimate_response_means, name_bounds
from analysis.level_words import level_texts
from analysis.records import cell_levels, count_steps, scale_to_dataset, successful, to_float
from analysis.strategies import cell_requirements
from common.errors import InputError
from common.notes import Note
from common.text import number_of
from declared.devices import choose_peak, find_device
from declared.factors import CUSTOM
from declared.mesh import is_mesh, mesh_of
from declared.models import find_graph
from declared.responses import RESPONSES, Response
from declared.user_models import is_user_model
from models.collectives import MESH_COLLECTIVES
from models.graph import BYTES, Graph, Operator
from models.messages import step_demands
from models.operations import Operations, parameter_operations, training_operations

MFU, HFU, DEVICE_FLOPS, COLLECTIVE_RATE = (
    RESPONSES[name] for name in ("mfu", "hfu", "flops_per_device", "collective_rate")
)
UTILIZATION = (MFU, HFU, DEVICE_FLOPS, COLLECTIVE_RATE)
# The levels of this custom factor say which share of the forward pass is computed again.
RECOMPUTATION_FACTOR = f"{CUSTOM}checkpointing"
RECOMPUTED_SHARES = {"off": 0.0, "on": 1.0}
INPUT_COLUMNS = (
    "model", "dataset", "device", "devices", "precision", "parameters", "sample_flops", "peak_flops_s",
    "throughput_samples_s", "throughput_tokens_s", "checkpointing", RECOMPUTATION_FACTOR,
)  # fmt: skip
ORIGIN_COLUMNS = [
    "sample_flops", "operations_source", "recomputed_flops", "peak_flops_s", "peak_device", "peak_precision",
    "peak_source", "without_mfu",
]  # fmt: skip
SHARES = (MFU.column, HFU.column)
FROM_GRAPH, FROM_PARAMETERS = "graph", "6 x parameters x tokens"
STATED = "stated"
COUNTED = "counted by PyTorch"  # Source of the operations of the user's own modules.
PEAK_HINT = "state peak_tflops of the site or of the import"
OPERATIONS_HINT = "import its tokens with its parameters, or state its sample_flops"
WITHOUT_SAMPLES = "the number of samples of a training is not recorded"
TITLE = "Utilization of devices with 95 % intervals"


@dataclass(frozen=True)
class Peak:
    """The peak of one device at a precision in FLOP/s, or NaN and the reason why it is unknown."""

    flops_s: float = math.nan
    device: str = ""
    precision: str = ""
    source: str = ""
    reason: str = ""


@functools.cache
def find_peak(reported: str, device: str, precision: str) -> Peak:
    """Return the peak of a run's devices from the table of devices.

    Args:
        reported: Names of the devices, as in runs.csv.
        device: Level of the factor device.
        precision: Level of the factor precision.
    """
    if device == "hybrid":
        return Peak(reason="processors and accelerators train together")
    if not reported:
        return Peak(reason="runs do not record their devices")
    entries = {find_device(name) for name in reported.split("; ")}
    if len(entries) > 1:
        return Peak(reason=f"{reported} train together")
    (entry,) = entries
    if entry is None:
        return Peak(reason=f"no peak is known for {reported}; {PEAK_HINT}")
    chosen = choose_peak(entry.peak_tflops, precision)
    if chosen is None:
        return Peak(reason=f"no peak of {entry.name} is known for precision {precision}; {PEAK_HINT}")
    return Peak(chosen[1], entry.name, chosen[0], f"{entry.source}, {entry.url}")


@functools.cache
def _graph_operations(model: str, dataset: str) -> Operations | None:
    """Return the operations of one sample of a registered model; None for other models."""
    graph = find_graph(model, dataset)
    return training_operations(graph) if graph else None


def find_operations(run: Mapping[str, Any]) -> tuple[str, Operations] | None:
    """Return the source and the number of operations of one sample; None if they are unknown."""
    if not math.isnan(stated := to_float(run.get("sample_flops"))):
        source = COUNTED if is_user_model(str(run["model"])) else STATED
        return source, Operations(stated / 3, 2 * stated / 3)
    if operations := _graph_operations(str(run["model"]), str(run["dataset"])):
        return FROM_GRAPH, operations
    tokens = to_float(run.get("throughput_tokens_s")) / to_float(run.get("throughput_samples_s"))
    parameters = to_float(run.get("parameters"))
    if math.isnan(parameters * tokens):
        return None
    return FROM_PARAMETERS, parameter_operations(parameters, tokens)


def model_flop_utilization(runs: pd.DataFrame) -> pd.DataFrame:
    """Return operations, peak and utilization of each run, with the index of `runs`.

    Columns: sample_flops (forward and backward pass), operations_source, recomputed_flops, peak_flops_s,
    peak_device, peak_precision, peak_source, device_flops_s, mfu, hfu (shares), collective_bytes_s_device,
    and without_mfu, the reason why a run has no MFU. `check_shares` refuses shares above 1.
    """
    inputs = runs[[name for name in INPUT_COLUMNS if name in runs]]
    rows = [_describe(run) for run in inputs.to_dict("records")]
    columns = pd.DataFrame(rows, index=runs.index, columns=ORIGIN_COLUMNS)
    numbers = ["sample_flops", "recomputed_flops", "peak_flops_s"]
    columns = columns.astype(dict.fromkeys(numbers, float))
    is_unexplained = runs["samples_per_epoch"].isna() & (columns["without_mfu"] == "")
    columns["without_mfu"] = columns["without_mfu"].mask(is_unexplained, WITHOUT_SAMPLES)
    samples_s = runs["samples_per_epoch"].astype(float) / runs["epoch_time_s"].astype(float)
    device_samples_s = samples_s / runs["n_devices"].astype(float)
    columns[DEVICE_FLOPS.column] = device_samples_s * columns["sample_flops"]
    columns[MFU.column] = columns[DEVICE_FLOPS.column] / columns["peak_flops_s"]
    executed = columns["sample_flops"] + columns["recomputed_flops"]
    columns[HFU.column] = device_samples_s * executed / columns["peak_flops_s"]
    return columns.assign(**{COLLECTIVE_RATE.column: _collective_rates(runs)})


def check_shares(runs: pd.DataFrame, utilization: pd.DataFrame) -> None:
    """Raise InputError if a run has a utilization above 100 %."""
    largest = utilization[list(SHARES)].max(axis=1)
    if not (largest > 1).any():
        return
    index = largest.idxmax()
    run, values = runs.loc[index], utilization.loc[index]
    problem = (
        f"{100 * largest[index]:.4g} % of the peak: {values['sample_flops']:.4g} operations a sample "
        f"({values['operations_source']}) against {values['peak_flops_s'] / 1e12:.4g} TFLOP/s of a device "
        f"({values['peak_precision']}, {values['peak_source']})"
    )
    hint = f"precision, device or operations are not those of the run; {PEAK_HINT}"
    raise InputError("above-peak", problem, file=run["run_id"], key="mfu", got=largest[index], hint=hint)


def _describe(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return operations and peak of one run, the ORIGIN_COLUMNS, with the reason if one is unknown."""
    reported = str(run["devices"]) if pd.notna(run["devices"]) else ""
    peak = find_peak(reported, run["device"], run["precision"])
    if not math.isnan(stated := to_float(run.get("peak_flops_s"))):
        peak = Peak(stated, "", run["precision"], STATED)
    unknown = f"no operations are known for {run['model']}; {OPERATIONS_HINT}"
    counted = find_operations(run)
    source, operations = counted or ("", Operations(math.nan, math.nan))
    return {
        "sample_flops": operations.model,
        "operations_source": source,
        "recomputed_flops": operations.forward * _recomputed_share(run),
        "peak_flops_s": peak.flops_s,
        "peak_device": peak.device,
        "peak_precision": peak.precision,
        "peak_source": peak.source,
        "without_mfu": peak.reason or ("" if counted else unknown),
    }


def _recomputed_share(run: Mapping[str, Any]) -> float:
    """Return the share of the forward pass that the backward pass computes again, NaN if unknown.

    Selective checkpointing recomputes no matrix products, so its share is 0.
    """
    if pd.notna(level := run.get(RECOMPUTATION_FACTOR)):
        return RECOMPUTED_SHARES.get(str(level), math.nan)
    if run.get("checkpointing") != "blocks" or (graph := find_graph(run["model"], run["dataset"])) is None:
        return 0.0
    return sum(operator.macs for block in graph.blocks.values() for operator in block) / graph.macs


def _collective_rates(runs: pd.DataFrame) -> pd.Series:
    """Return the bytes per second that a device sends in collectives; NaN on one device or if unknown."""
    counted = count_steps(runs)
    first = successful(runs).drop_duplicates("cell")  # Unsuccessful runs may lack the gradients' size.
    by_cell = {run["cell"]: _sent_bytes(run) for run in first.to_dict("records")}
    sent = runs["cell"].map(by_cell).astype(float) * scale_to_dataset(counted, "n_allreduces")
    rates = sent / runs["epoch_time_s"].astype(float)
    return rates.where(rates > 0)


def _sent_bytes(run: Mapping[str, Any]) -> float:
    """Return the bytes that the busiest device sends in an optimizer step by formula; NaN if unknown."""
    devices = int(run["n_devices"])
    if requirements := cell_requirements(run, {**run, "ranks": devices}):
        return sum(requirements[f"{kind}_bytes"] for kind in MESH_COLLECTIVES)
    size = to_float(run.get("gradient_bytes"))
    size = BYTES * to_float(run.get("parameters")) if math.isnan(size) else size
    if math.isnan(size) or not is_mesh(run["parallelism"]):
        return math.nan
    mesh = mesh_of(run["parallelism"], devices)
    if mesh.tensor * mesh.pipeline > 1:
        return math.nan
    weights = Operator("all", "dense", (), (1,), weights={"kernel": (round(size / BYTES),)})
    stated = {"precision": "fp32", "reduce_dtype": "default", "clip_norm": 0.0}  # The size has their types.
    levels = {**run, **stated, "sync_every": int(run["sync_every"]), "microbatches": 1}
    (demand,) = step_demands(Graph("", "", (weights,)), mesh, 1, levels)
    return sum(demand.sent.values())


def notes(utilization: pd.DataFrame, response: Response = MFU) -> list[str]:
    """Return the notes of a caption: operations, peak with its source, and runs without MFU."""
    if response == COLLECTIVE_RATE:
        return []
    sentences = [_operations_note(utilization)]
    if response.column in SHARES:
        sentences += [_peak_note(utilization), *_refusals(utilization)]
    return [note for note in sentences if note]


def _operations_note(utilization: pd.DataFrame) -> str:
    complete = utilization.dropna(subset="sample_flops")
    if complete.empty:
        return ""
    rules = {
        FROM_GRAPH: "2 for each multiply-accumulate of the model's graph",
        FROM_PARAMETERS: "6 × parameters × tokens, without the products of attention",
        STATED: "as stated",
        COUNTED: "matrix products, convolutions and attention, counted by PyTorch's FlopCounterMode",
    }
    sources = [rule for source, rule in rules.items() if (complete["operations_source"] == source).any()]
    counts = sorted(set(complete["sample_flops"]))
    texts = dict.fromkeys(f"{count:.3g}" for count in (counts[0], counts[-1]))
    text = f"Operations of a sample, forward and backward pass: {' to '.join(texts)} ({'; '.join(sources)})."
    return Note("operations", text, flops=counts, sources=sources)


def _peak_note(utilization: pd.DataFrame) -> str:
    complete = utilization.dropna(subset=MFU.column)
    peaks = complete[["peak_flops_s", "peak_device", "peak_precision", "peak_source"]].drop_duplicates()
    texts = [
        f"{flops / 1e12:.4g} TFLOP/s, "
        + (f"{device}, {precision} ({source.rpartition(', ')[0]})" if device else "as stated")
        for flops, device, precision, source in peaks.itertuples(index=False)
    ]
    text = f"Peak of a device, dense: {'; '.join(texts)}."
    return Note("peak", text, flops_s=list(peaks["peak_flops_s"])) if texts else ""


def _refusals(utilization: pd.DataFrame) -> list[str]:
    """Return a note for each reason why runs have no MFU."""
    counts = utilization["without_mfu"].value_counts()
    return [
        Note("without-mfu", f"{number_of(n, 'run')} without MFU: {reason}.", runs=n, reason=reason)
        for reason, n in counts.items()
        if reason
    ]


def measure(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the successful runs with the columns of `model_flop_utilization`.

    Raises:
        InputError: If a utilization is above 100 %.
    """
    ok = successful(runs)
    utilization = model_flop_utilization(ok)
    check_shares(ok, utilization)
    return ok.drop(columns=ORIGIN_COLUMNS, errors="ignore").join(utilization)


def summarize(measured: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell of `measure`: factors, n, utilization with intervals, operations and peak."""
    rows = cell_levels(measured).set_index("cell", drop=False)
    by_cell = measured.groupby("cell")
    rows["n"] = by_cell.size()
    for response in UTILIZATION:
        if measured[response.column].notna().any():
            means = estimate_response_means(measured, response).cell_statistics
            rows = rows.join(name_bounds(means, response.column))
    return rows.join(by_cell[ORIGIN_COLUMNS].first()).reset_index(drop=True)


def table(runs: pd.DataFrame) -> tables.Table:
    """Return the table of the utilization of a study's cells."""
    measured = measure(runs)
    data = summarize(measured)
    display = level_texts(data, runs)
    display["n"] = data["n"].map(str)
    columns = [
        response
        for response in UTILIZATION
        if response.column in data and (response != HFU or data["recomputed_flops"].any())
    ]
    for response in columns:
        display[response.label] = tables.interval_texts(data, response.column, response.unit_multiplier)
    return tables.Table(
        TITLE,
        data.dropna(axis="columns", how="all"),
        pd.DataFrame(display),
        [conditions.run_counts_note(runs), *notes(measured), conditions.measurement_note(runs)],
    )
