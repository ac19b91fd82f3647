"""Which strategy is fastest on which links, before it is measured: a table.

For every cell on several nodes that a study plans, run or not, at the study's own rates of links and at others: the epoch time that computation on one
node and the sweeps of the network predict (prediction.physics, nothing fitted to runs on several nodes), beside the measured one where there is one.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import conditions, tables
from analysis.measured import combination_text, level_text, read_timed, title, varying
from common.notes import Note
from common.options import run_program
from common.tables import read_table
from prediction import law, physics
from prediction.extrapolate import anywhere
from prediction.held_out import ON_LOOPBACK
from prediction.law import rate_text
from prediction.question import RATES

TITLE = "Which strategy is fastest, by the rate of the links"
NOTHING = Note(
    "nothing-to-compare",
    "Nothing to compare: it needs runs on one node, and strategies on several ones whose messages were swept.",
)
HOW = Note(
    "predicted",
    "Predicted: computation of one node divided by operator, and messages by the laws of the sweeps. Nothing is fitted to runs on several nodes, "
    "nothing is hidden, and nobody waits by chance, so that the table can be made before these runs are. Measured: means of cells; of strategies "
    "that have no run, the fastest may be another one.",
)
EXTRAPOLATED = Note("extrapolated", "*: no sweep was made at that rate; it is extrapolated from those that were.")
GIGABIT = 1e9 / 8
OF_STRATEGY = ("framework", *physics.DIVIDES)


def compare(runs: pd.DataFrame, sweeps: pd.DataFrame) -> pd.DataFrame:
    """A row per case (levels of what varies beside strategies), rate of links and strategy that can be predicted: the factors that vary, `strategy` in
    words, `predicted_s`, its `place` among them (1: the fastest), `measured_s` (NaN: not at that rate, or not yet) and `measured_place`;
    `swept`: whether the network was swept at that rate. `sweeps`: `law.points`."""
    measured, cells = physics.prepared(runs, meshes=True), physics.planned(runs)
    case, divided = (varying(cells, but=but) for but in (["bandwidth", *OF_STRATEGY], ["bandwidth"]))
    cells["strategy"] = _strategies(cells)
    alone = measured[measured["nodes"] == 1]
    made = anywhere(physics.plain(pd.concat([alone, cells], ignore_index=True), sweeps))
    own = cells["rate"].dropna().unique().tolist()
    rates = sorted({*own, *(GIGABIT * rate for rate in RATES)}) if own else [np.nan]
    at_rates = cells.drop(columns=["rate", "cell", "bandwidth"]).drop_duplicates()
    found = at_rates.merge(pd.DataFrame({"rate": rates}), how="cross")
    several = measured[measured["nodes"] > 1]
    times = several.assign(strategy=_strategies(several))[[*case, "strategy", "rate", "epoch_time_s"]]
    found = found.assign(predicted_s=made.predict(found), swept=found["rate"].isin(sweeps["link_bytes_s"]))
    found = found.dropna(subset="predicted_s")
    found = found.merge(
        times.rename(columns={"epoch_time_s": "measured_s"}), on=[*case, "strategy", "rate"], how="left"
    )
    groups = found.groupby([*case, "rate"], dropna=False, sort=True)
    found["place"], found["measured_place"] = groups["predicted_s"].rank(), groups["measured_s"].rank()
    found = found.sort_values([*case, "rate", "place"]).reset_index(drop=True)
    named = [*case, *(name for name in divided if name not in case)]
    return found[[*named, "rate", "swept", "strategy", "predicted_s", "place", "measured_s", "measured_place"]]


def _strategies(cells: pd.DataFrame) -> pd.Series:
    """What tells the strategies of cells apart, in words: framework and parallelism, and what else of a strategy varies within these."""
    named = [*(["framework"] if cells.loc[cells["nodes"] > 1, "framework"].nunique() > 1 else []), "parallelism"]
    others = [name for name in physics.DIVIDES if name != "parallelism"]
    more = cells.groupby(named)[others].transform("nunique") > 1
    return pd.Series(
        [
            ", ".join([*(level_text(row[name]) for name in named), *([combination_text(told)] if told else [])])
            for row, varied in zip(cells.to_dict("records"), more.to_dict("records"), strict=True)
            for told in [{name: row[name] for name in others if varied[name]}]
        ],
        index=cells.index,
        dtype=object,
    )


def table(runs: pd.DataFrame, network: pd.DataFrame) -> tables.Table:
    """The table of a study."""
    rows = compare(runs, law.points(network))
    said = [ON_LOOPBACK if conditions.is_emulated(runs) else "", conditions.setting_note(runs)]
    if rows.empty:
        empty = pd.DataFrame(columns=["strategy"], dtype=str)
        return tables.Table(TITLE, empty, empty, [NOTHING, *filter(None, said)])
    case = [*(name for name in rows.columns[: rows.columns.get_loc("rate")] if name not in OF_STRATEGY), "rate"]
    shown: list[tuple[object, dict[str, str]]] = []
    firsts: list[int] = []
    for levels, own in rows.groupby(case, dropna=False, sort=False):
        told = dict(zip(case, levels if isinstance(levels, tuple) else (levels,), strict=True))
        if not shown or told[case[0]] != shown[-1][0]:
            firsts.append(len(shown))
        shown.append((told[case[0]], _row(told, own)))
    words = [title(name) for name in case[:-1]] + ["fastest", "next", "fastest, measured"]
    notes = [HOW, *([EXTRAPOLATED] if not rows["swept"].all() else []), *filter(None, said)]
    return tables.Table(TITLE, rows, pd.DataFrame([row for _, row in shown]), notes, words, firsts[1:])


def _row(levels: dict[str, object], own: pd.DataFrame) -> dict[str, str]:
    """What is shown of one case and rate."""
    (first, *others), measured = own.to_dict("records"), own.dropna(subset="measured_s").sort_values("measured_s")
    told = {title(name): level_text(level) for name, level in levels.items() if name != "rate"}
    return {
        **told,
        "links": rate_text(float(str(levels["rate"]))) + ("" if first["swept"] else "*"),
        "fastest": first["strategy"],
        "predicted (s)": tables.number(first["predicted_s"]),
        "next": others[0]["strategy"] if others else tables.DASH,
        "it takes more (%)": tables.percent(others[0]["predicted_s"] / first["predicted_s"] - 1)
        if others
        else tables.DASH,
        "fastest, measured": measured["strategy"].iloc[0] if len(measured) else tables.DASH,
        "measured (s)": tables.number(measured["measured_s"].iloc[0]) if len(measured) else tables.DASH,
    }


def main(*, runs: Path, out: Path, network: Path) -> None:
    """Write the table of strategies by links.

    Args:
        runs: runs.csv of the study
        out: files to write, without their suffix
        network: network.csv of the study
    """
    tables.write(table(read_timed(runs), read_table(network, "network")), out)


if __name__ == "__main__":
    sys.exit(run_program(main))
