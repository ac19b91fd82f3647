"""Table of cell means: what each cell of the design measured, with 95 % intervals over replicates.

Costs have arithmetic means and rates harmonic ones (Hoefler & Belli, SC'15, rule 3).
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from analysis import conditions, intervals, tables
from analysis.intervals import Estimate
from analysis.measured import arguments, cells, level_text, successful, title, varying
from common.errors import exit_status
from common.tables import read_table


@dataclass(frozen=True)
class Response:
    """A measured column, its heading, how replicates are summarized, and the factor from its unit to that shown."""

    column: str
    heading: str
    summary: Callable[[pd.Series], Estimate]
    scale: float = 1.0
    digits: int = 3


def _cost(values: pd.Series) -> Estimate:
    return intervals.mean(values, minimum=0)


def _share(values: pd.Series) -> Estimate:
    return intervals.mean(values, minimum=0, maximum=1)


RESPONSES = [
    Response("epoch_time_s", "epoch time (s)", _cost),
    Response("throughput_samples_s", "throughput (samples/s)", intervals.harmonic_mean),
    Response("train_accuracy", "training accuracy (%)", _share, 100),
    Response("validation_accuracy", "validation accuracy (%)", _share, 100),
    Response("memory_peak_bytes", "memory per rank (MiB)", _cost, 2**-20),
    Response("device_memory_peak_bytes", "device memory (MiB)", _cost, 2**-20),
]


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: its factors, n, unsuccessful, and for each response mean, low, high (its unit) and CV."""
    rows = cells(runs)
    measured = dict(list(successful(runs).groupby("cell")))
    total = runs.groupby("cell").size()
    nothing = runs.iloc[:0]
    samples = [measured.get(cell, nothing) for cell in rows["cell"]]
    rows["n"] = [len(sample) for sample in samples]
    rows["unsuccessful"] = [int(total[cell]) - n for cell, n in zip(rows["cell"], rows["n"], strict=True)]
    for response in RESPONSES:
        if runs[response.column].isna().all():
            continue
        estimates = [
            response.summary(sample[response.column].to_numpy(float, na_value=float("nan"))) for sample in samples
        ]
        rows[f"{response.column}_mean"] = [estimate.value for estimate in estimates]
        rows[f"{response.column}_low"] = [estimate.low for estimate in estimates]
        rows[f"{response.column}_high"] = [estimate.high for estimate in estimates]
        rows[f"{response.column}_cv"] = [estimate.cv for estimate in estimates]
    return rows


def table(runs: pd.DataFrame) -> tables.Table:
    """The table of cell means of a study."""
    data = summarize(runs)
    shown_factors = ["framework", *varying(runs, but=["framework"])]
    shown = {title(name): data[name].map(level_text) for name in shown_factors}
    shown["n"] = [
        f"{n} of {n + bad}" if bad else f"{n}" for n, bad in zip(data["n"], data["unsuccessful"], strict=True)
    ]
    for response in RESPONSES:
        if f"{response.column}_mean" in data:
            bounds = data[[f"{response.column}_{part}" for part in ("mean", "low", "high")]] * response.scale
            shown[response.heading] = [
                tables.interval(Estimate(*row), response.digits) for row in bounds.itertuples(index=False)
            ]
        if response.column == "epoch_time_s" and "epoch_time_s_cv" in data:
            shown["CV (%)"] = [tables.percent(cv) for cv in data["epoch_time_s_cv"]]
    notes = [
        f"{conditions.replicates(runs)} In brackets the interval.",
        "Throughput is a harmonic mean; CV (standard deviation over mean) is that of epoch time.",
        conditions.circumstances(runs),
        conditions.shortfall(runs),
        conditions.constants(runs),
    ]
    return tables.Table(
        title="Cell means over replicates with 95 % intervals",
        data=data.dropna(axis="columns", how="all"),
        shown=pd.DataFrame(shown),
        notes=[note for note in notes if note],
        words=[title("framework"), title("model"), title("dataset")],
    )


def main(argv: list[str] | None = None) -> None:
    """Write the table of cell means."""
    args = arguments(__doc__).parse_args(argv)
    tables.write(table(read_table(args.runs, "runs")), args.out)


if __name__ == "__main__":
    sys.exit(exit_status(main))
