"""Check a study against the twelve rules of Hoefler & Belli, "Scientific Benchmarking" (SC'15).

The names of rules are ours. Whether a rule is met is computed from runs, tables and captions. What cannot be
computed is not met, with the reason; a rule that has no object in the study does not apply.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis import conditions
from analysis.measured import (
    OUT_OF_MEMORY,
    baseline_frameworks,
    distinct_names,
    one_line,
    title,
    unsuccessful,
    varying,
)
from analysis.tables import number
from analysis.terms import is_treated_as_number
from common.notes import Note
from common.text import number_of
from report.design import exclusions, kept_order
from report.material import Material, Picture, column
from report.setting import is_generated, number_range

MET, NOT_MET, NOT_APPLICABLE = "met", "not met", "does not apply"
EQUALITY_TOLERANCE = 1e-9  # relative
SETUP = {
    "hosts": "hosts",
    "devices": "devices",
    "node_memory_bytes": "memory",
    "systems": "operating system",
    "placement": "placement",
    "cores_per_rank": "cores per rank",
    "library_version": "the library's version",
    "python_version": "Python's version",
    "environment_digest": "the environment's digest",
    "code_digest": "the code's digest",
    "data_digest": "the data's digest",
    "seed": "seed",
    "started_at": "start",
    "timing_scope": "timing scope",
}
BOUNDED = {
    "by_nodes": "epoch time by nodes",
    "scaling": "scaling",
    "network": "the network",
    "projection": "scaling projection",
}
Links = tuple[tuple[str, str], ...]  # anchor on the page, words


@dataclass(frozen=True)
class Verdict:
    """The outcome of a rule, with a note that has the numbers or the reason."""

    outcome: str
    note: Note
    links: Links = ()


def met(code: str, text: str, **facts: Any) -> Verdict:
    """Return that a rule is met, with a note of this code, text and facts."""
    return Verdict(MET, Note(code, text, **facts))


def not_met(code: str, text: str, **facts: Any) -> Verdict:
    """Return that a rule is not met, and why."""
    return Verdict(NOT_MET, Note(code, text, **facts))


def not_applicable(code: str, text: str) -> Verdict:
    """Return that a rule has no object in the study, and why."""
    return Verdict(NOT_APPLICABLE, Note(code, text))


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        number: Its number.
        name: Its name in our words.
        judge: Its check.
        links: Links to the evidence.
        figures: Kinds of figures that are evidence, too, and words for a link to the first of each.
    """

    number: int
    name: str
    judge: Callable[[Material], Verdict]
    links: Links = ()
    figures: Mapping[str, str] = field(default_factory=dict)


def check_speedup_baselines(material: Material) -> Verdict:
    """Check rule 1: speed-ups state their baseline."""
    data = material.data("speedup")
    if (material.runs["replicas"] <= 1).all():
        return not_applicable("one-replica", "no cell has more than one replica, so there is no speed-up.")
    parallel = data[column(data, "replicas") > 1] if len(data) else data
    if parallel.empty:
        return not_met("no-speedup", "no cell with several replicas has a successful run and a baseline.")
    n_without_baseline = int(parallel["baseline_cell"].isna().sum())
    if n_without_baseline:
        return not_met(
            "baselines-missing",
            f"{n_without_baseline} of {number_of(len(parallel), 'cell')} with several replicas have "
            "no successful baseline.",
            without=n_without_baseline,
            cells=len(parallel),
        )
    n_own = int((parallel["baseline_framework"] == parallel["framework"]).sum())
    single_device = sorted(set(parallel["baseline_framework"]) & set(baseline_frameworks(material.runs)))
    n_other = len(parallel) - n_own
    begins_later = bool((column(parallel, "baseline_replicas") > 1).any())
    smallest = "its fewest replicas" if begins_later else "one replica"
    kinds = [
        f"{n_other} a single-device baseline ({', '.join(single_device)})" if n_other else "",
        f"{n_own} the same framework on {smallest}" if n_own else "",
    ]
    seconds = column(parallel, "baseline_epoch_time_s")
    return met(
        "speedups-have-baselines",
        f"{number_of(len(parallel), 'cell')} with several replicas have a baseline: "
        f"{', '.join(kind for kind in kinds if kind)}. Each baseline is in the same row, in seconds "
        f"({number_range(seconds)} s per epoch).",
        cells=len(parallel),
        single_device=single_device,
        own=n_own,
        least_s=seconds.min(),
        greatest_s=seconds.max(),
    )


def check_subsets(material: Material) -> Verdict:
    """Check rule 2: what was left out is explained."""
    study, site = material.study, material.site
    excluded, failed = exclusions(study), unsuccessful(material.runs)
    failed = failed[failed["status"] != OUT_OF_MEMORY]
    silent = sum(entry.reason is None for entry in excluded)
    unexplained = int((failed["reason"].map(one_line) == "").sum())
    if study.imported:
        return not_met("subset-unknown", "what the source measured and left out is not known.")
    max_nodes = max(study.factors["nodes"])
    reasons = [
        f"the study's file gives no reason for {silent} of {number_of(len(excluded), 'exclusion')}"
        if silent
        else "",
        f"{number_of(unexplained, 'run')} without a result have no reason" if unexplained else "",
        (
            f"it uses {max_nodes} of the site's {number_of(site.nodes, 'node')}, and a study has no key to "
            "say why"
        )
        if site and max_nodes < site.nodes
        else "",
        "the site of the runs is not known here, so unused resources cannot be listed"
        if site is None
        else "",
    ]
    made_up = [name for name in study.factors["dataset"] if is_generated(name)]
    noted = (
        f" Data sets that a program generates, which are no benchmarks: {', '.join(made_up)}."
        if made_up
        else ""
    )
    counts = {
        "exclusions": len(excluded),
        "silent_exclusions": silent,
        "unsuccessful": len(failed),
        "unexplained": unexplained,
        "nodes": max_nodes,
        "site_nodes": site.nodes if site else None,
        "generated_datasets": made_up,
    }
    if any(reasons):
        return not_met(
            "unexplained-subset", f"{'; '.join(part for part in reasons if part)}.{noted}", **counts
        )
    exclusions_text = (
        f"{number_of(len(excluded), 'exclusion')}, none without a reason"
        if excluded
        else "nothing is excluded"
    )
    missing_text = (
        f"{number_of(len(failed), 'run')} without a result, each with its reason"
        if len(failed)
        else "no run is missing"
    )
    text = (
        f"{exclusions_text}; {missing_text}; all {number_of(max_nodes, 'node')} of the site are used.{noted}"
    )
    return met("subset-explained", text, **counts)


def check_means(material: Material) -> Verdict:
    """Check rule 3: recompute the means in the table of cells from the runs."""
    data, ok = material.data("cells"), material.ok
    if ok.empty:
        return not_applicable("no-success", "no run succeeded, so there is no mean.")
    if "cell" not in data:
        return not_met("no-table", "there is no table of cells.")
    rows = data.set_index("cell")
    times = ok.groupby("cell")["epoch_time_s"].mean()
    rates = 1 / (1 / ok["throughput_samples_s"].astype(float)).groupby(ok["cell"]).mean()
    difference = max(
        _largest_difference(column(rows, "epoch_time_s_mean"), times),
        _largest_difference(column(rows, "throughput_samples_s_mean"), rates.dropna()),
    )
    if not difference < EQUALITY_TOLERANCE:
        return not_met(
            "means-differ",
            f"means in the table of cells differ by up to {_share(difference)} from means that are "
            "computed here from the runs.",
            share=difference,
        )
    return met(
        "means-agree",
        f"{len(times)} arithmetic means of epoch time and {len(rates.dropna())} harmonic means of "
        "throughput were computed again from the runs and agree with the table of cells.",
        times=len(times),
        rates=len(rates.dropna()),
    )


def check_ratios(material: Material) -> Verdict:
    """Check rule 4: every ratio in tables is the quotient of two means."""
    speedup, effects = material.data("speedup"), material.data("effects")
    pairs = [
        (
            column(speedup, "speedup"),
            column(speedup, "baseline_epoch_time_s") / column(speedup, "epoch_time_s"),
        ),
        (column(effects, "ratio"), column(effects, "to_s") / column(effects, "from_s")),
    ]
    count = sum(int(in_table.notna().sum()) for in_table, _ in pairs)
    if not count:
        return not_applicable("no-ratio", "the study has no ratio of two measured times.")
    difference = max(_largest_difference(in_table, recomputed) for in_table, recomputed in pairs)
    if not difference < EQUALITY_TOLERANCE:
        return not_met(
            "ratios-differ",
            f"ratios in tables differ by up to {_share(difference)} from the quotients of their two means.",
            share=difference,
        )
    tables = [
        words
        for name, words in (
            ("prediction", "the table of predictions"),
            ("regression", "that of the regression"),
        )
        if len(material.data(name))
    ]
    errors = (
        f" The only means of ratios are the measures of error, MAPE and bias, in {' and '.join(tables)}."
        if tables
        else ""
    )
    text = f"each of {count} ratios is the quotient of the two mean times in its row.{errors}"
    return met("ratios-of-means", text, ratios=count)


def check_intervals(material: Material) -> Verdict:
    """Check rule 5: results have intervals."""
    cells = material.pooling.cell_statistics
    if cells.empty:
        return not_applicable("no-success", "no run succeeded, so there is no result that needs an interval.")
    n_without_interval = int(cells["low"].isna().sum())
    if n_without_interval:
        return not_met(
            "intervals-missing",
            f"{n_without_interval} of {number_of(len(cells), 'cell')} have no interval, because they "
            "have too few runs.",
            without=n_without_interval,
            cells=len(cells),
        )
    spread = cells["cv"].dropna()
    spread_text = (
        f"runs of a cell differ by {number_range(100 * spread)} % (coefficient of variation)"
        if len(spread)
        else "no cell has two runs"
    )
    is_constant = bool(len(spread)) and bool((spread == 0).all())
    variation = "runs of a cell do not differ at all" if is_constant else spread_text
    return met(
        "cells-have-intervals",
        f"{variation}; all {number_of(len(cells), 'cell')} have a 95 % interval, {_counts(cells['n'])}.",
        cells=len(cells),
        least_cv=spread.min(),
        greatest_cv=spread.max(),
        least_n=cells["n"].min(),
        most_n=cells["n"].max(),
    )


def check_normality(material: Material) -> Verdict:
    """Check rule 6: normality was tested."""
    data = material.data("checks")
    rows = data[data["assumption"] == "normal residuals"] if "assumption" in data else data
    if rows.empty or rows["test"].iloc[0] == "none":
        cause = rows["verdict"].iloc[0] if len(rows) else "nothing can be checked"
        return not_met(
            "normality-unchecked", f"{cause}; intervals assume that logarithms of epoch times are normal."
        )
    row = rows.iloc[0]
    p = "p < 0.001" if row["p"] < 0.001 else f"p = {row['p']:.3f}"
    return met("normality-checked", f"{row['test']}: {p}; {row['verdict']}.", test=row["test"], p=row["p"])


def check_comparisons(material: Material) -> Verdict:
    """Check rule 7: differences are tested."""
    if not varying(material.runs):
        return not_applicable("no-factor", "no factor varies, so nothing is compared.")
    effects, anova = material.data("effects"), material.data("anova")
    tested, terms = int(column(effects, "p").notna().sum()), int(column(anova, "p").notna().sum())
    if not tested and not terms:
        return not_met("no-test", "no comparison has a test: a test needs two runs of a cell.")
    significant = int((column(effects, "p_holm") < 0.05).sum())
    return met(
        "differences-tested",
        f"{number_of(tested, 'pair')} of cells that differ in one factor are tested (t test on the log "
        f"scale); {significant} of them differ with p < 0.05 after Holm's correction. The analysis of "
        f"variance has {number_of(terms, 'tested term')}.",
        pairs=tested,
        significant=significant,
        terms=terms,
    )


def check_centre(material: Material) -> Verdict:
    """Check rule 8: means are compared with medians."""
    data = material.data("cells")
    replicated = data[column(data, "n") > 2] if len(data) else data
    if material.ok.empty:
        return not_applicable("no-success", "no run succeeded, so there is no mean.")
    if replicated.empty:
        return not_met("too-few-for-median", "no cell has three runs; with two, the median is the mean.")
    mean, median = column(replicated, "epoch_time_s_mean"), column(replicated, "epoch_time_s_median")
    if median.isna().any():
        n_without_median = int(median.isna().sum())
        return not_met(
            "medians-missing",
            f"{n_without_median} of {number_of(len(replicated), 'cell')} have no median.",
            without=n_without_median,
            cells=len(replicated),
        )
    low, high = column(replicated, "epoch_time_s_low"), column(replicated, "epoch_time_s_high")
    outside = replicated["cell"][(median < low) | (median > high)].tolist()
    ok = material.ok
    within_runs = (ok["epoch_time_median_s"] / ok["epoch_time_s"] - 1).abs().max()
    location = (
        f", outside of the mean's interval in {number_of(len(outside), 'cell')}: use the median there"
        if outside
        else ", always within the mean's interval"
    )
    has_several_epochs = (material.runs["epochs"] - material.runs["warmup_epochs"]).max() > 2
    epochs = (
        f"; the median epoch of a run differs from its mean epoch by at most {_share(float(within_runs))}"
        if has_several_epochs and within_runs >= 0
        else ""
    )
    return met(
        "medians-compared",
        f"medians of {number_of(len(replicated), 'cell')} differ from the means by at most "
        f"{_share(_largest_difference(median, mean))}{location}{epochs}.",
        cells=len(replicated),
        share=_largest_difference(median, mean),
        outside=outside,
        within_runs=float(within_runs),
    )


def check_setup(material: Material) -> Verdict:
    """Check rule 9: records describe the setup."""
    runs, ok = material.runs, material.ok
    if ok.empty:
        return not_met("no-success", "no run succeeded, so no record describes the setup.")
    factors = f"{len(varying(runs))} factors vary"
    if not material.study.imported:
        factors += f", and every level of all {len(material.study.factors)} is listed"
    missing = {name: int(ok[name].isna().sum()) for name in SETUP if ok[name].isna().any()}
    missing_texts = [f"{SETUP[name]} ({count} of {len(ok)} runs)" for name, count in missing.items()]
    unnamed = "cpu" in distinct_names(ok, "devices")
    reasons = [
        f"records lack {', '.join(missing_texts)}" if missing_texts else "",
        "records do not name the CPU model" if unnamed else "",
    ]
    if any(reasons):
        text = f"{'; '.join(part for part in reasons if part)}. {factors}."
        return not_met(
            "setup-incomplete", text, without=missing, runs=len(ok), is_processor_named=not unnamed
        )
    text = f"{factors}; all {len(ok)} runs name {', '.join(SETUP.values())}. {kept_order(runs)}"
    return met("setup-listed", text, runs=len(ok), varying=len(varying(runs)))


def check_timing(material: Material) -> Verdict:
    """Check rule 10: recompute the times of runs from their epochs."""
    ok, epochs = material.ok, material.epochs
    if ok.empty:
        return not_applicable("no-success", "no run succeeded, so nothing was timed.")
    timed = epochs[~epochs["warm_up"].astype(bool) & epochs["run_id"].isin(ok["run_id"])]
    recomputed = timed.groupby("run_id")["epoch_time_s"].mean().reindex(ok["run_id"])
    difference = _largest_difference(ok.set_index("run_id")["epoch_time_s"].astype(float), recomputed)
    unscoped = int(ok["timing_scope"].isna().sum())
    untimed = int(recomputed.isna().sum())
    reasons = [
        f"{untimed} of {number_of(len(ok), 'run')} have no timed epochs in epochs.csv" if untimed else "",
        f"times of runs differ by up to {_share(difference)} from the means of their epochs"
        if difference >= EQUALITY_TOLERANCE
        else "",
        f"{number_of(unscoped, 'run')} do not say which clock was read" if unscoped else "",
    ]
    if any(reasons):
        text = f"{'; '.join(part for part in reasons if part)}."
        return not_met(
            "timing-unsound", text, untimed=untimed, share=difference, unscoped=unscoped, runs=len(ok)
        )
    ranks, master = (int((ok["timing_scope"] == scope).sum()) for scope in ("ranks", "master"))
    clocks = [
        f"the slowest rank's in {ranks} runs" if ranks else "",
        f"the master's alone in {master}" if master else "",
    ]
    imbalance = column(ok, "imbalance_s") / ok["epoch_time_s"].astype(float)
    imbalance_text = (
        f" Ranks end at most {_share(float(imbalance.max()))} of an epoch apart."
        if imbalance.notna().any()
        else ""
    )
    warm_up = sorted(set(material.runs["warmup_epochs"]))
    return met(
        "timing-agrees",
        "an epoch lasts from one barrier of all ranks to the next; its time is "
        f"{' and '.join(part for part in clocks if part)}. A run's time is the arithmetic mean of its "
        f"epochs after {' or '.join(map(str, warm_up))} of warm-up: computed again from {len(timed)} "
        f"epochs, all {len(ok)} agree.{imbalance_text}",
        by_ranks=ranks,
        by_master=master,
        epochs=len(timed),
        runs=len(ok),
        imbalance_share=float(imbalance.max()),
    )


def check_bounds(material: Material) -> Verdict:
    """Check rule 11: upper bounds are shown."""
    speedup, network = material.data("speedup"), material.data("network")
    ideal = column(speedup, "efficiency")[column(speedup, "replicas") > 1].dropna()
    shares = column(network, "share").dropna()
    collectives = "collectives" if "collective" in network else "all-reduce"
    if (material.runs["replicas"] <= 1).all():
        return not_applicable(
            "one-replica", "no cell has more than one replica, so there is no ideal speed-up to compare with."
        )
    parts = [
        (
            f"{number_of(len(ideal), 'cell')} reach {number_range(100 * ideal)} % of the ideal speed-up, the "
            "number of replicas"
        )
        if len(ideal)
        else "",
        (
            f"{number_of(len(shares), 'benchmark')} of {collectives} reach {number_range(100 * shares)} % of "
            "the link's rate"
        )
        if len(shares)
        else "",
    ]
    if not any(parts):
        return not_met(
            "no-bound",
            "no speed-up has a baseline, and no collective benchmark has a known link rate, so there is "
            "no bound.",
        )
    text = f"{'; '.join(part for part in parts if part)}."
    return met("bounds-shown", text, cells=len(ideal), benchmarks=len(shares))


def check_plots(material: Material) -> Verdict:
    """Check rule 12: captions state n, and lines join numeric levels only."""
    if material.ok.empty:
        return not_applicable("no-success", "no run succeeded, so figures have nothing to show.")
    silent = [picture.name for picture in material.pictures if not _states_n(picture)]
    if not material.pictures or silent:
        cause = (
            f"captions of {conditions.join_names(silent)} do not say how many runs a marker stands for"
            if silent
            else "there is no figure"
        )
        return not_met("captions-without-n", f"{cause}.", figures=len(material.pictures), without=silent)
    numeric = [title(name) for name in varying(material.runs) if is_treated_as_number(material.runs, name)]
    joined = (
        f"lines join cells only along numeric factors ({', '.join(numeric)})"
        if numeric
        else "no factor is numeric, so no line joins cells"
    )
    return met(
        "captions-have-n",
        f"the captions of all {len(material.pictures)} figures say how many runs a marker stands for; "
        f"{joined}. Each of the {len(material.ok)} successful runs is a point in the chart of runs.",
        figures=len(material.pictures),
        along=numeric,
        runs=len(material.ok),
    )


SPEEDUP, CELLS = ("table-speedup", "table of speed-up"), ("table-cells", "table of cells")
EFFECTS = ("table-effects", "table of effects")
DESIGN, DATA = ("design", "design"), ("data", "data sets")
RULES = [
    Rule(1, "Speed-ups state their baseline and its time", check_speedup_baselines, (SPEEDUP,)),
    Rule(
        2,
        "The report says what was left out, and why",
        check_subsets,
        (DESIGN, ("failures", "failures"), DATA),
    ),
    Rule(3, "Times are averaged arithmetically, rates harmonically", check_means, (CELLS,)),
    Rule(4, "Ratios are computed from means, and are not averaged", check_ratios, (SPEEDUP, EFFECTS)),
    Rule(5, "Results that vary between runs have intervals", check_intervals, (CELLS,)),
    Rule(
        6,
        "Normality is checked before it is assumed",
        check_normality,
        (("table-checks", "table of checks"),),
        {"residuals": "residuals"},
    ),
    Rule(7, "Differences are tested", check_comparisons, (EFFECTS, ("table-anova", "analysis of variance"))),
    Rule(
        8,
        "The mean is compared with the median",
        check_centre,
        (CELLS,),
        {"epoch_time": "every run", "overview": "every run"},
    ),
    Rule(
        9,
        "Factors, levels and the whole setup are listed",
        check_setup,
        (DESIGN, ("environment", "environment and site"), DATA, ("reproduce", "how to reproduce")),
    ),
    Rule(
        10,
        "The report says how epochs are timed and summarized, and the data agree",
        check_timing,
        (("environment", "timing scope"),),
        {"epoch_time": "epoch times", "overview": "epoch times"},
    ),
    Rule(11, "Upper bounds show what was possible", check_bounds, (SPEEDUP,), BOUNDED),
    Rule(
        12,
        "Figures say how many runs they show, and join points only along numbers",
        check_plots,
        (("figures", "figures"), ("runs", "every run")),
    ),
]


def judge_all(material: Material) -> list[tuple[Rule, Verdict]]:
    """Return the verdicts on all twelve rules, in order, with links to the evidence of those that apply."""
    verdicts = [(rule, rule.judge(material)) for rule in RULES]
    return [
        (rule, verdict)
        if verdict.outcome == NOT_APPLICABLE
        else (rule, replace(verdict, links=(*rule.links, *_pictures(material, rule.figures))))
        for rule, verdict in verdicts
    ]


def summary(verdicts: Sequence[tuple[Rule, Verdict]]) -> Note:
    """Return how many of each outcome there are, in a sentence."""
    outcomes = [verdict.outcome for _, verdict in verdicts]
    words = {MET: "met", NOT_MET: "not met", NOT_APPLICABLE: "not applicable to this study"}
    counts = {outcome: outcomes.count(outcome) for outcome in words if outcome in outcomes}
    text = ", ".join(f"{count} {words[outcome]}" for outcome, count in counts.items()) + "."
    return Note("rules-summary", text, counts=counts)


def _states_n(picture: Picture) -> bool:
    return any(conditions.states_run_counts(text) for text in (picture.caption, picture.notes))


def _pictures(material: Material, words_by_kind: Mapping[str, str]) -> Links:
    """Return links to the first figure of each kind that the page has."""
    pictures = ((material.picture_of(kind), words) for kind, words in words_by_kind.items())
    return tuple((f"figure-{name}", f"figure: {words}") for name, words in pictures if name)


def _largest_difference(first: pd.Series, second: pd.Series) -> float:
    """Return the largest relative difference of two columns.

    Infinite if one has a number that the other lacks.
    """
    pairs = pd.concat([first.astype(float), second.astype(float)], axis=1)
    if (pairs.iloc[:, 0].isna() != pairs.iloc[:, 1].isna()).any():
        return float("inf")
    with np.errstate(all="ignore"):
        return float((pairs.iloc[:, 0] / pairs.iloc[:, 1] - 1).abs().fillna(0.0).max()) if len(pairs) else 0.0


def _share(value: float) -> str:
    return (
        f"{number(100 * value, 2)} %" if np.isfinite(value) else "an unknown share (one of them is missing)"
    )


def _counts(n: pd.Series) -> str:
    return f"n\u00a0= {n.min()}" if n.min() == n.max() else f"n\u00a0= {n.min()} to {n.max()}"
