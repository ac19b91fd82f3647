"""Check a study against the twelve rules of Hoefler & Belli, "Scientific Benchmarking" (SC'15).

The names of rules are ours. Each verdict is computed from runs, tables and captions. A rule that cannot be
checked is not met, with the reason. A rule about something that the study does not have does not apply.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis import conditions
from analysis.intervals import SIGNIFICANCE_LEVEL, p_text
from analysis.level_words import title
from analysis.records import distinct_names, one_line, unsuccessful, varying
from analysis.tables import number
from analysis.terms import is_treated_as_number
from common.notes import Note
from common.run_status import RunStatus
from common.text import number_of
from declared.factors import SIZE_FACTORS
from report.design import exclusions, kept_order
from report.material import Material, Picture, column
from report.site_and_software import is_generated, number_range

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
Links = tuple[tuple[str, str], ...]  # anchor on the page, words


@dataclass(frozen=True)
class Verdict:
    """The outcome of a rule, with a note on the numbers or the reason, and links to the evidence."""

    outcome: str
    note: Note
    links: Links = ()


def met(code: str, text: str, **facts: Any) -> Verdict:
    """Return the verdict that a rule is met."""
    return Verdict(MET, Note(code, text, **facts))


def not_met(code: str, text: str, **facts: Any) -> Verdict:
    """Return the verdict that a rule is not met, with the reason."""
    return Verdict(NOT_MET, Note(code, text, **facts))


def not_applicable(code: str, text: str) -> Verdict:
    """Return the verdict that a rule does not apply, with the reason."""
    return Verdict(NOT_APPLICABLE, Note(code, text))


@dataclass(frozen=True)
class FigureLink:
    """A link to the first figure of a kind.

    Attributes:
        kind: The kind.
        words: The words of the link.
        x: Allowed values of x; empty to allow all.
    """

    kind: str
    words: str
    x: Sequence[str] = ()


@dataclass(frozen=True)
class Rule:
    """One of the twelve rules, and its check.

    Attributes:
        number: Its number in Hoefler & Belli.
        name: Its name in our words.
        judge: Its check.
        links: Links to tables and sections that are evidence.
        figures: Figures that are evidence.
        needs_result: Whether it applies only if a run succeeded.
    """

    number: int
    name: str
    judge: Callable[[Material], Verdict]
    links: Links = ()
    figures: Sequence[FigureLink] = ()
    needs_result: bool = True


def check_speedup_baselines(material: Material) -> Verdict:
    """Check rule 1: speed-ups state their baseline."""
    data = material.data("speedup")
    if (material.runs["n_devices"] <= 1).all():
        return not_applicable("one-replica", "no cell has more than one device, so there is no speed-up.")
    parallel = data[column(data, "n_devices") > 1] if len(data) else data
    if parallel.empty:
        return not_met("no-speedup", "no cell with several devices has a successful run and a baseline.")
    n_missing, n_cells = int(parallel["baseline_cell"].isna().sum()), len(parallel)
    if n_missing:
        text = f"{n_missing} of {number_of(n_cells, 'cell')} with several devices have no baseline."
        return not_met("baselines-missing", text, without=n_missing, cells=n_cells)
    text = (
        f"{number_of(n_cells, 'cell')} with several devices have a baseline, which is in the same row, in "
        f"seconds ({number_range(column(parallel, 'baseline_epoch_time_s'))} s per epoch)."
    )
    return met("speedups-have-baselines", text, cells=n_cells)


def check_subsets(material: Material) -> Verdict:
    """Check rule 2: exclusions, failed runs and unused nodes are explained."""
    study, site = material.study, material.site
    if study.imported:
        return not_met("subset-unknown", "what the source measured and left out is not known.")
    excluded, failed = exclusions(study), unsuccessful(material.runs)
    failed = failed[failed["status"] != RunStatus.OOM]
    counts = {
        "exclusions": len(excluded),
        "silent_exclusions": sum(entry.reason is None for entry in excluded),
        "unexplained": int((failed["reason"].map(one_line) == "").sum()),
        "repeated": int((material.runs["attempt"] > 1).sum()),
        "nodes": max(study.factors["nodes"]),
        "site_nodes": site.nodes if site else None,
    }
    exclusions_text, failed_text = number_of(len(excluded), "exclusion"), number_of(len(failed), "run")
    generated = ", ".join(name for name in study.factors["dataset"] if is_generated(name))
    noted = f" Data sets that a program generates, which are no benchmarks: {generated}." * bool(generated)
    reasons = []
    if counts["silent_exclusions"]:
        reasons.append(f"the study gives no reason for {counts['silent_exclusions']} of {exclusions_text}")
    if counts["unexplained"]:
        reasons.append(f"{number_of(counts['unexplained'], 'run')} without a result have no reason")
    if counts["repeated"]:
        text = f"why {number_of(counts['repeated'], 'run')} had to be repeated is not in the records"
        reasons.append(text)
    if site is None:
        reasons.append("the site of the runs is not known here, so unused resources cannot be listed")
    elif counts["nodes"] < site.nodes:
        reasons.append(f"the study uses {counts['nodes']} of the site's {number_of(site.nodes, 'node')}")
    if reasons:
        return not_met("unexplained-subset", f"{'; '.join(reasons)}.{noted}", **counts)
    text = (
        f"{exclusions_text} and {failed_text} without a result, each with its reason; all nodes of the site "
        f"are used ({counts['nodes']}).{noted}"
    )
    return met("subset-explained", text, **counts)


def check_means(material: Material) -> Verdict:
    """Check rule 3: the means in the table of cells equal means of the runs."""
    data, ok = material.data("cells"), material.ok
    if "cell" not in data:
        return not_met("no-table", "there is no table of cells.")
    rows = data.set_index("cell")
    times = ok.groupby("cell")["epoch_time_s"].mean()
    rates = (1 / (1 / ok["throughput_samples_s"].astype(float)).groupby(ok["cell"]).mean()).dropna()
    difference = max(
        _largest_difference(column(rows, "epoch_time_s_mean"), times),
        _largest_difference(column(rows, "throughput_samples_s_mean"), rates),
    )
    if not difference < EQUALITY_TOLERANCE:
        text = f"means in the table of cells differ by up to {_share(difference)} from means of the runs."
        return not_met("means-differ", text, share=difference)
    text = (
        f"{len(times)} arithmetic means of epoch time and {len(rates)} harmonic means of throughput were "
        "computed again from the runs and agree with the table of cells."
    )
    return met("means-agree", text, times=len(times), rates=len(rates))


def check_ratios(material: Material) -> Verdict:
    """Check rule 4: every ratio in tables is the quotient of two means."""
    speedup, effects = material.data("speedup"), material.data("effects")
    quotient = column(speedup, "baseline_epoch_time_s") / column(speedup, "epoch_time_s")
    pairs = [
        (column(speedup, "speedup"), quotient),
        (column(effects, "ratio"), column(effects, "to_s") / column(effects, "from_s")),
    ]
    count = sum(int(in_table.notna().sum()) for in_table, _ in pairs)
    if not count:
        return not_applicable("no-ratio", "the study has no ratio of two measured times.")
    difference = max(_largest_difference(in_table, recomputed) for in_table, recomputed in pairs)
    if not difference < EQUALITY_TOLERANCE:
        text = (
            f"ratios in tables differ by up to {_share(difference)} from the quotients of their two means, "
            "because cells are compared over the blocks in which both have a run."
        )
        return not_met("ratios-differ", text, share=difference)
    text = f"each of {count} ratios is the quotient of the two mean times in its row."
    return met("ratios-of-means", text, ratios=count)


def check_intervals(material: Material) -> Verdict:
    """Check rule 5: results have intervals."""
    cells = material.cell_means.cell_statistics
    n_missing, n_cells = int(cells["low"].isna().sum()), len(cells)
    if n_missing:
        text = f"{n_missing} of {number_of(n_cells, 'cell')} have no interval, as they have too few runs."
        return not_met("intervals-missing", text, without=n_missing, cells=n_cells)
    spread, n = cells["cv"].dropna(), cells["n"]
    variation = f"runs of a cell differ by {number_range(100 * spread)} % (coefficient of variation); "
    text = (
        f"{variation * bool(len(spread))}all {number_of(n_cells, 'cell')} have a 95 % interval, "
        f"n\u00a0= {' to '.join(map(str, sorted({n.min(), n.max()})))}."
    )
    return met("cells-have-intervals", text, cells=n_cells)


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
    text = f"{row['test']}: {p_text(row['p'])}; {row['verdict']}."
    return met("normality-checked", text, test=row["test"], p=row["p"])


def check_comparisons(material: Material) -> Verdict:
    """Check rule 7: differences are tested."""
    if not varying(material.runs):
        return not_applicable("no-factor", "no factor varies, so nothing is compared.")
    effects, anova = material.data("effects"), material.data("anova")
    tested, terms = int(column(effects, "p").notna().sum()), int(column(anova, "p").notna().sum())
    if not tested and not terms:
        return not_met("no-test", "no comparison has a test: a test needs two runs of a cell.")
    significant = int((column(effects, "p_holm") < SIGNIFICANCE_LEVEL).sum())
    text = (
        f"{number_of(tested, 'pair')} of cells that differ in one factor are tested (t test on the log "
        f"scale); {significant} of them differ with p < 0.05 after Holm's correction. The analysis of "
        f"variance has {number_of(terms, 'tested term')}."
    )
    return met("differences-tested", text, pairs=tested, significant=significant, terms=terms)


def check_centre(material: Material) -> Verdict:
    """Check rule 8: means are compared with medians."""
    data = material.data("cells")
    replicated = data[column(data, "n") > 2] if len(data) else data
    if replicated.empty:
        return not_met("too-few-for-median", "no cell has three runs; with two, the median is the mean.")
    mean, median = column(replicated, "epoch_time_s_mean"), column(replicated, "epoch_time_s_median")
    low, high = column(replicated, "epoch_time_s_low"), column(replicated, "epoch_time_s_high")
    outside = replicated["cell"][(median < low) | (median > high)].tolist()
    location = "always within the mean's interval"
    if outside:
        location = (
            f"outside of the mean's interval in {number_of(len(outside), 'cell')}: use the median there"
        )
    share, cells = _largest_difference(median, mean), number_of(len(replicated), "cell")
    text = f"medians of {cells} differ from the means by at most {_share(share)}, {location}."
    return met("medians-compared", text, cells=len(replicated), share=share, outside=outside)


def check_setup(material: Material) -> Verdict:
    """Check rule 9: records describe the setup."""
    runs, ok = material.runs, material.ok
    if ok.empty:
        return not_met("no-success", "no run succeeded, so no record describes the setup.")
    factors = f"{len(varying(runs))} factors vary"
    missing = {name: int(ok[name].isna().sum()) for name in SETUP if ok[name].isna().any()}
    missing_texts = [f"{SETUP[name]} ({count} of {len(ok)} runs)" for name, count in missing.items()]
    if unnamed := "cpu" in distinct_names(ok, "devices"):
        missing_texts.append("the CPU model")
    if missing_texts:
        text = f"records lack {', '.join(missing_texts)}. {factors}."
        return not_met(
            "setup-incomplete", text, without=missing, runs=len(ok), is_processor_named=not unnamed
        )
    text = f"{factors}; all {len(ok)} runs name {', '.join(SETUP.values())}. {kept_order(runs)}"
    return met("setup-listed", text, runs=len(ok), varying=len(varying(runs)))


def check_timing(material: Material) -> Verdict:
    """Check rule 10: the times of runs are the means of their timed epochs."""
    ok, epochs = material.ok, material.epochs
    timed = epochs[~epochs["warm_up"].astype(bool) & epochs["run_id"].isin(ok["run_id"])]
    recomputed = timed.groupby("run_id")["epoch_time_s"].mean().reindex(ok["run_id"])
    share = _largest_difference(ok.set_index("run_id")["epoch_time_s"].astype(float), recomputed)
    untimed, unscoped = int(recomputed.isna().sum()), int(ok["timing_scope"].isna().sum())
    reasons = []
    if untimed:
        reasons.append(f"{untimed} of {number_of(len(ok), 'run')} have no epochs in epochs.csv")
    if share >= EQUALITY_TOLERANCE:
        reasons.append(f"times of runs differ by up to {_share(share)} from means of their epochs")
    if unscoped:
        reasons.append(f"{number_of(unscoped, 'run')} do not say which clock was read")
    if reasons:
        facts = {"untimed": untimed, "share": share, "unscoped": unscoped}
        return not_met("timing-unsound", f"{'; '.join(reasons)}.", **facts)
    n_by_master = int((ok["timing_scope"] == "master").sum())
    text = (
        "an epoch lasts from one barrier of all ranks to the next; its time is the slowest rank's"
        f"{f', in {n_by_master} runs the time of the master alone' * bool(n_by_master)}. Times of runs are "
        f"arithmetic means of their epochs without warm-up: computed again from {len(timed)} epochs, all "
        f"{len(ok)} agree."
    )
    return met("timing-agrees", text, epochs=len(timed), runs=len(ok))


def check_bounds(material: Material) -> Verdict:
    """Check rule 11: upper bounds are shown."""
    speedup, network = material.data("speedup"), material.data("network")
    ideal = column(speedup, "efficiency")[column(speedup, "n_devices") > 1].dropna()
    shares = column(network, "share").dropna()
    if (material.runs["n_devices"] <= 1).all():
        return not_applicable("one-replica", "no cell has more than one device, so there is no speed-up.")
    parts = []
    if len(ideal):
        parts.append(f"{number_of(len(ideal), 'cell')} reach {number_range(100 * ideal)} % of ideal speed-up")
    if len(shares):
        benchmarks = number_of(len(shares), "benchmark")
        parts.append(f"{benchmarks} of collectives reach {number_range(100 * shares)} % of the link's rate")
    if not parts:
        text = "no speed-up has a baseline, and no collective benchmark has a known link rate."
        return not_met("no-bound", text)
    return met("bounds-shown", f"{'; '.join(parts)}.", cells=len(ideal), benchmarks=len(shares))


def check_plots(material: Material) -> Verdict:
    """Check rule 12: captions state the number of runs; all figures join numeric levels only."""
    n_figures = len(material.pictures)
    silent = [picture.name for picture in material.pictures if not _states_n(picture)]
    if not n_figures or silent:
        text = "there is no figure."
        if silent:
            names = conditions.join_names(silent)
            text = f"the captions of the figures {names} do not say how many runs a marker stands for."
        return not_met("captions-without-n", text, figures=n_figures, without=silent)
    numeric = [title(name) for name in varying(material.runs) if is_treated_as_number(material.runs, name)]
    text = (
        f"the captions of all {n_figures} figures say how many runs a marker stands for; lines join cells "
        f"only along numeric factors ({', '.join(numeric) or 'none'})."
    )
    return met("captions-have-n", text, figures=n_figures, along=numeric)


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
        needs_result=False,
    ),
    Rule(3, "Times are averaged arithmetically, rates harmonically", check_means, (CELLS,)),
    Rule(4, "Ratios are computed from means, and are not averaged", check_ratios, (SPEEDUP, EFFECTS)),
    Rule(5, "Results that vary between runs have intervals", check_intervals, (CELLS,)),
    Rule(
        6,
        "Normality is checked before it is assumed",
        check_normality,
        (("table-checks", "table of checks"),),
        (FigureLink("residuals", "residuals"),),
    ),
    Rule(7, "Differences are tested", check_comparisons, (EFFECTS, ("table-anova", "analysis of variance"))),
    Rule(
        8,
        "The mean is compared with the median",
        check_centre,
        (CELLS,),
        (FigureLink("overview", "every run"),),
    ),
    Rule(
        9,
        "Factors, levels and the whole setup are listed",
        check_setup,
        (DESIGN, ("environment", "environment and site"), DATA, ("reproduce", "how to reproduce")),
        needs_result=False,
    ),
    Rule(
        10,
        "The report says how epochs are timed and summarized, and the data agree",
        check_timing,
        (("environment", "timing scope"),),
        (FigureLink("overview", "epoch times"),),
    ),
    Rule(
        11,
        "Upper bounds show what was possible",
        check_bounds,
        (SPEEDUP,),
        (
            FigureLink("by_factor", "by nodes or devices", x=SIZE_FACTORS),
            FigureLink("scaling", "scaling"),
            FigureLink("network", "the network"),
            FigureLink("projection", "scaling projection"),
        ),
    ),
    Rule(
        12,
        "Figures say how many runs they show, and join points only along numbers",
        check_plots,
        (("figures", "figures"), ("runs", "every run")),
    ),
]


NO_RESULT = not_applicable("no-success", "no run succeeded, so there is nothing to check.")


def judge_all(material: Material) -> list[tuple[Rule, Verdict]]:
    """Return the verdicts on all twelve rules, in order; those that apply have links to the evidence."""
    verdicts = []
    for rule in RULES:
        verdict = NO_RESULT if material.ok.empty and rule.needs_result else rule.judge(material)
        if verdict.outcome != NOT_APPLICABLE:
            verdict = replace(verdict, links=(*rule.links, *_figure_links(material, rule.figures)))
        verdicts.append((rule, verdict))
    return verdicts


def summary(verdicts: Sequence[tuple[Rule, Verdict]]) -> Note:
    """Return a sentence with the number of rules of each outcome."""
    outcomes = [verdict.outcome for _, verdict in verdicts]
    words = {MET: "met", NOT_MET: "not met", NOT_APPLICABLE: "not applicable to this study"}
    counts = {outcome: outcomes.count(outcome) for outcome in words if outcome in outcomes}
    text = ", ".join(f"{count} {words[outcome]}" for outcome, count in counts.items()) + "."
    return Note("rules-summary", text, counts=counts)


def _states_n(picture: Picture) -> bool:
    return any(conditions.states_run_counts(text) for text in (picture.caption, picture.endnotes))


def _figure_links(material: Material, figures: Sequence[FigureLink]) -> Links:
    """Return links to the figures that the page has."""
    pictures = ((material.picture_of(figure.kind, figure.x), figure.words) for figure in figures)
    return tuple((f"figure-{name}", f"figure: {words}") for name, words in pictures if name)


def _largest_difference(first: pd.Series, second: pd.Series) -> float:
    """Return the largest relative difference of two columns; inf if a number is in one of them only."""
    pairs = pd.concat([first.astype(float), second.astype(float)], axis=1)
    if (pairs.iloc[:, 0].isna() != pairs.iloc[:, 1].isna()).any():
        return float("inf")
    with np.errstate(all="ignore"):
        return float((pairs.iloc[:, 0] / pairs.iloc[:, 1] - 1).abs().fillna(0.0).max()) if len(pairs) else 0.0


def _share(value: float) -> str:
    return (
        f"{number(100 * value, 2)} %" if np.isfinite(value) else "an unknown share (one of them is missing)"
    )
