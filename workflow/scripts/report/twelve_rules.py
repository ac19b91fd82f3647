"""The twelve rules of Hoefler & Belli, "Scientific Benchmarking of Parallel Computing Systems" (SC'15), held against this study.

A rule's name is in our words. Whether it is met is computed, here, from runs, tables and captions: nothing is met by being written
down as met. What cannot be computed is not met, with the reason; what the study has no object for does not apply.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis import conditions
from analysis.measured import bases, distinct_names, one_line, title, unsuccessful, varying
from analysis.tables import number
from common.notes import Note
from common.text import number_of
from declared.factors import is_numeric
from report.design import exclusions, kept_order
from report.material import Material, column
from report.setting import drawn

MET, NOT_MET, NOT_APPLICABLE = "met", "not met", "does not apply"
SAME = 1e-9  # relative: two numbers that differ less are the same number
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
BOUNDED = {"by_nodes": "epoch time by nodes", "scaling": "scaling", "network": "the network", "outlook": "the outlook"}
Links = tuple[tuple[str, str], ...]  # where on the page, what it is called


@dataclass(frozen=True)
class Verdict:
    """What a rule came to, with a note that has the numbers, or the reason."""

    outcome: str
    note: Note
    links: Links = ()


@dataclass(frozen=True)
class Rule:
    """A rule with its number and its name in our words."""

    number: int
    name: str
    judge: Callable[[Material], Verdict]


def base_of_speedup(material: Material) -> Verdict:
    """Rule 1."""
    links: Links = (("table-speedup", "table of speed-up"),)
    data = material.data("speedup")
    if (material.runs["replicas"] <= 1).all():
        return Verdict(
            NOT_APPLICABLE, Note("one-replica", "no cell has more than one replica, so there is no speed-up.")
        )
    parallel = data[column(data, "replicas") > 1] if len(data) else data
    if parallel.empty:
        none = Note("no-speedup", "no cell with several replicas has a successful run, so there is no speed-up.")
        return Verdict(NOT_MET, none, links)
    without = int(parallel["base_cell"].isna().sum())
    if without:
        return Verdict(
            NOT_MET,
            Note(
                "bases-missing",
                f"{without} of {number_of(len(parallel), 'cell')} with several replicas have no successful base.",
                without=without,
                cells=len(parallel),
            ),
            links,
        )
    own = int((parallel["base_framework"] == parallel["framework"]).sum())
    undistributed = sorted(set(parallel["base_framework"]) & set(bases(material.runs)))
    others = len(parallel) - own
    kinds = [
        f"{others} an undistributed framework ({', '.join(undistributed)})" if others else "",
        f"{own} the same framework on one replica" if own else "",
    ]
    seconds = column(parallel, "base_epoch_time_s")
    return Verdict(
        MET,
        Note(
            "speedups-have-bases",
            f"{number_of(len(parallel), 'cell')} with several replicas have a base: {', '.join(kind for kind in kinds if kind)}. Each "
            f"base is in the same row, in seconds ({_range(seconds)} s per epoch).",
            cells=len(parallel),
            undistributed=undistributed,
            own=own,
            least_s=seconds.min(),
            greatest_s=seconds.max(),
        ),
        links,
    )


def subsets(material: Material) -> Verdict:
    """Rule 2."""
    study, site = material.study, material.site
    links: Links = (("design", "design"), ("failures", "failures"), ("data", "data sets"))
    excluded, bad = exclusions(study), unsuccessful(material.runs)
    silent = sum(entry.reason is None for entry in excluded)
    unexplained = int((bad["reason"].map(one_line) == "").sum())
    most = max(study.factors["nodes"])
    why = [
        f"the study's file gives no reason for {silent} of {number_of(len(excluded), 'exclusion')}" if silent else "",
        f"{number_of(unexplained, 'run')} without a result have no reason" if unexplained else "",
        f"it uses {most} of the site's {number_of(site.nodes, 'node')}, and a study has no key to say why"
        if site and most < site.nodes
        else "",
        "the site of the runs is not known here, so unused resources cannot be listed" if site is None else "",
    ]
    made_up = [name for name in study.factors["dataset"] if drawn(name)]
    noted = f" Data sets that a program generates, which are no benchmarks: {', '.join(made_up)}." if made_up else ""
    counts = {
        "exclusions": len(excluded),
        "silent_exclusions": silent,
        "unsuccessful": len(bad),
        "unexplained": unexplained,
        "nodes": most,
        "site_nodes": site.nodes if site else None,
        "generated_datasets": made_up,
    }
    if any(why):
        note = Note("unexplained-subset", f"{'; '.join(part for part in why if part)}.{noted}", **counts)
        return Verdict(NOT_MET, note, links)
    reasons = f"{number_of(len(excluded), 'exclusion')}, none without a reason" if excluded else "nothing is excluded"
    lacking = (
        f"{number_of(len(bad), 'run')} without a result, each with its reason" if len(bad) else "no run is missing"
    )
    text = f"{reasons}; {lacking}; all {number_of(most, 'node')} of the site are used.{noted}"
    return Verdict(MET, Note("subset-explained", text, **counts), links)


def means(material: Material) -> Verdict:
    """Rule 3: the means in the table of cells, made again from the runs."""
    links: Links = (("table-cells", "table of cells"),)
    data, ok = material.data("cells"), material.ok
    if ok.empty:
        return Verdict(NOT_APPLICABLE, Note("no-success", "no run succeeded, so there is no mean."))
    if "cell" not in data:
        return Verdict(NOT_MET, Note("no-table", "there is no table of cells."))
    rows = data.set_index("cell")
    times = ok.groupby("cell")["epoch_time_s"].mean()
    rates = 1 / (1 / ok["throughput_samples_s"].astype(float)).groupby(ok["cell"]).mean()
    off = max(
        _apart(column(rows, "epoch_time_s_mean"), times),
        _apart(column(rows, "throughput_samples_s_mean"), rates.dropna()),
    )
    if not off < SAME:
        return Verdict(
            NOT_MET,
            Note(
                "means-differ",
                f"means in the table of cells differ by up to {_share(off)} from means that are computed here from the runs.",
                share=off,
            ),
            links,
        )
    return Verdict(
        MET,
        Note(
            "means-agree",
            f"{len(times)} arithmetic means of epoch time and {len(rates.dropna())} harmonic means of throughput were computed again from the "
            "runs and agree with the table of cells.",
            times=len(times),
            rates=len(rates.dropna()),
        ),
        links,
    )


def ratios(material: Material) -> Verdict:
    """Rule 4: every ratio in tables is one of two means."""
    links: Links = (("table-speedup", "table of speed-up"), ("table-effects", "table of effects"))
    speedup, effects = material.data("speedup"), material.data("effects")
    pairs = [
        (column(speedup, "speedup"), column(speedup, "base_epoch_time_s") / column(speedup, "epoch_time_s")),
        (column(effects, "ratio"), column(effects, "to_s") / column(effects, "from_s")),
    ]
    count = sum(int(shown.notna().sum()) for shown, _ in pairs)
    if not count:
        return Verdict(NOT_APPLICABLE, Note("no-ratio", "the study has no ratio of two measured times."))
    off = max(_apart(shown, made) for shown, made in pairs)
    if not off < SAME:
        return Verdict(
            NOT_MET,
            Note(
                "ratios-differ",
                f"ratios in tables differ by up to {_share(off)} from the quotients of their two means.",
                share=off,
            ),
            links,
        )
    tables = [
        words
        for name, words in (("prediction", "the table of predictions"), ("regression", "that of the regression"))
        if len(material.data(name))
    ]
    errors = (
        f" The only means of ratios are the measures of error, MAPE and bias, in {' and '.join(tables)}."
        if tables
        else ""
    )
    text = f"each of {count} ratios is the quotient of the two mean times in its row.{errors}"
    return Verdict(MET, Note("ratios-of-means", text, ratios=count), links)


def intervals(material: Material) -> Verdict:
    """Rule 5."""
    links: Links = (("table-cells", "table of cells"),)
    cells = material.pooling.cells
    if cells.empty:
        return Verdict(
            NOT_APPLICABLE, Note("no-success", "no run succeeded, so there is no result that needs an interval.")
        )
    without = int(cells["low"].isna().sum())
    if without:
        return Verdict(
            NOT_MET,
            Note(
                "intervals-missing",
                f"{without} of {number_of(len(cells), 'cell')} have no interval, because they have too few runs.",
                without=without,
                cells=len(cells),
            ),
            links,
        )
    spread = cells["cv"].dropna()
    chance = (
        f"runs of a cell differ by {_range(100 * spread)} % (coefficient of variation)"
        if len(spread)
        else "no cell has two runs"
    )
    same = bool(len(spread)) and bool((spread == 0).all())
    differ = "runs of a cell do not differ at all" if same else chance
    return Verdict(
        MET,
        Note(
            "cells-have-intervals",
            f"{differ}; all {number_of(len(cells), 'cell')} have a 95 % interval, {_counts(cells['n'])}.",
            cells=len(cells),
            least_cv=spread.min(),
            greatest_cv=spread.max(),
            least_n=cells["n"].min(),
            most_n=cells["n"].max(),
        ),
        links,
    )


def normality(material: Material) -> Verdict:
    """Rule 6."""
    links: Links = (("table-checks", "table of checks"), *_pictures(material, {"residuals": "residuals"}))
    data = material.data("checks")
    found = data[data["assumption"] == "normal residuals"] if "assumption" in data else data
    if found.empty or found["test"].iloc[0] == "none":
        why = found["verdict"].iloc[0] if len(found) else "nothing can be checked"
        note = Note("normality-unchecked", f"{why}; intervals assume that logarithms of epoch times are normal.")
        return Verdict(NOT_MET, note, links)
    row = found.iloc[0]
    p = "p < 0.001" if row["p"] < 0.001 else f"p = {row['p']:.3f}"
    note = Note("normality-checked", f"{row['test']}: {p}; {row['verdict']}.", test=row["test"], p=row["p"])
    return Verdict(MET, note, links)


def comparisons(material: Material) -> Verdict:
    """Rule 7."""
    links: Links = (("table-effects", "table of effects"), ("table-anova", "analysis of variance"))
    if not varying(material.runs):
        return Verdict(NOT_APPLICABLE, Note("no-factor", "no factor varies, so nothing is compared."))
    effects, anova = material.data("effects"), material.data("anova")
    tested, terms = int(column(effects, "p").notna().sum()), int(column(anova, "p").notna().sum())
    if not tested and not terms:
        note = Note("no-test", "no comparison has a test: a test needs two runs of a cell.")
        return Verdict(NOT_MET, note, links)
    significant = int((column(effects, "p_holm") < 0.05).sum())
    return Verdict(
        MET,
        Note(
            "differences-tested",
            f"{number_of(tested, 'pair')} of cells that differ in one factor are tested (t test on the log scale); {significant} of them "
            f"differ with p < 0.05 after Holm's correction. The analysis of variance has {number_of(terms, 'tested term')}.",
            pairs=tested,
            significant=significant,
            terms=terms,
        ),
        links,
    )


def centre(material: Material) -> Verdict:
    """Rule 8."""
    links: Links = (
        ("table-cells", "table of cells"),
        *_pictures(material, {"epoch_time": "every run", "overview": "every run"}),
    )
    data = material.data("cells")
    several = data[column(data, "n") > 2] if len(data) else data
    if material.ok.empty:
        return Verdict(NOT_APPLICABLE, Note("no-success", "no run succeeded, so there is no mean."))
    if several.empty:
        note = Note("too-few-for-median", "no cell has three runs; with two, the median is the mean.")
        return Verdict(NOT_MET, note, links)
    mean, median = column(several, "epoch_time_s_mean"), column(several, "epoch_time_s_median")
    if median.isna().any():
        without = int(median.isna().sum())
        note = Note(
            "medians-missing",
            f"{without} of {number_of(len(several), 'cell')} have no median.",
            without=without,
            cells=len(several),
        )
        return Verdict(NOT_MET, note, links)
    low, high = column(several, "epoch_time_s_low"), column(several, "epoch_time_s_high")
    outside = several["cell"][(median < low) | (median > high)].tolist()
    ok = material.ok
    within = (ok["epoch_time_median_s"] / ok["epoch_time_s"] - 1).abs().max()
    where = (
        f", outside of the mean's interval in {number_of(len(outside), 'cell')}: use the median there"
        if outside
        else ", always within the mean's interval"
    )
    enough = (material.runs["epochs"] - material.runs["warmup_epochs"]).max() > 2
    epochs = (
        f"; the median epoch of a run differs from its mean epoch by at most {_share(float(within))}"
        if enough and within >= 0
        else ""
    )
    return Verdict(
        MET,
        Note(
            "medians-compared",
            f"medians of {number_of(len(several), 'cell')} differ from the means by at most {_share(_apart(median, mean))}{where}{epochs}.",
            cells=len(several),
            share=_apart(median, mean),
            outside=outside,
            within_runs=float(within),
        ),
        links,
    )


def setup(material: Material) -> Verdict:
    """Rule 9."""
    links: Links = (
        ("design", "design"),
        ("environment", "environment and site"),
        ("data", "data sets"),
        ("reproduce", "how to reproduce"),
    )
    runs, ok = material.runs, material.ok
    if ok.empty:
        return Verdict(NOT_MET, Note("no-success", "no run succeeded, so no record describes the setup."), links)
    factors = f"{len(varying(runs))} factors vary, and every level of all {len(material.study.factors)} is listed"
    without = {name: int(ok[name].isna().sum()) for name in SETUP if ok[name].isna().any()}
    lacking = [f"{SETUP[name]} ({count} of {len(ok)} runs)" for name, count in without.items()]
    unnamed = "cpu" in distinct_names(ok, "devices")
    why = [
        f"records lack {', '.join(lacking)}" if lacking else "",
        "records do not name the model of the processors" if unnamed else "",
    ]
    if any(why):
        text = f"{'; '.join(part for part in why if part)}. {factors}."
        note = Note("setup-incomplete", text, without=without, runs=len(ok), is_processor_named=not unnamed)
        return Verdict(NOT_MET, note, links)
    text = f"{factors}; all {len(ok)} runs name {', '.join(SETUP.values())}. {kept_order(runs)}"
    return Verdict(MET, Note("setup-listed", text, runs=len(ok), varying=len(varying(runs))), links)


def timing(material: Material) -> Verdict:
    """Rule 10: the runs' times, made again from their epochs."""
    links: Links = (
        ("environment", "timing scope"),
        *_pictures(material, {"epoch_time": "epoch times", "overview": "epoch times"}),
    )
    ok, epochs = material.ok, material.epochs
    if ok.empty:
        return Verdict(NOT_APPLICABLE, Note("no-success", "no run succeeded, so nothing was timed."))
    timed = epochs[~epochs["warm_up"].astype(bool) & epochs["run_id"].isin(ok["run_id"])]
    made = timed.groupby("run_id")["epoch_time_s"].mean().reindex(ok["run_id"])
    off = _apart(ok.set_index("run_id")["epoch_time_s"].astype(float), made)
    unscoped = int(ok["timing_scope"].isna().sum())
    untimed = int(made.isna().sum())
    why = [
        f"{untimed} of {number_of(len(ok), 'run')} have no timed epochs in epochs.csv" if untimed else "",
        f"times of runs differ by up to {_share(off)} from the means of their epochs" if off >= SAME else "",
        f"{number_of(unscoped, 'run')} do not say which clock was read" if unscoped else "",
    ]
    if any(why):
        text = f"{'; '.join(part for part in why if part)}."
        note = Note("timing-unsound", text, untimed=untimed, share=off, unscoped=unscoped, runs=len(ok))
        return Verdict(NOT_MET, note, links)
    ranks, master = (int((ok["timing_scope"] == scope).sum()) for scope in ("ranks", "master"))
    whose = [
        f"the slowest rank's in {ranks} runs" if ranks else "",
        f"the master's alone in {master}" if master else "",
    ]
    imbalance = column(ok, "imbalance_s") / ok["epoch_time_s"].astype(float)
    apart = f" Ranks end at most {_share(float(imbalance.max()))} of an epoch apart." if imbalance.notna().any() else ""
    warm = sorted(set(material.runs["warmup_epochs"]))
    return Verdict(
        MET,
        Note(
            "timing-agrees",
            "an epoch lasts from one barrier of all ranks to the next; its time is "
            f"{' and '.join(part for part in whose if part)}. A run's time is the arithmetic mean of its epochs after "
            f"{' or '.join(map(str, warm))} of warm-up: computed again from {len(timed)} epochs, all {len(ok)} agree.{apart}",
            by_ranks=ranks,
            by_master=master,
            epochs=len(timed),
            runs=len(ok),
            imbalance_share=float(imbalance.max()),
        ),
        links,
    )


def bounds(material: Material) -> Verdict:
    """Rule 11."""
    links: Links = (("table-speedup", "table of speed-up"), *_pictures(material, BOUNDED))
    speedup, network = material.data("speedup"), material.data("network")
    ideal = column(speedup, "efficiency")[column(speedup, "replicas") > 1].dropna()
    shares = column(network, "share").dropna()
    what = "collectives" if "collective" in network else "all-reduce"
    if (material.runs["replicas"] <= 1).all():
        return Verdict(
            NOT_APPLICABLE,
            Note("one-replica", "no cell has more than one replica, so there is no ideal speed-up to compare with."),
        )
    parts = [
        f"{number_of(len(ideal), 'cell')} reach {_range(100 * ideal)} % of the ideal speed-up, the number of replicas"
        if len(ideal)
        else "",
        f"{number_of(len(shares), 'sweep')} of {what} reach {_range(100 * shares)} % of the link's rate"
        if len(shares)
        else "",
    ]
    if not any(parts):
        note = Note("no-bound", "no speed-up has a base, and no sweep has the rate of its link, so there is no bound.")
        return Verdict(NOT_MET, note, links)
    text = f"{'; '.join(part for part in parts if part)}."
    return Verdict(MET, Note("bounds-shown", text, cells=len(ideal), sweeps=len(shares)), links)


def plots(material: Material) -> Verdict:
    """Rule 12: what captions say, and which factors lines run along."""
    links: Links = (("figures", "figures"), ("runs", "every run"))
    if material.ok.empty:
        return Verdict(NOT_APPLICABLE, Note("no-success", "no run succeeded, so figures have nothing to show."))
    silent = [picture.name for picture in material.pictures if not _says_n(picture.caption)]
    if not material.pictures or silent:
        why = (
            f"captions of {conditions.join_names(silent)} do not say how many runs a marker stands for"
            if silent
            else "there is no figure"
        )
        note = Note("captions-without-n", f"{why}.", figures=len(material.pictures), without=silent)
        return Verdict(NOT_MET, note, links)
    along = [title(name) for name in varying(material.runs) if is_numeric(name)]
    joined = (
        f"lines join cells only along numeric factors ({', '.join(along)})"
        if along
        else "no factor is numeric, so no line joins cells"
    )
    return Verdict(
        MET,
        Note(
            "captions-have-n",
            f"the captions of all {len(material.pictures)} figures say how many runs a marker stands for; {joined}. Each of the "
            f"{len(material.ok)} successful runs is a point in the chart of runs.",
            figures=len(material.pictures),
            along=along,
            runs=len(material.ok),
        ),
        links,
    )


RULES = [
    Rule(1, "Speed-ups state their base and its time", base_of_speedup),
    Rule(2, "The report says what was left out, and why", subsets),
    Rule(3, "Times are averaged arithmetically, rates harmonically", means),
    Rule(4, "Ratios are computed from means, and are not averaged", ratios),
    Rule(5, "Results that vary between runs have intervals", intervals),
    Rule(6, "Normality is checked before it is assumed", normality),
    Rule(7, "Differences are tested", comparisons),
    Rule(8, "The mean is compared with the median", centre),
    Rule(9, "Factors, levels and the whole setup are listed", setup),
    Rule(10, "The report says how epochs are timed and summarized, and the data agree", timing),
    Rule(11, "Upper bounds show what was possible", bounds),
    Rule(12, "Figures say how many runs they show, and join points only along numbers", plots),
]


def judged(material: Material) -> list[tuple[Rule, Verdict]]:
    """All twelve, in order."""
    return [(rule, rule.judge(material)) for rule in RULES]


def summary(verdicts: Sequence[tuple[Rule, Verdict]]) -> Note:
    """Return how many of each outcome there are, in a sentence."""
    outcomes = [verdict.outcome for _, verdict in verdicts]
    words = {MET: "met", NOT_MET: "not met", NOT_APPLICABLE: "not applicable to this study"}
    counts = {outcome: outcomes.count(outcome) for outcome in words if outcome in outcomes}
    text = ", ".join(f"{count} {words[outcome]}" for outcome, count in counts.items()) + "."
    return Note("rules-summary", text, counts=counts)


def _says_n(caption: str) -> bool:
    return any(said in caption for said in ("n = ", conditions.NO_SUCCESS, conditions.NO_RUN_YET))


def _pictures(material: Material, wanted: dict[str, str]) -> Links:
    """Links to the first figure of each kind that the page has."""
    found = ((material.picture_of(kind), words) for kind, words in wanted.items())
    return tuple((f"figure-{name}", f"figure: {words}") for name, words in found if name)


def _apart(one: pd.Series, other: pd.Series) -> float:
    """The largest relative difference of two columns; infinite where one has a number that the other lacks."""
    both = pd.concat([one.astype(float), other.astype(float)], axis=1)
    if (both.iloc[:, 0].isna() != both.iloc[:, 1].isna()).any():
        return float("inf")
    with np.errstate(all="ignore"):
        return float((both.iloc[:, 0] / both.iloc[:, 1] - 1).abs().fillna(0.0).max()) if len(both) else 0.0


def _share(value: float) -> str:
    return f"{number(100 * value, 2)} %" if np.isfinite(value) else "an unknown share (one of them is missing)"


def _range(values: pd.Series) -> str:
    low, high = number(float(values.min())), number(float(values.max()))
    return low if low == high else f"{low} to {high}"


def _counts(n: pd.Series) -> str:
    return f"n\u00a0= {n.min()}" if n.min() == n.max() else f"n\u00a0= {n.min()} to {n.max()}"
