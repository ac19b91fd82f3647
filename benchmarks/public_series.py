"""Compare predictions with public scaling series: `make bench-prediction SERIES=FOLDER`.

A series is one program with one model and device on at least three numbers of devices. The largest number is
left out of every fit and predicted; then the two largest are, if at least two numbers with whole nodes, on
several nodes, remain. The program prints the errors of each method, by source and overall; the number of
measurements inside the law's 90 % band; and the law's errors with constants chosen on all other sources.

FOLDER has CSV files of steps in the form in which DLPerf, NVIDIA's DeepLearningExamples and llm-foundry were
collected (`dataset`, `seconds`, ...), runs of MLPerf Training (`mlperf_runs.csv`), or cells with the law's
columns (`series`, `optimizer_step_s`, ...). If it has a file series.csv, the series in it are used. Without
SERIES, the series of a test are used (tests/unit/prediction/public_series).
"""

import itertools
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd

from common.errors import InputError
from common.files import CHECKOUT
from common.options import run_program
from prediction import compared_models, law, worth

FIXTURE = CHECKOUT / "tests" / "unit" / "prediction" / "public_series"
LAW = "law"
GIGABYTE = 1e9
GIGABIT = 1e9 / 8
LEFT_OUT = {"largest": 1, "two largest": 2}  # counts of devices
MIN_PLACES = 3
NEAR = 0.05

# Nominal rates by product, one direction: of a device inside a node, and of a node outwards where the source
# names none. The first name that occurs in the device's is used.
RATES = {
    "gb200": (900 * GIGABYTE, 4 * 400 * GIGABIT),
    "gb300": (900 * GIGABYTE, 4 * 800 * GIGABIT),
    "b200": (900 * GIGABYTE, 8 * 400 * GIGABIT),
    "b300": (900 * GIGABYTE, 8 * 800 * GIGABIT),
    "h200": (450 * GIGABYTE, 8 * 400 * GIGABIT),
    "h100": (450 * GIGABYTE, 8 * 400 * GIGABIT),
    "a100-pci": (25 * GIGABYTE, 200 * GIGABIT),
    "a100": (300 * GIGABYTE, 8 * 200 * GIGABIT),
    "v100": (150 * GIGABYTE, 100 * GIGABIT),
    "mi300x": (448 * GIGABYTE, 8 * 400 * GIGABIT),
}
UNKNOWN_RATES = (25 * GIGABYTE, 200 * GIGABIT)

# MLPerf Training: parameters that are trained, with gradients of 16 bits.
PARAMETERS = {
    "resnet": 25.6e6, "bert": 336e6, "retinanet": 38e6, "ssd": 38e6, "stable_diffusion": 865e6,
    "llama2_70b_lora": 45e6, "llama31_8b": 8e9, "llama31_405b": 405e9, "flux1": 12e9, "gpt3": 175e9,
    "unet3d": 19e6, "dlrm_dcnv2": 200e6,
}  # fmt: skip
MESHES = {
    "llama31_405b": (16, 8),
    "gpt3": (4, 4),
}  # tensor (and context) and pipeline parallelism of submissions
TOKENS = {"gpt3": 2048}  # of a sequence, where samples are counted in tokens
MAX_STEPS = 20_000  # samples of an epoch below this are steps in the source
BLOCK_STEPS = {"stable_diffusion": 100}  # optimizer steps between two log lines
THROUGHPUT_PER_DEVICE = ("retinanet", "ssd", "gnn", "rgat", "gpt3")  # where it is no number of samples
SHORT_NAMES = {
    "NVIDIA": "nv", "MangoBoost": "mango", "stable_diffusion": "sd", "llama2_70b_lora": "llama70b-lora",
    "llama31_405b": "llama405b", "llama31_8b": "llama8b", "flux1": "flux",
}  # fmt: skip
DEVICES = {"A100-PCIE": "a100pcie", "A100": "a100", "H200": "h200", "H100": "h100", "MI300X": "mi300x"}


def nominal_rates(device: str, interconnect: str = "") -> tuple[float, float]:
    """Return the rates of a device inside a node, and of a node outwards, in bytes/s."""
    inside, outside = next((rates for name, rates in RATES.items() if name in device.lower()), UNKNOWN_RATES)
    named = re.search(r"(\d+)x \w+ (\d+) Gbit/s", interconnect)
    return inside, int(named[1]) * int(named[2]) * GIGABIT if named else outside


def read_steps(path: Path) -> pd.DataFrame:
    """Return the runs of a CSV of steps."""
    rows = pd.read_csv(path)
    pairs = zip(rows["device"], rows["interconnect"].fillna(""), strict=True)
    inside, outside = zip(*(nominal_rates(*pair) for pair in pairs), strict=True)
    is_sharded = rows["framework"].str.contains("fsdp", na=False)
    return pd.DataFrame(
        {
            "series": rows["dataset"], "source": rows["source"].str.partition(":")[0],
            "gradient_bytes": rows["gradient_bytes"], "nodes": rows["nodes"],
            "devices_per_node": rows["devices_per_node"], "local_batch": rows["local_batch"],
            "n_passes": rows["sync_every"], "tensor": rows["tensor_parallel"],
            "pipeline": rows["pipeline"],
            "sharded": is_sharded, "rate": outside, "inside_rate": inside, "seconds": rows["seconds"],
        }
    )  # fmt: skip


def read_mlperf(path: Path) -> pd.DataFrame:
    """Return the runs of MLPerf Training, those of the newest round where several have a series."""
    rows = pd.read_csv(path).drop_duplicates("started")
    rows = rows[rows["device"].notna() & (rows["devices"] > 0)]
    benchmark = rows["benchmark"]
    samples = rows["global_batch"] * benchmark.map(TOKENS).fillna(1.0)
    steps = np.where(
        rows["train_samples"] < MAX_STEPS, rows["train_samples"], rows["train_samples"] / samples
    )
    by_rate = (rows["global_batch"] / rows["throughput_median"]).where(~benchmark.isin(THROUGHPUT_PER_DEVICE))
    seconds = rows["step_median_s"].fillna(by_rate)
    seconds = seconds.fillna(rows["block_median_s"] / benchmark.map(BLOCK_STEPS))
    seconds = seconds.where(benchmark != "gpt3").fillna(rows["epoch_median_s"] / steps)
    accumulation = rows["accumulation"].where(rows["accumulation"] > 0, 1.0).fillna(1.0)
    device = rows["device"].map(_short_device)
    names = [
        f"mlperf-{SHORT_NAMES.get(org, org.lower())}-{kind}-{SHORT_NAMES.get(name, name)}"
        for org, kind, name in zip(rows["org"], device, benchmark, strict=True)
    ]
    meshes = benchmark.map(lambda name: MESHES.get(name, (1, 1)))
    inside, outside = zip(*map(nominal_rates, rows["device"]), strict=True)
    runs = pd.DataFrame(
        {
            "series": names, "source": "mlcommons/training_results",
            "gradient_bytes": 2 * benchmark.map(PARAMETERS), "nodes": rows["nodes"],
            "devices_per_node": rows["devices_per_node"],
            "local_batch": rows["global_batch"] / accumulation / rows["devices"],
            "n_passes": accumulation,
            "tensor": meshes.str[0], "pipeline": meshes.str[1], "sharded": False, "rate": outside,
            "inside_rate": inside, "seconds": seconds, "round": rows["round"],
        }
    )  # fmt: skip
    places = runs.groupby(["series", "round", "devices_per_node"])["nodes"].transform("nunique")
    runs = runs[(places >= MIN_PLACES) & runs["seconds"].notna()]
    newest = runs.groupby("series")["round"].transform("max")
    return runs[runs["round"] == newest].drop(columns="round")


def _short_device(name: str) -> str:
    blackwell = re.search(r"\((G?B[23]00)", name)
    if blackwell:
        return blackwell[1].lower()
    return next((short for part, short in DEVICES.items() if part in name), re.sub(r"\W+", "-", name.lower()))


def read_cells(folder: Path) -> pd.DataFrame:
    """Return the cells of all series of a folder, in the law's columns, with `series` and `source`.

    Raises:
        InputError: If the folder has no series, or none of those that its series.csv names.
    """
    tables: list[pd.DataFrame] = []
    for path in sorted(folder.glob("*.csv")):
        header = pd.read_csv(path, nrows=0).columns
        if path.name == "mlperf_runs.csv":
            tables.append(_mean_cells(read_mlperf(path)))
        elif {"dataset", "seconds"} <= set(header):
            tables.append(_mean_cells(read_steps(path)))
        elif {"series", "optimizer_step_s", "rate"} <= set(header):
            tables.append(pd.read_csv(path))
    if not tables:
        raise InputError("missing-file", "has no CSV file of scaling series", file=str(folder))
    cells = pd.concat(tables, ignore_index=True)
    listed = folder / "series.csv"
    if listed.exists() and "series" in pd.read_csv(listed, nrows=0):
        names = list(dict.fromkeys(pd.read_csv(listed)["series"]))
        missing = sorted(set(names) - set(cells["series"]))
        if len(missing) == len(names):
            raise InputError("missing-key", "names no series of the other files", file=str(listed))
        if missing:
            print(f"left out, because no file has them: {', '.join(missing)}")
        cells = cells[cells["series"].isin(names)]
    return cells


def _mean_cells(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of the runs of each cell."""
    keys = [name for name in runs if name != "seconds"]
    steps = runs.groupby(keys, dropna=False, sort=False)["seconds"]
    cells = pd.DataFrame(
        {"optimizer_step_s": steps.mean(), "n": steps.size(), "sd": steps.std()}
    ).reset_index()
    return cells.assign(n_devices=cells["nodes"] * cells["devices_per_node"])


@dataclass(frozen=True)
class Split:
    """One series without its largest counts of devices, and its cells on the largest."""

    series: str
    source: str
    left_out: str
    measured: pd.DataFrame
    test: pd.DataFrame


def make_splits(cells: pd.DataFrame) -> Iterator[Split]:
    """Yield the splits of all series."""
    for name, series_cells in cells.groupby("series", sort=False):
        counts = sorted(set(series_cells["n_devices"]))
        for left_out, number in LEFT_OUT.items():
            if len(counts) - number < 2:
                continue
            measured, test = (
                series_cells[series_cells["n_devices"] < counts[-number]],
                series_cells[series_cells["n_devices"] == counts[-1]],
            )
            places = measured.loc[
                measured["devices_per_node"].isin(test["devices_per_node"]), "n_devices"
            ].nunique()
            if number == 1 or places >= 2:
                yield Split(str(name), series_cells["source"].iloc[0], left_out, measured, test)


def predict_by_law(measured: pd.DataFrame, test: pd.DataFrame) -> law.Array:
    """Return the law's steps alone."""
    return law.predict_optimizer_steps(measured, test).seconds


METHODS: dict[str, compared_models.Model] = {LAW: predict_by_law, **compared_models.MODELS}


def predict_splits(
    splits: Iterator[Split] | list[Split], methods: dict[str, compared_models.Model]
) -> pd.DataFrame:
    """Return a row for each cell and method: `error`, and for the law whether its band holds the truth."""
    rows: list[dict[str, object]] = []
    for split in splits:
        steps = law.predict_optimizer_steps(split.measured, split.test)
        truth = split.test["optimizer_step_s"].to_numpy(float)
        is_in_band = (steps.low <= truth) & (truth <= steps.high)
        for name, method in methods.items():
            seconds = steps.seconds if name == LAW else method(split.measured, split.test)
            rows += [
                {
                    "series": split.series, "source": split.source, "left_out": split.left_out,
                    "method": name, "error": predicted / true - 1, "held": inside,
                    "batch": batch, "half_width": np.expm1(law.Z * sd),
                }
                for predicted, true, inside, batch, sd in zip(
                    seconds, truth, is_in_band, split.test["local_batch"], steps.log_sd, strict=True
                )
            ]  # fmt: skip
    return pd.DataFrame(rows)


def describe_errors(rows: pd.DataFrame, with_band: bool) -> str:
    """Return count, median, mean, the share within 5 % and the band's coverage as text."""
    errors = rows["error"].dropna().abs()
    if errors.empty:
        return f"{0:5d} of {len(rows):3d}"
    text = (
        f"{len(errors):5d} of {len(rows):3d} {100 * errors.median():8.1f} {100 * errors.mean():8.1f} "
        f"{100 * (errors <= NEAR).mean():10.0f}"
    )
    return text + (f" {100 * rows.loc[errors.index, 'held'].mean():8.0f}" if with_band else "")


def print_errors(rows: pd.DataFrame) -> None:
    """Print the errors of each method by source, and over all sources."""
    print(f"{'':46}    cells   median     mean  within 5 %  in band  (errors of a step, %)")
    for left_out, by_split in rows.groupby("left_out", sort=False):
        for method, method_rows in by_split.groupby("method", sort=False):
            groups = (
                [*method_rows.groupby("source", sort=False), ("all", method_rows)]
                if method == LAW
                else [("all", method_rows)]
            )
            for source, group in groups:
                print(f"{left_out:12} {method:11} {source:21} {describe_errors(group, method == LAW)}")


# MODEL_ERROR of the law and priors of its terms, among which sources other than the predicted one choose.
MODEL_ERRORS = (0.005, 0.01, 0.02)
LINK_PRIORS = tuple(law.CoefficientPrior(mean, 0.5) for mean in (0.3, 0.5, 0.8))
WAIT_PRIORS = tuple(law.CoefficientPrior(0.0075, sd) for sd in (0.02, 0.04, 0.08))
LINK_TERMS, WAIT_TERMS = (law.FLAT, law.HIERARCHICAL, law.TREE), (law.WAITING, law.WAITING_OF_REPLICAS)
WORST_SCORED = 0.20  # larger errors count as this


def choose_constants(splits: list[Split]) -> None:
    """Print the errors where each source is predicted with constants that the other sources choose."""
    predicted = []
    for error, link, wait in itertools.product(MODEL_ERRORS, LINK_PRIORS, WAIT_PRIORS):
        priors = law.PRIORS | dict.fromkeys(LINK_TERMS, link) | dict.fromkeys(WAIT_TERMS, wait)
        values = {"MODEL_ERROR": error, "links": link, "waiting": wait}
        with mock.patch.multiple(law, MODEL_ERROR=error, PRIORS=priors):
            predicted.append((values, predict_splits(splits, {LAW: predict_by_law})))
    parts = []
    for source in dict.fromkeys(split.source for split in splits):
        values, rows = min(predicted, key=lambda choice: _score(choice[1][choice[1]["source"] != source]))
        parts.append(rows[rows["source"] == source])
        print(f"chosen without {source}: {values}")
    rows = pd.concat(parts)
    for left_out, group in rows.groupby("left_out", sort=False):
        print(f"{left_out:12} {'one source out':33} {describe_errors(group, True)}")


def _score(rows: pd.DataFrame) -> float:
    """Return the mean error, large ones cut, and what the band misses of its probability."""
    errors = rows["error"].dropna().abs()
    coverage = rows.loc[errors.index, "held"].mean()
    return float(errors.clip(upper=WORST_SCORED).mean() + 0.1 * abs(coverage - law.BAND_PROBABILITY))


def predict_worth(cells: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return gains of doublings and widths of bands, predicted from fewer nodes of a series, and true ones.

    Gains: `gain`, its band (`gain_low`, `gain_high`) and the measured one (`true`), from all smaller counts
    and `from_one` node. Widths: the half width of the band on the largest count after one more count is
    measured, `expected` before and `true` after it.
    """
    gains, widths = [], []
    for name, series in cells.groupby("series"):
        on_nodes = series[series["devices_per_node"] == series["devices_per_node"].max()].sort_values("nodes")
        for _, members in on_nodes.groupby([on_nodes["local_batch"].round(law.ROUNDING_DIGITS), "n_passes"]):
            members = members.drop_duplicates("nodes")
            steps = members.set_index("nodes")["optimizer_step_s"]
            speedups = steps.index * steps.iloc[0] / steps
            for nodes in [count for count in steps.index if 2 * count in steps.index]:
                ends = members[members["nodes"].isin([steps.index[0], nodes, 2 * nodes])]
                for from_one in (False, True):
                    seen = members[members["nodes"] < 2 * nodes][: 1 if from_one else None]
                    knee = worth.find_knee(_scaling(seen, ends), -math.inf)
                    # No prediction is better than ideal; a measurement can be, by chance.
                    true = min((speedups[2 * nodes] - speedups[nodes]) / nodes, 1.0)
                    predicted = knee.gain.value, knee.gain.low, knee.gain.high
                    if nodes == seen["nodes"].iloc[-1]:
                        gains.append((name, from_one, nodes, *predicted, true))
            for count in range(1, len(members) - 1):
                scaling, target = _scaling(members[:count], members[count:]), float(members["nodes"].iloc[-1])
                extended = _scaling(members[: count + 1], members[count + 1 :])
                expected = worth.expected_width(scaling, [members["nodes"].iloc[count]], target)
                widths.append((name, expected, worth.expected_width(extended, (), target)))
    columns = ["series", "from_one", "nodes", "gain", "gain_low", "gain_high", "true"]
    return pd.DataFrame(gains, columns=columns), pd.DataFrame(widths, columns=["series", "expected", "true"])


def _scaling(measured: pd.DataFrame, cells: pd.DataFrame) -> worth.Scaling:
    """Return predictions of cells, whose epochs have as many samples in all."""
    nodes = cells["nodes"].to_numpy(float)
    _, fitted, prepared = next(law.split_by_devices_per_node(measured, cells))
    return worth.Scaling(nodes, fitted.predict(prepared).seconds / nodes, 1 / nodes, fitted, prepared)


def describe_share_answers(gains: pd.DataFrame) -> str:
    """Return as text how often gains are on the right side of the share, and what a constant reaches.

    A constant answer or gain needs no prediction, so it is what the law has to beat.
    """
    truth = gains["true"]
    is_small = truth < worth.MIN_DOUBLING_GAIN
    is_called_small = gains["gain"] < worth.MIN_DOUBLING_GAIN
    error = 100 * (truth - truth.median()).abs()
    return (
        f"{100 * (is_small == is_called_small).mean():.0f} % on the right side of the share "
        f"(always above: {100 * (~is_small).mean():.0f} %); of {is_small.sum()} below it "
        f"{(is_small & is_called_small).sum()} are named, wrongly {(~is_small & is_called_small).sum()}; "
        f"errors of the median gain {error.median():.1f} and {error.mean():.1f}"
    )


def print_worth(cells: pd.DataFrame) -> None:
    """Print how well gains of doublings, and widths of bands after a measurement, are predicted."""
    gains, widths = predict_worth(cells)
    for from_one, rows in gains.groupby("from_one"):
        error = 100 * (rows["gain"] - rows["true"]).abs()
        is_in_band = rows["true"].between(rows["gain_low"], rows["gain_high"])
        print(
            f"gains of doublings, from {'one node' if from_one else 'all smaller counts'}: {len(rows)} of "
            f"{rows['series'].nunique()} series, errors {error.median():.1f} (median) and {error.mean():.1f} "
            f"points (mean), {100 * is_in_band.mean():.0f} % in the band, {describe_share_answers(rows)}"
        )
    ratio = (widths["expected"] / widths["true"]).quantile([0.1, 0.5, 0.9]).round(2).tolist()
    print(f"widths after the next count, expected over true: {len(widths)}, quantiles 10, 50, 90 %: {ratio}")


def main(*, series: Path = FIXTURE, choose: bool = False, worth_it: bool = False) -> None:
    """Print errors of predictions of public scaling series.

    Args:
        series: folder of the series' CSV files
        choose: choose the law's constants on all sources but one, too (1 min)
        worth_it: print instead how well the gains of doublings are predicted
    """
    cells = read_cells(series)
    if worth_it:
        print_worth(cells)
        return
    splits = list(make_splits(cells))
    rows = predict_splits(splits, METHODS)
    print_errors(rows)
    if choose:
        choose_constants(splits)


if __name__ == "__main__":
    sys.exit(run_program(main))
