"""Write notes on the runs behind a figure or table: short for captions, complete for the methods note."""

import math
import re
from collections.abc import Collection, Iterable, Sequence

import pandas as pd

from analysis.cell_means import MIN_SHARED_BLOCKS, VariancePrior, estimate_means
from analysis.level_words import OUT_OF_MEMORY_MARK, combination_text, title
from analysis.records import (
    are_times_to_train,
    measured_elsewhere,
    missing_cells,
    out_of_memory_cells,
    successful,
    traced,
    unsuccessful,
)
from common.notes import Note
from common.run_status import NO_RECORD_STATUSES
from common.text import number_of
from common.units import LINK_RATES, Unit, in_one_unit
from declared.factors import LARGEST, UNTRACED, factor_names, factor_rules
from declared.frameworks import framework_notes, has_own_algorithm, is_registered
from declared.mesh import exceeds_data_parallelism, unused_options
from declared.user_models import is_user_model
from runs import usable

MAX_LISTED_NAMES = 10
SITE_DEFAULTS = {"devices_per_node": 0, "device": "site", "bandwidth": 0}  # Levels that defer to the site.
NOTABLE_OTHER_SHARE = 0.05  # CPU time of other processes during a run that is worth a note, as a share.
NOTABLE_STEAL_SHARE = 0.05
# Differences of step times, as shares, in MLPerf Training v4.0 to v5.1 (mlcommons/training_results_v5.1 and
# earlier): between sites with nominally the same GPUs, batch and round, and standard deviation within a cell.
SITES_APART, RUNS_APART = 0.017, 0.0014
NO_SUCCESS = Note("no-successful-run", "No run of the study succeeded.")
NO_RUN_YET = Note("no-run-yet", "These cells have no run yet.")
CORES = (Unit(1.0, "core"),)
PER_CELL = "per cell"
RUN_COUNTS = re.compile(rf"\d runs? {PER_CELL}\b|\bn[ \u00a0]= \d")
ALL_TRACED = Note("all-runs-traced", "All runs were traced, which takes time itself.")
ELSEWHERE = "Measured elsewhere"
TO_TARGET = " (epoch time is the time to train to a target)"
ELSEWHERE_EXPLAINED = Note(
    "measured-elsewhere-explained",
    "All runs were measured elsewhere, and their numbers were imported. Ringside neither planned nor checked "
    "them. They have no random order and no blocks, so cells are compared as independent groups. The order "
    "of the runs, other programs on the machines, code and environment are unknown.",
)
SHARED_INTERFACE = Note(
    "shared-interface",
    "Nodes are emulated and share one interface: bytes sent are those of all nodes and of other programs.",
)
TWO_RUNS = (
    "Two runs give very wide intervals: 12.7 standard errors to each side of the mean (five runs: 2.8)."
)
_PLACEMENTS = {
    "distinct-nodes": "each node is a separate machine",
    "virtual": "nodes belong to a virtual cluster on one machine",
    "emulated": "nodes are groups of processes on one machine, so times say nothing about a real network",
}
_SHORT_PLACEMENTS = {
    "distinct-nodes": "separate machines",
    "virtual": "a virtual cluster on one machine",
    "emulated": "processes on one machine",
}
_SHORT_BATCH_SCOPES = {"local": "per replica", "global": "totals over all replicas"}
_SHORT_TIMING_SCOPES = {"ranks": "the slowest rank", "master": "the master"}
_BATCH_SCOPES = {
    "local": "local batch (fixed per replica: the effective batch grows with the replicas)",
    "global": "global batch (fixed in total)",
}


def paragraph(code: str, sentences: Iterable[str]) -> Note:
    """Join sentences into one note and leave out empty ones; its fact `notes` lists them."""
    notes = [sentence for sentence in sentences if sentence]
    return Note(code, " ".join(notes), notes=notes)


def methods_notes(runs: pd.DataFrame, within_blocks: pd.Series) -> list[str]:
    """Return the paragraphs of the study's methods note, with everything that captions shorten or omit.

    Args:
        runs: All runs of the study.
        within_blocks: For each compared pair of cells, as in `contrasts_note`.
    """
    paragraphs = [
        ELSEWHERE_EXPLAINED if measured_elsewhere(runs) else "",
        replicates_note(runs),
        contrasts_note(runs, within_blocks),
        circumstances_note(runs),
        work_note(runs) if runs["nodes"].nunique() > 1 else "",
        paragraph("shortfall", _missing_notes(runs)),
        constants_note(runs),
    ]
    return [sentences for sentences in paragraphs if sentences]


def usable_runs_note(runs: pd.DataFrame) -> Note:
    """Say how many runs are usable, why the others are not, and how many were repeated.

    Returns:
        A note with the facts of `runs.usable.usable_runs_note`, and `repeated`: usable runs that are not the
        first attempt.
    """
    reasons = runs["reason"].astype(object).where(runs["reason"].notna(), None)
    note = usable.usable_runs_note(zip(runs["status"], reasons, strict=True))
    repeated = int((successful(runs)["attempt"] > 1).sum())
    text = f"; {repeated} of them {'was' if repeated == 1 else 'were'} repeated" if repeated else ""
    return Note(note.code, f"{note}{text}.", **note.facts, repeated=repeated)


def device_count_note(runs: pd.DataFrame) -> str:
    """Say what counts as a device if some cell uses model parallelism; else return ""."""
    layouts = runs[["parallelism", "ranks"]].drop_duplicates().itertuples(index=False, name=None)
    if not any(exceeds_data_parallelism(level, int(ranks)) for level, ranks in layouts):
        return ""
    return Note(
        "replicas-are-devices",
        "Devices are counted, not copies of the model: each rank with a part of the model is one.",
    )


def states_run_counts(caption: str) -> bool:
    """Return whether a caption has the sentence of `run_counts_note`, or counts what else it shows as n."""
    return bool(RUN_COUNTS.search(caption)) or any(note in caption for note in (NO_SUCCESS, NO_RUN_YET))


def run_counts_note(runs: pd.DataFrame, intervals: bool = True, counted: pd.Series | None = None) -> str:
    """Say how many runs a cell has.

    Args:
        runs: Runs of the study.
        intervals: Also say if no cell has enough runs for an interval.
        counted: Runs per cell, if not all successful runs count.
    """
    counts = successful(runs).groupby("cell").size() if counted is None else counted
    if counts.empty:
        return _no_runs_note(runs)
    smallest, largest = int(counts.min()), int(counts.max())
    span = f"{largest}" if smallest == largest else f"{smallest} to {largest}"
    too_few = bool(intervals and largest == 1)
    problem = ", too few for an interval" if too_few else ""
    text = f"{span} {'run' if largest == 1 else 'runs'} {PER_CELL}{problem}."
    return Note("runs-per-cell", text, fewest=smallest, most=largest, too_few=too_few)


def _no_runs_note(runs: pd.DataFrame) -> Note:
    """Return the note for cells without successful runs, or without any run yet."""
    return NO_RUN_YET if len(runs) and runs["status"].isin(NO_RECORD_STATUSES).all() else NO_SUCCESS


def measurement_note(runs: pd.DataFrame) -> Note:
    """Say briefly how runs were measured, what restricts all of them, and how many are missing.

    `methods_notes` says the same in full, with software, background load and CPU steal.
    """
    ok = successful(runs)
    notes = [
        _scopes_note(runs, ok),
        largest_batches_note(runs),
        user_models_note(runs),
        algorithms_note(runs),
        unchecked_algorithms_note(runs),
        ALL_TRACED if len(ok) and len(traced(ok)) == len(ok) else "",
    ]
    if ok["oversubscribed"].eq(True).any():
        notes.append(Note("oversubscribed", "Some cells have more threads than cores."))
    return paragraph("setting", [*notes, *_missing_notes(runs)])


def largest_batches_note(runs: pd.DataFrame) -> str:
    """Name the batch sizes behind the level `largest`, by framework; "" if no cell trained with it."""
    ok = successful(runs)
    cells = ok[ok["batch_size"] == LARGEST].drop_duplicates("cell")
    ends = cells.groupby("framework")["local_batch"].agg(["min", "max"]).astype(int)
    if ends.empty:
        return ""
    sizes = [
        f"{framework} {' to '.join(dict.fromkeys(map(str, (low, high))))}"
        for framework, low, high in ends.itertuples()
    ]
    facts = {framework: [low, high] for framework, low, high in ends.itertuples()}
    return Note("largest-batches", f"Largest batch that fits: {', '.join(sizes)}.", sizes=facts)


def load_note(runs: pd.DataFrame) -> str:
    """Say how much CPU time other processes used during a run; "" up to NOTABLE_OTHER_SHARE."""
    share = float(successful(runs)["other_cpu_share"].max())
    text = f"Other processes used up to {100 * share:.0f} % of CPU time in runs that count."
    return Note("notable-load", text, share=share) if share > NOTABLE_OTHER_SHARE else ""


def placement_note(rows: pd.DataFrame) -> str:
    """Say what nodes are in rows of runs or benchmarks that succeeded; "" if no row says it."""
    placements = sorted(set(rows["placement"].dropna()))
    places = " or ".join(_SHORT_PLACEMENTS[name] for name in placements)
    return Note("placement", f"Nodes are {places}.", placements=placements) if placements else ""


def _scopes_note(runs: pd.DataFrame, ok: pd.DataFrame) -> str:
    """Say what nodes are and, if readers need it, what batch sizes and times refer to.

    Batch sizes are explained unless they are per replica, times unless they are those of the slowest rank.
    Returns "" if no run succeeded. The text begins with ELSEWHERE if runs were measured elsewhere.
    """
    placements, timing = (sorted(set(ok[name].dropna())) for name in ("placement", "timing_scope"))
    is_elsewhere = len(ok) > 0 and measured_elsewhere(runs)
    origin = f"{ELSEWHERE}{TO_TARGET * are_times_to_train(runs)}." if is_elsewhere else ""
    if not placements:
        return Note("scopes", origin, elsewhere=True) if origin else ""
    batches = sorted(set(runs["batch_scope"].dropna()), reverse=True)
    places = " or ".join(_SHORT_PLACEMENTS[name] for name in placements)
    sizes = " or ".join(_SHORT_BATCH_SCOPES[name] for name in reversed(batches))
    clocks = " or ".join(_SHORT_TIMING_SCOPES[name] for name in reversed(timing))
    sentences = [
        origin,
        f"Nodes are {places}{_node_limits(ok)}.",
        f"Batch sizes are {sizes}." if sizes and batches != ["local"] else "",
        f"Times are those of {clocks}." if clocks and timing != ["ranks"] else "",
    ]
    return Note(
        "scopes",
        " ".join(sentence for sentence in sentences if sentence),
        placements=placements,
        batch_scopes=batches,
        timing_scopes=timing,
        elsewhere=is_elsewhere,
    )


def _missing_notes(runs: pd.DataFrame) -> list[str]:
    """Say how many cells have no run, and how many runs are excluded or missing in other cells."""
    missing, ran_out = missing_cells(runs), out_of_memory_cells(runs)
    cells, bad = runs["cell"].nunique(), unsuccessful(runs)
    notes: list[str] = []
    if ran_out:
        text = f"{OUT_OF_MEMORY_MARK}: out of memory, {len(ran_out)} of {number_of(cells, 'cell')}."
        notes.append(Note("cells-out-of-memory", text, cells=len(ran_out), of=cells))
    if missing:
        text = f"Missing: {len(missing)} of {number_of(cells, 'cell')}."
        notes.append(Note("cells-missing", text, cells=len(missing), of=cells))
    elsewhere = bad[~bad["cell"].isin([*missing, *ran_out])]
    is_missing = elsewhere["status"].isin(NO_RECORD_STATUSES)
    for rows, problem in ((elsewhere[is_missing], "not made"), (elsewhere[~is_missing], "excluded")):
        if len(rows):
            statuses = sorted(set(rows["status"]).difference(NO_RECORD_STATUSES))
            why = f" ({', '.join(statuses)})" if statuses else ""
            text = f"{len(rows)} of {number_of(len(runs), 'run')} {problem}{why}."
            notes.append(Note("runs-missing", text, runs=len(rows), of=len(runs), statuses=statuses))
    return notes


def _node_limits(runs: pd.DataFrame) -> str:
    """Return limits of nodes as a range in brackets, such as ` (0.6 core, 31 to 125 MB/s)`; "" for none."""
    columns = ((runs["cpu_share"], CORES), (runs["bandwidth_bytes_s"], LINK_RATES))
    parts = (
        [f"heterogeneous: {max(shares, key=len)} core"] if len(shares := runs["cpu_shares"].dropna()) else []
    )
    parts += [
        in_one_unit((values.min(), values.max()), units, digits=3)
        for values, units in columns
        if values.notna().any()
    ]
    return f" ({', '.join(parts)})" if parts else ""


def software_note(runs: pd.DataFrame) -> str:
    """Name the frameworks that ran in software installed by the site; "" if there are none."""
    ok = successful(runs)
    installed = sorted(set(ok.loc[ok["deployment"] == "installed", "framework"]))
    text = f"Software of the site's own: {join_names(installed)}."
    return Note("site-software", text, frameworks=installed) if installed else ""


def algorithms_note(runs: pd.DataFrame) -> str:
    """Name the frameworks with their own training algorithm, and accuracies; "" if there are none."""
    ok = successful(runs)
    frameworks = [name for name in sorted(set(ok["framework"])) if has_own_algorithm(name)]
    if not frameworks:
        return ""

    def accuracy_range(mask: pd.Series) -> list[float]:
        means = ok[mask].groupby("cell")["validation_accuracy"].mean().dropna()
        return [float(means.min()), float(means.max())] if len(means) else []

    def range_text(ends: list[float]) -> str:
        return f"{' to '.join(dict.fromkeys(f'{100 * end:.3g}' for end in ends))} %" if ends else "unknown"

    is_named = ok["framework"].isin(frameworks)
    accuracy, accuracy_of_others = accuracy_range(is_named), accuracy_range(~is_named)
    comparison = f", of the others {range_text(accuracy_of_others)}" if not is_named.all() else ""
    text = f"Own algorithm: {join_names(frameworks)}; validation accuracy {range_text(accuracy)}{comparison}."
    return Note(
        "own-algorithm", text, frameworks=frameworks, accuracy=accuracy, accuracy_of_others=accuracy_of_others
    )


def unchecked_algorithms_note(runs: pd.DataFrame) -> str:
    """Name the frameworks that were not checked to train like the others; "" if there are none.

    These are the user's own commands, and all frameworks of measurements made elsewhere.
    """
    names = sorted(set(successful(runs)["framework"]))
    unchecked = names if measured_elsewhere(runs) else [name for name in names if not is_registered(name)]
    if len(names) < 2 or not unchecked:
        return ""
    text = f"Not checked to train to equal weights: {join_names(unchecked)}."
    return Note("unchecked-algorithms", text, frameworks=unchecked)


def comparison_note(within_blocks: pd.Series) -> str:
    """Say how cells are compared; "" if none are. `within_blocks` is as in `contrasts_note`."""
    blocks, groups = bool((within_blocks > 0).any()), bool((within_blocks == 0).any())
    if not (blocks or groups):
        return ""
    text = "Cells are compared within blocks." if blocks else "Cells are compared as independent groups."
    if blocks and groups:
        text = (
            f"Cells are compared within blocks if they share {MIN_SHARED_BLOCKS} or more, else as "
            "independent groups."
        )
    return Note("cells-compared", text, blocks=blocks, groups=groups)


def replicates_note(runs: pd.DataFrame) -> Note:
    """Say how many runs a cell has, and how the interval of its mean is computed."""
    counts = successful(runs).groupby("cell").size()
    if counts.empty:
        return _no_runs_note(runs)
    n_min, n_max = int(counts.min()), int(counts.max())
    prior = estimate_means(runs).prior
    span = f"{n_max}" if n_min == n_max else f"{n_min} to {n_max}"
    in_blocks = "" if runs["block"].isna().any() else ", one in each block"
    text = f"Replicates are separate runs{in_blocks}, n = {span} per cell"
    facts = {"fewest": n_min, "most": n_max, "moderated": prior.df > 0}
    if n_max == 1 and not prior.df:
        return Note("replicates", f"{text}, too few for an interval.", too_few=True, **facts)
    text += (
        "; intervals of epoch time are 95 % intervals of the arithmetic mean, computed on the log scale, "
        "mean × exp(∓ t s / √n)"
    )
    if prior.df:
        text += (
            "; s², the variance of a cell's logarithms, is moderated by the typical variance of all cells "
            f"({_typical_text(prior)}; empirical Bayes, Smyth 2004)."
        )
    else:
        text += (
            f", with the s of each cell; a cell with one run has none.{f' {TWO_RUNS}' * (2 in set(counts))}"
        )
    return Note("replicates", text, prior_df=prior.df, prior_variance=prior.variance, **facts)


def _typical_text(prior: VariancePrior) -> str:
    return f"s = {math.sqrt(prior.variance):.3g}, with the weight of {prior.df:.2g} degrees of freedom"


def contrasts_note(runs: pd.DataFrame, within_blocks: pd.Series) -> str:
    """Describe the intervals of ratios of mean epoch times, and of differences in seconds; "" without any.

    Args:
        runs: Runs of the study.
        within_blocks: For each ratio, the number of blocks in which its cells are compared; 0 for independent
            groups, NaN without an interval.
    """
    ways, blocks, groups = [], bool((within_blocks > 0).any()), bool((within_blocks == 0).any())
    if not (blocks or groups):
        return ""
    prior, has_throttling = estimate_means(runs).residual_spread.prior, runs["throttled_s"].notna().any()
    if blocks:
        typical = f", moderated in the same way (after blocks, {_typical_text(prior)})" if prior.df else ""
        ways.append(
            f"within the blocks in which both cells have a run, by the variance of their differences{typical}"
        )
    if groups:
        why = f"where cells share fewer than {MIN_SHARED_BLOCKS} blocks"
        ways.append(f"for independent groups (Welch's t test), with the s of each cell's mean, {why}")
    text = (
        f"Intervals of ratios are 95 % intervals on the log scale: {'; '.join(ways)}. Intervals of "
        "differences in seconds are computed in the same way, from the seconds themselves"
        f"{'; intervals of throttling use the two cells alone' if has_throttling else ''}."
    )
    moderated = blocks and prior.df > 0
    return Note("intervals-of-contrasts", text, blocks=blocks, groups=groups, moderated=moderated)


def one_allocation_note(runs: pd.DataFrame) -> Note | None:
    """Say that narrow intervals do not cover differences between days, nodes and sites.

    Return None if the intervals are wide, or if a cell has runs of several sessions. Runs measured elsewhere
    have no recorded session.
    """
    cells = successful(runs).groupby("cell")
    replicated = cells.size()[lambda n: n > 1].index
    halves = estimate_means(runs).half_widths.reindex(replicated).dropna()
    n_sessions = cells["session"].nunique().reindex(replicated).max()
    if halves.empty or halves.median() >= SITES_APART or n_sessions > 1:
        return None
    why = "are of one session" if n_sessions else "have no recorded session"
    text = (
        f"Intervals do not cover differences between days, nodes or sites: the runs of a cell {why}. Half "
        f"widths are {100 * halves.median():.2g} % (median); in MLPerf Training, sites with the same GPUs "
        f"differ by {_percent(SITES_APART)}, runs by {_percent(RUNS_APART)}."
    )
    return Note("one-allocation", text, half_width=float(halves.median()), recorded=bool(n_sessions))


def single_run_steps_note(runs: pd.DataFrame) -> Note | None:
    """Say that steps are not replicates, if a cell has a single run whose step times are known; else None."""
    ok = successful(runs)
    single = ok.groupby("cell")["step_time_median_s"].agg(["size", "count"])
    n_cells = int((single == 1).all(axis="columns").sum())
    if not n_cells:
        return None
    text = (
        "Steps are not replicates: in public logs, runs of a cell differ 1.2 to 5.6 times as much as the "
        f"steps of one run suggest. Cells with step times of a single run, and no interval: {n_cells}."
    )
    return Note("steps-of-single-runs", text, cells=n_cells)


def is_emulated(runs: pd.DataFrame) -> bool:
    """Return whether the nodes of a successful run were groups of processes on one machine."""
    return "emulated" in set(successful(runs)["placement"])


def emulated_nodes_note(runs: pd.DataFrame) -> Note | None:
    """Say that results of several nodes are those of one machine if their nodes are emulated; else None."""
    ok = successful(runs)
    multi_node = ok[ok["nodes"] > 1]
    n_emulated = int(multi_node["placement"].eq("emulated").sum())
    if not n_emulated:
        return None
    subject = "All nodes are" if n_emulated == len(multi_node) else "Some nodes are"
    text = f"{subject} groups of processes on one machine, so times say nothing about a real network."
    return Note("emulated-nodes", text, runs=n_emulated)


def shared_interface_note(runs: pd.DataFrame) -> str:
    """Say that sent bytes include other nodes and programs if nodes are emulated; else return ""."""
    return SHARED_INTERFACE if is_emulated(runs) else ""


def user_models_note(runs: pd.DataFrame) -> str:
    """Name the models that are the user's own PyTorch modules; "" if there are none."""
    names = sorted(filter(is_user_model, set(runs.loc[runs["framework"].map(is_registered), "model"])))
    if not names:
        return ""
    text = f"The user's own PyTorch modules, trained by frameworks of PyTorch only: {join_names(names)}."
    return Note("own-models", text, models=names)


def circumstances_note(runs: pd.DataFrame) -> str:
    """Describe placement, scopes and software, and report crowded cores and lost CPU time."""
    ok = successful(runs)
    notes: list[str] = []
    placements = sorted(set(ok["placement"].dropna()))
    if placements:
        described = "; ".join(f"{name} ({_PLACEMENTS[name]})" for name in placements)
        notes.append(Note("placement", f"Placement: {described}{_node_limits(ok)}.", placements=placements))
    scopes = sorted(set(runs["batch_scope"].dropna()))
    if scopes:
        text = "Batch scope: " + "; ".join(_BATCH_SCOPES[scope] for scope in scopes) + "."
        notes.append(Note("batch-scope", text, scopes=scopes))
    masters = sorted(set(ok.loc[ok["timing_scope"] == "master", "framework"]))
    slowest = "ranks" in set(ok["timing_scope"].dropna())
    clocks = ["the slowest rank"] * slowest
    clocks += [f"for {', '.join(masters)}, only the clock of the master"] * bool(masters)
    if clocks:
        text = f"Timing scope: {'; '.join(clocks)}."
        notes.append(Note("timing-scope", text, slowest_rank=slowest, masters=masters))
    notes += [note for name in sorted(set(ok["framework"])) for note in framework_notes(name)]
    notes += [
        user_models_note(runs),
        software_note(runs),
        algorithms_note(runs),
        unchecked_algorithms_note(runs),
    ]
    if len(ok) and len(traced(ok)) == len(ok):
        notes.append(ALL_TRACED)
    crowded = sorted(set(ok.loc[ok["oversubscribed"].fillna(False), "cell"]))
    if crowded:
        text = f"More threads than cores (oversubscribed): {join_names(crowded)}."
        notes.append(Note("oversubscribed", text, cells=crowded))
    used, limits = ok["other_cpu_share"].dropna(), ok["max_other_cpu_share"].dropna()
    if len(used) and len(limits):
        text = (
            f"In the runs that count, other processes used at most {_percent(used.max())} of CPU time; a run "
            f"with more than {_percent(limits.max())} is invalid."
        )
        notes.append(Note("other-cpu-time", text, share=float(used.max()), limit=float(limits.max())))
    stolen = ok[ok["steal_share"] > NOTABLE_STEAL_SHARE]
    if len(stolen):
        text = (
            f"In {len(stolen)} of {len(ok)} runs CPU steal by a hypervisor exceeded "
            f"{_percent(NOTABLE_STEAL_SHARE)}, at most {_percent(stolen['steal_share'].max())}."
        )
        largest_share = float(stolen["steal_share"].max())
        notes.append(Note("cpu-steal", text, runs=len(stolen), of=len(ok), share=largest_share))
    return paragraph("circumstances", notes)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def work_note(runs: pd.DataFrame) -> str:
    """Say for each batch scope which work stays constant when devices are added."""
    descriptions = {
        "local": "with a local batch the effective batch grows with the replicas, so an epoch has fewer "
        "all-reduces and optimizer steps, and the same number of epochs is not the same amount of "
        "training",
        "global": "with a global batch the effective batch and the number of optimizer steps stay the same, "
        "and each replica gets a smaller part of a batch",
    }
    scopes = sorted(set(runs["batch_scope"].dropna()), reverse=True)
    if not scopes:
        return ""
    described = "; ".join(descriptions[scope] for scope in scopes)
    text = (
        "An epoch has the same samples on any number of devices, so the ideal epoch time is the baseline's "
        "divided by the number of devices, whether the batch per replica is fixed or the global batch "
        f"(strong scaling). {described[0].upper()}{described[1:]}."
    )
    return Note("work-of-an-epoch", text, scopes=scopes)


def constants_note(runs: pd.DataFrame) -> str:
    """Name the factors with an effect that have a single level in the whole study, with that level.

    Of measurements made elsewhere, a level that is the factor's default was not stated, so it is not named.
    """
    levels = {
        name: runs[name].iloc[0] for name in factor_names(runs) if runs[name].nunique(dropna=False) == 1
    }
    levels = {name: level for name, level in levels.items() if name not in _without_effect(runs)}
    omitted = {**SITE_DEFAULTS, "trace": UNTRACED}  # `tracing_note` reports it
    if measured_elsewhere(runs):
        omitted |= {name: factor_rules(name)["default"] for name in levels if "default" in factor_rules(name)}
        omitted |= {name: levels[name] for name in ("epochs", "warmup_epochs") if name in levels}
    levels = {name: level for name, level in levels.items() if level != omitted.get(name)}
    texts = [
        f"{title(name)} {combination_text({name: level})}"
        if name in ("framework", "model", "dataset")
        else combination_text({name: level})
        for name, level in levels.items()
        if not pd.isna(level)
    ]
    return Note("constants", f"The same in all cells: {', '.join(texts)}.", levels=levels) if texts else ""


def _without_effect(runs: pd.DataFrame) -> set[str]:
    """Return the factors that no run of the study uses, such as Adam's with another optimizer."""
    used = {name: set(runs[name].dropna()) for name in ("optimizer", "lr_schedule", "parallelism")}
    unused = (
        set(frozenset.intersection(*map(unused_options, used["parallelism"])))
        if used["parallelism"]
        else set()
    )
    if not used["optimizer"] & {"adam", "adamw"}:
        unused |= {"adam_beta1", "adam_beta2", "adam_epsilon"}
    if "sgd" not in used["optimizer"]:
        unused.add("momentum")
    if "cosine" not in used["lr_schedule"]:
        unused.add("lr_final_share")
    if "step" not in used["lr_schedule"]:
        unused |= {"lr_step_epochs", "lr_step_factor"}
    if not (runs["weight_decay"] > 0).any():
        unused.add("decayed_weights")
    return unused


def tracing_note(runs: pd.DataFrame) -> str:
    """Say how many runs were traced, which tables use them, and which lack phases; "" if none was traced."""
    traced_runs = traced(runs)
    if traced_runs.empty:
        return ""
    levels = list(dict.fromkeys(traced_runs["trace"]))
    time_tables = "of the others" if len(traced_runs) < len(runs) else "of them, too"
    text = (
        f"Traced: {len(traced_runs)} of {number_of(len(runs), 'run')} (trace {', '.join(levels)}). Tables of "
        f"phases are of them; tables of time are {time_tables}."
    )
    note = Note("traced-runs", text, runs=len(traced_runs), of=len(runs), levels=levels)
    return paragraph("tracing", [note, traced_runs_without_phases(runs)])


def traced_runs_without_phases(runs: pd.DataFrame, run_ids: Collection[str] | None = None) -> str:
    """Name the traced runs without usable phases, with reasons and the command that repeats one; "" for none.

    Args:
        runs: All runs of the study.
        run_ids: Runs that the study's phases.csv contains; None if it was not read.
    """
    bad, ok = unsuccessful(traced(runs)), successful(traced(runs)).set_index("run_id")
    reasons = ok["without_phases"].dropna().to_dict()
    if run_ids is not None:
        reasons = {run: "not in phases.csv" for run in ok.index if run not in run_ids} | reasons
    reasons |= dict(zip(bad["run_id"], bad["status"], strict=True))
    if not reasons:
        return ""
    listed = join_names([f"{run_id} ({why})" for run_id, why in reasons.items()])
    command = f"./ringside repeat {next(iter(reasons))} --study {runs['study'].iloc[0]}"
    text = f"Traced, but without phases: {listed}; repeat such a run: {command}."
    return Note("without-phases", text, reasons=reasons, command=command)


def join_names(names: Sequence[str], separator: str = ", ") -> str:
    """Join names; after MAX_LISTED_NAMES only the number of the remaining ones is given."""
    n_omitted = len(names) - MAX_LISTED_NAMES
    return separator.join(names[:MAX_LISTED_NAMES]) + (f" and {n_omitted} more" if n_omitted > 0 else "")
