"""Table of effects: what one factor does to epoch time from its base level to another, all else equal.

A row is a pair of cells that differ in one factor. The base level is the first one: of numbers the smallest, of words the
first in factors.schema.yaml. Groups are compared as independent ones (Welch); that their runs share blocks is not used.
"""

import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from analysis import conditions, intervals, tables
from analysis.intervals import Estimate
from analysis.measured import arguments, cells, level_text, levels_in_order, successful, title, treatments, varying
from common.errors import exit_status
from common.tables import read_table

TITLE = "Effect of each factor on epoch time, all else equal, with 95 % intervals"
THROTTLED = (
    "Throttled: processor seconds of an epoch that a quota held back, on the most throttled node. It is processor time and "
    "not wall time: it includes what was held back while the node would have waited for others anyway, and adds up over "
    "processors."
)


def pairs(runs: pd.DataFrame) -> Iterator[tuple[str, pd.Series, pd.Series]]:
    """Factor, cell at its base level, and cell at another level (rows of `cells`), for each planned pair; in table order."""
    rows = cells(runs)
    order = {name: levels_in_order(runs, name) for name in _in_order(runs)}
    for factor, levels in order.items():
        others = [name for name in order if name != factor]
        by_levels = {tuple(row[[*others, factor]]): row for _, row in rows.iterrows()}
        for place in itertools.product(*(order[name] for name in others)):
            base = by_levels.get((*place, levels[0]))
            for level in levels[1:]:
                to = by_levels.get((*place, level))
                if base is not None and to is not None:
                    yield factor, base, to


def _in_order(runs: pd.DataFrame) -> list[str]:
    """The varying factors: what a study asks about before what it asks at."""
    first = ["framework", "nodes", *treatments(runs)]
    varied = varying(runs)
    return [name for name in first if name in varied] + [name for name in varied if name not in first]


def samples(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The successful runs of every cell that has any."""
    return {str(cell): sample for cell, sample in successful(runs).groupby("cell")}


def contrast(to: pd.DataFrame, base: pd.DataFrame) -> dict[str, Any]:
    """How the runs `to` of one cell differ from those `base` of another: columns of the table, in seconds and bytes.

    ratio = mean epoch time of `to` over that of `base`; difference_s = `to` less `base`; each with its bounds.
    """
    times, base_times = (sample["epoch_time_s"].to_numpy(float) for sample in (to, base))
    throttled = [sample["throttled_s"].to_numpy(float) for sample in (to, base)]
    return {
        "from_n": len(base),
        "from_s": intervals.mean(base_times).value,
        "to_n": len(to),
        "to_s": intervals.mean(times).value,
        **columns("ratio", intervals.ratio(times, base_times)),
        **columns("difference_s", intervals.difference(times, base_times)),
        **columns("throttled_difference_s", intervals.difference(*throttled)),
        "from_exchanges": base["exchanges"].astype(float).mean(),
        "to_exchanges": to["exchanges"].astype(float).mean(),
        "from_sent_bytes": base["sent_bytes"].mean(),
        "to_sent_bytes": to["sent_bytes"].mean(),
    }


def columns(name: str, estimate: Estimate) -> dict[str, float]:
    """An estimate as three columns."""
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def compare(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per pair: factor, from, to, the other levels, `contrast`, p of Welch's test on log times, Holm's p."""
    varied, measured = varying(runs), samples(runs)
    nothing = runs.iloc[:0]
    rows = []
    for factor, base, to in pairs(runs):
        groups = [measured.get(row["cell"], nothing) for row in (to, base)]
        rows.append(
            {
                "factor": factor,
                "from": base[factor],
                "to": to[factor],
                **{name: to[name] if name != factor else None for name in varied},
                "from_cell": base["cell"],
                "to_cell": to["cell"],
                **contrast(*groups),
                "p": intervals.p_value(*(group["epoch_time_s"].to_numpy(float) for group in groups)),
            }
        )
    data = pd.DataFrame(rows, columns=list(rows[0]) if rows else ["factor", "from", "to", "p"])
    for name in ("from", "to", *(varied if rows else [])):  # with a gap, whole numbers would become decimal ones
        data[name] = pd.Series([row[name] for row in rows], dtype=object)
    data["p_holm"] = data.groupby("factor", sort=False)["p"].transform(lambda p: intervals.holm(p.tolist()))
    return data


def table(runs: pd.DataFrame) -> tables.Table:
    """The table of effects of a study."""
    data = compare(runs)
    if data.empty:
        notes = ["No two cells of the study differ in one factor only.", conditions.constants(runs)]
        return tables.Table(TITLE, data, pd.DataFrame(columns=["effect of"]), [note for note in notes if note])
    shown: dict[str, Any] = {
        title(name): [
            f"{level_text(row['from'])} → {level_text(row['to'])}" if row["factor"] == name else level_text(row[name])
            for _, row in data.iterrows()
        ]
        for name in varying(runs)
    }
    shown["from (s)"] = data["from_s"].map(tables.number)
    shown["to (s)"] = data["to_s"].map(tables.number)
    shown["n"] = [f"{a}, {b}" for a, b in zip(data["from_n"], data["to_n"], strict=True)]
    shown["ratio"] = interval_texts(data, "ratio")
    shown["difference (s)"] = interval_texts(data, "difference_s")
    shown["p (Holm)"] = data["p_holm"].map(tables.p_value)
    notes = [
        "A row compares two cells that differ in the one factor with an arrow. Ratio: the mean epoch time after the arrow "
        "over that before it; difference: after less before. Below 1, and below 0, the level after the arrow is faster.",
        "Replicates are independent runs, n before and after the arrow. Intervals of ratios are on the log scale, those of "
        f"differences Welch's; each is for its own row alone.{conditions.few(runs)}",
        _family(data),
        not_compared(data, runs),
        conditions.circumstances(runs),
        conditions.shortfall(runs),
        conditions.constants(runs),
    ]
    if data["throttled_difference_s"].notna().any():
        shown["throttled: difference (s)"] = interval_texts(data, "throttled_difference_s")
        notes.insert(-4, THROTTLED)
    if data[["from_sent_bytes", "to_sent_bytes"]].notna().any(axis=None):
        shown["sent (MB)"] = [
            f"{_megabytes(a)} → {_megabytes(b)}"
            for a, b in zip(data["from_sent_bytes"], data["to_sent_bytes"], strict=True)
        ]
        notes.insert(-4, "Sent: what left the node that sent most through its interface, in an epoch.")
    firsts = data.index[data["factor"] != data["factor"].shift()].tolist()
    return tables.Table(
        TITLE,
        data.dropna(axis="columns", how="all"),
        pd.DataFrame(shown),
        [note for note in notes if note],
        words=[title(name) for name in ("framework", "model", "dataset", "training_loop")],
        parts=firsts[1:],
    )


def interval_texts(data: pd.DataFrame, name: str) -> list[str]:
    """The column `name` with its interval, for people."""
    bounds = data[[name, f"{name}_low", f"{name}_high"]].astype(float)
    return [tables.difference(Estimate(*row)) for row in bounds.itertuples(index=False)]


def not_compared(data: pd.DataFrame, runs: pd.DataFrame) -> str:
    """The cells that keep rows of `data` (from_cell, to_cell, ratio) without a number, in a sentence; empty for none."""
    named = data.loc[data["ratio"].isna(), ["from_cell", "to_cell"]].stack()
    measured = set(successful(runs)["cell"])
    lacking = [cell for cell in dict.fromkeys(named) if cell not in measured]
    return f"Not compared, because a cell has no successful run: {conditions.named(lacking)}." if lacking else ""


def _family(data: pd.DataFrame) -> str:
    counts: Mapping[str, int] = data[data["p"].notna()].groupby("factor", sort=False).size().to_dict()
    if not counts:
        return "No p values, since they need two replicates a cell."
    families = ", ".join(f"{title(factor)} {count}" for factor, count in counts.items())
    return (
        "p: Welch's t test of the logarithms of epoch times, two-sided, corrected by Holm's method for all comparisons of "
        f"the same factor ({families})."
    )


def _megabytes(value: float) -> str:
    return tables.DASH if pd.isna(value) else tables.number(value / 1e6 if value >= 1000 else 0.0)  # an ARP or two


def main(argv: list[str] | None = None) -> None:
    """Write the table of effects."""
    args = arguments(__doc__).parse_args(argv)
    tables.write(table(read_table(args.runs, "runs")), args.out)


if __name__ == "__main__":
    sys.exit(exit_status(main))
