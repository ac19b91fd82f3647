"""Table of prediction errors: every method predicts the cells on several nodes that it has not seen, fold by fold.

Left out are the largest number of nodes, the two largest, each batch size, each rate of the links, each strategy where some ranks divide
more than samples, and two corners: the cells that are farthest out in every factor, predicted from those that are in none. Sweeps of the network at numbers of
nodes or rates that are left out are not used either. A second CSV has every prediction of every cell.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import conditions, intervals, tables
from analysis.adjusted import adjusted_times
from analysis.intervals import Estimate
from analysis.measured import combination_text, read_timed, successful, treatment_text, treatments, varying
from common.notes import Note
from common.options import run_program
from common.tables import read_table
from declared.factors import FEWEST_HELD_OUT
from environments.built import read_built
from models.collectives import COLLECTIVES
from prediction import exchange, law, physics
from prediction.fold import Fold, Method, Prediction
from prediction.law import rate_text
from prediction.methods import PHYSICS, methods

TITLE = "Errors of predicted epoch times, of cells on several nodes that were left out of the fit"
COMMON = Note(
    "common-cells",
    "Common cells: cells that every method predicts; methods that predict none of the cells that are left out do not count. Compare "
    "methods on the common cells.",
)
MESHES = (
    "Where ranks divide more than samples, the physical model divides the computation of one node by operator, and takes each message by the law "
    "of its collective; by hand, each takes its bytes at the link's rate. What a library takes for a message within layers beyond the sweep is "
    "fitted, too."
)
WITHIN = "Meshes with a group of ranks on one node are not predicted: no sweep knows what is within a node."
NOTHING = Note(
    "nothing-to-predict",
    "Nothing to predict: it needs cells on one node, and on several ones whose network was swept.",
)
WAYS = {
    law.PIPELINED: "then the slower of link and processors",
    law.SUM: "then link and processors one after the other",
    law.LARGEST: "or the link or the processors, where these take longer",
}
IN_SAMPLE = "nothing (fit)"
KINDS = ("nodes", "batch size", "link rate", "corner", "strategy")
ALL = "all that was left out"
ADJUSTED = Note(
    "adjusted",
    "Epoch times are adjusted by how quick the machine was (table `adjusted`), those that are fitted and those that predictions are held against.",
)
ON_LOOPBACK = Note(
    "emulated",
    "Nodes are emulated: this checks the methods on the loopback of one machine, and says nothing about a network.",
)


def folds(cells: pd.DataFrame, sweeps: pd.DataFrame) -> Iterator[Fold]:
    """What is left out of a study's `physics.prepared` cells and `law.points`; the first fold leaves out nothing."""
    several = cells["nodes"] > 1
    nodes, batches, rates = (
        sorted(cells.loc[several, name].dropna().unique()) for name in ("nodes", "batch_size", "rate")
    )

    def fold(kind: str, name: str, **ends: list[float]) -> Fold:
        of_links = ("rate", "parallelism")  # what one node has is of all their levels
        held = [cells[factor].isin(levels) & ((factor not in of_links) | several) for factor, levels in ends.items()]
        swept = ~(sweeps["nodes"].isin(ends.get("nodes", [])) | sweeps["link_bytes_s"].isin(ends.get("rate", [])))
        train = cells[~np.logical_or.reduce(held)] if held else cells
        test = cells[np.logical_and.reduce([several, *held])]
        return Fold(name, kind, train.reset_index(drop=True), sweeps[swept], test.reset_index(drop=True))

    yield fold("nothing", IN_SAMPLE)
    if len(nodes) >= FEWEST_HELD_OUT["nodes"]:
        yield fold("nodes", f"{nodes[-1]:g} nodes", nodes=nodes[-1:])
    if len(nodes) > 2:
        yield fold("nodes", f"{nodes[-2]:g} and {nodes[-1]:g} nodes", nodes=nodes[-2:])
    for batch in batches if len(batches) >= FEWEST_HELD_OUT["batch_size"] else []:
        yield fold("batch size", f"batch size {batch}", batch_size=[batch])
    for rate in rates if len(rates) >= FEWEST_HELD_OUT["bandwidth"] else []:
        yield fold("link rate", f"links of {rate_text(rate)}", rate=[rate])
    for strategy in list(dict.fromkeys(cells.loc[several, "parallelism"])) if cells["is_mesh"].any() else []:
        yield fold("strategy", f"parallelism {strategy}", parallelism=[strategy])
    for text, end in (("most", 0), ("least", -1)):
        ends = {
            name: [levels[which]]
            for name, levels, which, fewest in (
                ("nodes", nodes, -1, FEWEST_HELD_OUT["nodes"]),
                ("batch_size", batches, end, FEWEST_HELD_OUT["batch_size"]),
                ("rate", rates, end, FEWEST_HELD_OUT["bandwidth"]),
            )
            if len(levels) >= fewest
        }
        if len(ends) > 1:
            yield fold("corner", f"corner of {text} communication", **ends)


def evaluate(
    cells: pd.DataFrame, sweeps: pd.DataFrame, by_name: Mapping[str, Method]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every prediction of every cell left out, and a row per fold and method (`summary`); where there are several, ALL of them."""
    every: list[pd.DataFrame] = []
    rows: list[dict[str, Any]] = []
    made: dict[str, Prediction] = {}
    for fold in folds(cells, sweeps):
        if fold.test.empty:
            continue
        made = {name: method(fold) for name, method in by_name.items()}
        tests = [
            fold.test.assign(left_out=fold.title, kind=fold.kind, method=name, predicted_s=one.seconds)
            for name, one in made.items()
        ]
        found = pd.concat(tests, ignore_index=True)
        found["error"] = found["predicted_s"] / found["epoch_time_s"] - 1
        found["common"] = common(found)
        every.append(found)
        rows += summaries(found, made)
    left = [found for found in every if found["kind"].iloc[0] in KINDS]
    if len(left) > 1:
        all_of_it = pd.concat(left, ignore_index=True)
        all_of_it = all_of_it.assign(common=common(all_of_it), left_out=ALL)
        missing = all_of_it.groupby("method", sort=False)["predicted_s"].agg(lambda made: made.isna().all())
        rows += summaries(  # what keeps a method from some cells is told of each part
            all_of_it,
            {
                name: replace(made[name], problem=made[name].problem if none else "", remarks=())
                for name, none in missing.items()
            },
        )
    named = [
        "left_out",
        "kind",
        "method",
        "cell",
        *varying(cells),
        "rate",
        "replicas",
        "epoch_time_s",
        "sd",
        "n",
        "predicted_s",
        "error",
    ]
    named = list(dict.fromkeys(named))
    return pd.concat(every)[named] if every else pd.DataFrame(columns=named), pd.DataFrame(rows)


def common(found: pd.DataFrame) -> np.ndarray:
    """Which rows of `evaluate`'s predictions are of cells that all methods predict, but for those that predict nothing at all."""
    made = found[found["predicted_s"].notna()]
    by_all = made.groupby(["left_out", "cell"])["method"].nunique() == made["method"].nunique()
    return pd.MultiIndex.from_frame(found[["left_out", "cell"]]).isin(by_all.index[by_all])


def summaries(found: pd.DataFrame, made: Mapping[str, Prediction]) -> list[dict[str, Any]]:
    """The `summary` of each method in one fold, each beside the physical model, where that is among them."""
    by_method = dict(iter(found.groupby("method", sort=False)))
    physical = by_method.get(PHYSICS)
    return [summary(by_method[name], made[name], physical if name != PHYSICS else None) for name in by_method]


def summary(found: pd.DataFrame, made: Prediction, physical: pd.DataFrame | None = None) -> dict[str, Any]:
    """Bias, MAPE and worst cell of one method in one fold, as shares; `mape_common`: that of the cells that are `common`;
    `beyond`: mean by which its absolute errors exceed those of `physical`, of the predictions that both make; `noise`: the MAPE of
    the true means. MAPE and `beyond` with bounds of a bootstrap over cells.

    The mean absolute value of normal noise is sqrt(2 / pi) times its standard deviation.
    """
    errors = found["error"].dropna()
    worst = errors.abs().idxmax() if len(errors) else None
    beyond = Estimate(math.nan)
    if physical is not None:
        more = found["error"].abs().to_numpy() - physical["error"].abs().to_numpy()  # the same cells, in the same order
        both = ~np.isnan(more)
        beyond = intervals.bootstrap_mean(more[both], found["cell"].to_numpy()[both])
    return {
        "left_out": found["left_out"].iloc[0],
        "method": found["method"].iloc[0],
        "cells": len(found),
        "predicted": len(errors),
        "bias": errors.mean(),
        **intervals.columns(
            "mape", intervals.bootstrap_mean(errors.abs().to_numpy(), found["cell"][errors.index].to_numpy())
        ),
        **intervals.columns("beyond", beyond),
        "common": int(found["common"].sum()),
        "mape_common": found.loc[found["common"], "error"].abs().mean(),
        "worst": errors[worst] if worst is not None else math.nan,
        "worst_cell": found["cell"][worst] if worst is not None else None,
        "noise": math.sqrt(2 / math.pi) * physics.pooled_cv(found, of_means=True),
        "problem": made.problem or None,
        "remarks": "; ".join(made.remarks) or None,
    }


def table(runs: pd.DataFrame, cells: pd.DataFrame, sweeps: pd.DataFrame, rows: pd.DataFrame) -> tables.Table:
    """The table of a study; `rows` from `evaluate`."""
    words = ["left out", "method", "worst cell"]
    plain = successful(runs)["epoch_time_s"].astype(float)
    always = [
        ON_LOOPBACK if conditions.is_emulated(runs) else "",
        "" if plain.equals(adjusted_times(runs)) else ADJUSTED,
        physics.uncounted(runs, meshes=True),
        physics.of_unlike(runs),
        conditions.setting_note(runs),
    ]
    if rows.empty:
        empty = pd.DataFrame(columns=["left_out", "method", "mape"])
        return tables.Table(TITLE, empty, pd.DataFrame(columns=["left out"]), [NOTHING, *filter(None, always)], words)
    firsts = rows.index[rows["left_out"] != rows["left_out"].shift()].tolist()
    done = rows["predicted"] > 0
    shown = {
        "left out": rows["left_out"].where(rows.index.isin(firsts), ""),
        "method": rows["method"],
        "cells": [f"{k}" if k == n else f"{k} of {n}" for k, n in rows[["predicted", "cells"]].itertuples(index=False)],
        "bias (%)": rows["bias"].map(_percent),
        "MAPE (%)": _interval(rows, "mape"),
        "beyond physical (points)": _interval(rows, "beyond"),
        "common cells": rows["common"].map(str).where(rows.index.isin(firsts), ""),
        "MAPE, common (%)": rows["mape_common"].map(_percent),
        "worst (%)": rows["worst"].map(_percent),
        "MAPE by noise (%)": rows["noise"].map(_percent).where(rows.index.isin(firsts), ""),
        "worst cell": rows["worst_cell"].map(_named(cells)).where(done, "not made: " + rows["problem"].fillna("")),
    }
    short = rows[(rows["predicted"] < rows["cells"]) & done].sort_values("problem", na_position="last", kind="stable")
    short = short.drop_duplicates("method").sort_index()
    if short.empty:
        del shown["common cells"], shown["MAPE, common (%)"]
    error = (
        "Error: predicted divided by measured mean epoch time, minus 1. Bias is its mean, MAPE the mean of its absolute value, worst "
        "the largest, with its sign. Beyond physical: the mean absolute error less that of the physical model, over the predictions "
        "that both make; above 0, the physical model is better. In brackets: 95 % intervals of a bootstrap over cells (BCa, "
        f"{intervals.RESAMPLES:,} samples), where there are {intervals.MIN_CLUSTERS} cells or more. Only cells on several nodes are predicted. MAPE by noise: the MAPE of a method that "
        "knows the true means, because measured means scatter: √(2/π) times the pooled coefficient of variation of these "
        "cells' means over replicates. By chance a method can be slightly below it; a method that saw these cells can be far below."
    )
    counted = Note("all-left-out", f"{ALL.capitalize()}: each cell counts as often as it was left out.")
    notes = [
        Note("error", error),
        counted if ALL in set(rows["left_out"]) else "",
        "" if short.empty else COMMON,
        _method_note(cells, sweeps),
        _of_meshes(cells[cells["is_mesh"]]),
        *(
            Note("method-leaves-out", f"{name} leaves out cells: {problem}.", method=name, problem=problem)
            for name, problem in short.dropna(subset="problem")[["method", "problem"]].itertuples(index=False)
        ),
        *(
            _remark(str(method), own["left_out"].tolist(), str(remark))
            for (method, remark), own in rows.dropna(subset=["remarks"]).groupby(["method", "remarks"], sort=False)
        ),
        *always,
    ]
    return tables.Table(
        TITLE,
        rows.dropna(axis="columns", how="all"),
        pd.DataFrame(shown),
        [note for note in notes if note],
        words,
        firsts[1:],
    )


def _remark(method: str, left_out: Sequence[str], remark: str) -> Note:
    """What must be said of a method where this was left out."""
    text = f"{method} ({conditions.join_names(left_out)}): {remark}"
    return Note("method-remark", text, method=method, left_out=left_out, remark=remark)


def _named(cells: pd.DataFrame) -> dict[str, str]:
    """A cell's name -> the levels that tell it from others, in words, the link's rate among them."""
    treated = treatments(cells)
    names = varying(cells, but=["bandwidth", *treated])
    rates = cells["rate"].nunique(dropna=False) > 1
    return {
        str(row["cell"]): ", ".join(
            [
                combination_text({name: row[name] for name in names}),
                *([treatment_text({name: row[name] for name in treated})] if treated else []),
            ]
        )
        + (f", links of {rate_text(row['rate'])}" if rates else "")
        for row in cells.to_dict("records")
    }


def _interval(rows: pd.DataFrame, name: str) -> list[str]:
    """Shares in per cent with their bounds, where they have some."""
    bounds = rows[[name, f"{name}_low", f"{name}_high"]].astype(float).itertuples(index=False)
    return [
        f"{_percent(value)} [{_percent(low)}, {_percent(high)}]" if not math.isnan(low) else _percent(value)
        for value, low, high in bounds
    ]


def _percent(share: float) -> str:
    return tables.DASH if pd.isna(share) else f"{100 * share:.1f}".replace("-", tables.number(-1)[0])


def _of_meshes(meshes: pd.DataFrame) -> str:
    """How cells are predicted whose ranks divide more than samples; nothing where there are none."""
    if meshes.empty:
        return ""
    within = bool((meshes["ranks"] > meshes["nodes"]).any())
    return Note("meshes", f"{MESHES} {WITHIN}" if within else MESHES, ranks_within_nodes=within)


def _method_note(cells: pd.DataFrame, sweeps: pd.DataFrame) -> str:
    """What the physical model is, and what it was fitted to when nothing is left out."""
    made = physics.fit(cells, sweeps)
    fitted = [
        f"{name[0]}{'' if name[1] == 'site' else f' ({name[1]})'}: scatter {made.scatter[name]:.2f}"
        + (f", hidden share {made.hidden[name]:.2f}" if made.hidden[name] else ", nothing hidden")
        + (f", {1e3 * took:.2g} ms a message within layers" if (took := made.dispatch[name]) else "")
        + f", {_laws_text(made, name)}"
        for name in made.laws
    ]
    text = (
        "Physical model: computation from the runs on one node; plus the messages of an exchange, by a law that is fitted to the sweep of the network "
        "without the nodes and rates that are left out; minus what the backward pass hides; plus waiting for the "
        "slowest of p ranks, if the time of a batch scatters in proportion to itself. Scatter and hidden share are fitted to the "
        f"cells on several nodes that are not left out. With nothing left out: {'; '.join(fitted) or 'no sweep'}. By hand: "
        "computation, plus 2 (n − 1) / n × gradient bytes at the link's rate, nothing fitted. The regressions have the terms of "
        "the table of regression, but are fitted to cell means by least squares of relative errors, because errors here are relative."
    )
    latency_s = {name: {collective: one.step_s for collective, one in laws.items()} for name, laws in made.laws.items()}
    return Note("methods", text, scatter=made.scatter, hidden=made.hidden, latency_s=latency_s)


def _laws_text(made: physics.Physics, carrier: physics.Carrier) -> str:
    """The laws of what a carrier's exchange is made of."""
    laws = made.laws[carrier]
    if made.shards(carrier):
        laws = {name: laws[name] for name in exchange.SHARDS}
    several = len(laws) > 1
    return ", ".join(
        f"{COLLECTIVES[name].title + ' ' if several else ''}{_latency_text(network)}, {WAYS[network.way]}"
        for name, network in laws.items()
    )


def _latency_text(network: law.Law) -> str:
    """What a message takes beside its bytes."""
    took = f"{1e3 * network.step_s:.2g} ms"
    return f"{took} a message" if network.algorithm == law.NEIGHBOURS else f"a {network.algorithm} of {took} a step"


def main(*, runs: Path, out: Path, network: Path, extrap: Path | None = None) -> None:
    """Write the table of prediction errors, and a CSV of every prediction.

    Args:
        runs: runs.csv of the study
        out: files to write, without their suffix
        network: network.csv of the study
        extrap: compare with Extra-P, too: the environment.json of containers/extrap
    """
    python = Path(read_built(extrap)["python"]["executable"]) if extrap else None
    measured = read_timed(runs)
    cells, sweeps = physics.prepared(measured, meshes=True), law.points(read_table(network, "network"))
    every, rows = evaluate(cells, sweeps, methods(set(cells["framework"]), python))
    tables.write_csv(every, out.with_name(f"{out.name}_cells.csv"))
    tables.write(table(measured, cells, sweeps, rows), out)


if __name__ == "__main__":
    sys.exit(run_program(main))
