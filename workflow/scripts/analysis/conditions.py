"""What must be said about the runs behind a figure or a table: in few words below it, and whole, once, in the study's methods note."""

import math
from collections.abc import Collection, Sequence

import pandas as pd

from analysis.measured import combination_text, factors, missing_cells, successful, title, traced, unsuccessful
from analysis.pooling import FEWEST_BLOCKS, Pooling, Prior, pooled
from declared.factors import UNTRACED
from declared.frameworks import notes_of, trains_alone
from declared.mesh import divides_more

NAMED = 10
COUNTED = "Runs: n = "  # how it is said how many runs stand behind a cell
THE_SITES = {"devices_per_node": 0, "device": "site", "bandwidth": 0}  # levels that leave it to the site
NOTABLE_FOREIGN_SHARE = 0.05  # of the processor time, used by other programs beside a run
NOTABLE_STEAL_SHARE = 0.05
NO_SUCCESS, NO_RUN_YET = "No run of the study succeeded.", "No run of these cells was made yet."
TWO_RUNS = " Two runs give very wide intervals: 12.7 standard errors to each side of the mean (five runs: 2.8)."
_PLACEMENTS = {
    "distinct-nodes": "each node is a machine of its own",
    "virtual": "nodes are those of a virtual cluster on one machine",
    "emulated": "nodes are groups of processes on one machine, so times say nothing about a real network",
}
_PLACED = {
    "distinct-nodes": "distinct nodes",
    "virtual": "virtual nodes on one machine",
    "emulated": "emulated on one machine, no real network",
}
_BATCH_SCOPES = {
    "local": "local batch (fixed per replica: the effective batch grows with the replicas)",
    "global": "global batch (fixed in total)",
}


def methods(runs: pd.DataFrame, within_blocks: pd.Series) -> list[str]:
    """The study's methods note, in paragraphs: all that captions and the notes of tables say in few words, or not at all.

    `within_blocks`: of each pair of cells that the study compares, as in `ratios`.
    """
    said = [
        replicates(runs),
        contrasts(runs, within_blocks),
        circumstances(runs),
        work(runs) if runs["nodes"].nunique() > 1 else "",
        shortfall(runs),
        constants(runs),
    ]
    return [sentences for sentences in said if sentences]


def replicas(runs: pd.DataFrame) -> str:
    """That replicas are devices, where the ranks of some cell divide more than samples, so that several have one copy of the model; or nothing."""
    told = runs[["parallelism", "ranks"]].drop_duplicates().itertuples(index=False, name=None)
    divided = any(divides_more(level, int(ranks)) for level, ranks in told)
    return "Replicas are counted in devices: each rank that has a part of the model is one." if divided else ""


def counts(runs: pd.DataFrame, intervals: bool = True, counted: pd.Series | None = None) -> str:
    """How many runs stand behind a cell, and where there are `intervals` a warning if they are too few for some.

    `counted`: how many behind each, where these are not all that succeeded.
    """
    found = successful(runs).groupby("cell").size() if counted is None else counted
    if found.empty:
        return _none(runs)
    fewest, most = found.min(), found.max()
    n = f"{COUNTED}{most} per cell" if fewest == most else f"{COUNTED}{fewest} to {most} per cell"
    if intervals and most == 1:
        return f"{n}, too few for an interval of each cell by itself."
    return f"{n}; intervals of two runs are very wide." if intervals and (found == 2).any() else f"{n}."


def _none(runs: pd.DataFrame) -> str:
    """That none of these runs succeeded; where there is none yet, this."""
    return NO_RUN_YET if len(runs) and (runs["status"] == "missing").all() else NO_SUCCESS


def setting(runs: pd.DataFrame) -> str:
    """Where the runs were made, whether they were disturbed, and how many are missing; `methods` has all of it."""
    ok, cells = successful(runs), runs["cell"].nunique()
    said = []
    placements = sorted(set(ok["placement"].dropna()))
    if placements:
        said.append(f"Placement: {'; '.join(_PLACED[name] for name in placements)}{_size(ok)}.")
    said += filter(None, [software(runs), algorithms(runs)])
    if len(ok) and len(traced(ok)) == len(ok):
        said.append("All runs were traced, which takes time, too.")
    if ok["oversubscribed"].fillna(False).any():
        said.append("Some cells have more threads than cores.")
    if (most := ok["foreign_cpu_share"].max()) > NOTABLE_FOREIGN_SHARE:
        said.append(f"Beside a run, other programs used up to {_percent(most)} of the processor time.")
    if (stolen := int((ok["steal_share"] > NOTABLE_STEAL_SHARE).sum())) > 0:
        said.append(f"Disturbed by a hypervisor: {stolen} of {len(ok)} runs.")
    missing, bad = len(missing_cells(runs)), len(unsuccessful(runs))
    said.append(f"Missing: {missing} of {_count(cells, 'cell')}." if missing else "No cell is missing.")
    if bad and (others := bad - int(runs["cell"].isin(missing_cells(runs)).sum())):
        absent = (unsuccessful(runs)["status"] == "missing").all()
        what = f"{'was' if others == 1 else 'were'} not made" if absent else "did not succeed"
        said.append(f"{_count(others, 'other run' if missing else 'run')} {what}.")
    return " ".join(said)


def _size(runs: pd.DataFrame) -> str:
    """What a node has, where the site says it: ` (0.6 core, 31 to 125 MB/s)`."""
    columns = ((runs["cpu_share"], 1.0, "core"), (runs["bandwidth_bytes_s"], 1e6, "MB/s"))
    said = [f"unlike: {max(unlike, key=len)} core"] if len(unlike := runs["cpu_shares"].dropna()) else []
    for values, unit, name in columns:
        if values.notna().any():
            ends = dict.fromkeys(f"{end / unit:.3g}" for end in (values.min(), values.max()))
            said.append(f"{' to '.join(ends)} {name}")
    return f" ({', '.join(said)})" if said else ""


def software(runs: pd.DataFrame) -> str:
    """Which frameworks ran in software of the site's own; empty for none."""
    ok = successful(runs)
    own = sorted(set(ok.loc[ok["deployment"] == "installed", "framework"]))
    return f"Software of the site's own: {named(own)}." if own else ""


def algorithms(runs: pd.DataFrame) -> str:
    """Which frameworks train with algorithms of their own, and which validation accuracies they and the others reach; empty for none."""
    ok = successful(runs)
    own = [name for name in sorted(set(ok["framework"])) if trains_alone(name)]
    if not own:
        return ""

    def reached(some: pd.Series) -> str:
        means = ok[some].groupby("cell")["validation_accuracy"].mean().dropna()
        ends = dict.fromkeys(f"{100 * end:.3g}" for end in (means.min(), means.max()))
        return f"{' to '.join(ends)} %" if len(means) else "unknown"

    theirs = ok["framework"].isin(own)
    beside = f", of the others {reached(~theirs)}" if not theirs.all() else ""
    return f"Own algorithm: {named(own)}; validation accuracy {reached(theirs)}{beside}."


def compared(within_blocks: pd.Series) -> str:
    """How cells are compared, in few words; nothing where none are. `within_blocks` as in `ratios`."""
    blocks, groups = bool((within_blocks > 0).any()), bool((within_blocks == 0).any())
    if blocks and groups:
        return f"Cells are compared within blocks where they share {FEWEST_BLOCKS} or more, else as independent groups."
    return (
        "Cells are compared within blocks." if blocks else "Cells are compared as independent groups." if groups else ""
    )


def replicates(runs: pd.DataFrame, of_time: bool | None = True, pooling: Pooling | None = None) -> str:
    """How many runs stand behind a cell, and what an interval is: of epoch time, or of another response; None: there is none.

    `pooling`: that of the whole study, where `runs` are a part of it.
    """
    counts = successful(runs).groupby("cell").size()
    if counts.empty:
        return _none(runs)
    fewest, most = counts.min(), counts.max()
    n = f"n = {most}" if fewest == most else f"n = {fewest} to {most}"
    said = f"Replicates are independent runs, {n} per cell"
    if of_time is None:
        return f"{said}."
    pooling = pooling or pooled(runs)
    if most == 1 and not (of_time and pooling.prior.df):
        return f"{said}, too few for an interval."
    alone = " (a cell with one run has none)" if fewest == 1 else ""
    if not of_time:
        return f"{said}; intervals are 95 % t intervals of the mean over replicates{alone}.{few(runs)}"
    return f"{said}; {spread(pooling)}"


def spread(pooling: Pooling) -> str:
    """What the intervals of epoch times are, and what their standard deviations rest on."""
    said = "intervals of epoch time are 95 % intervals of the arithmetic mean, made on the log scale, mean × exp(∓ t s / √n)"
    counts, prior = pooling.cells["n"], pooling.prior
    if not prior.df:
        none = "; a cell with one run has none" if (counts == 1).any() else ""
        return f"{said}, with each cell's own s{none}.{TWO_RUNS if (counts == 2).any() else ''}"
    alone = "; a cell with one run takes its s from them alone" if (counts == 1).any() else ""
    return (
        f"{said}; s², the variance of the logarithms, is each cell's own, moderated by what is typical of all cells "
        f"({_typical(prior)}; empirical Bayes, Smyth 2004){alone}."
    )


def _typical(prior: Prior) -> str:
    return f"s = {math.sqrt(prior.variance):.3g}, weighing {prior.df:.2g} degrees of freedom"


def ratios(runs: pd.DataFrame, within_blocks: pd.Series) -> str:
    """What the intervals of ratios of mean epoch times are; nothing without one.

    `within_blocks`: of each ratio, in how many blocks its cells are compared; 0 as independent groups, missing without interval.
    """
    pooling, ways = pooled(runs), []
    if (within_blocks > 0).any():
        prior = pooling.within.prior
        typical = f", moderated likewise (after blocks, {_typical(prior)})" if prior.df else ""
        ways.append(f"within the blocks in which both cells have a run, by the variance of their differences{typical}")
    if (within_blocks == 0).any():
        why = f"{'where' if ways else 'because'} cells share fewer than {FEWEST_BLOCKS} blocks"
        ways.append(f"for independent groups (Welch's t test), with the s of each cell's mean, {why}")
    return f"Intervals of ratios are 95 % intervals on the log scale: {'; '.join(ways)}." if ways else ""


def contrasts(runs: pd.DataFrame, within_blocks: pd.Series) -> str:
    """What the intervals of ratios are, and those of differences of mean epoch times and of throttling; nothing without one."""
    if not (of_ratios := ratios(runs, within_blocks)):
        return ""
    said = f"{of_ratios} Intervals of differences in seconds are made in the same way, from the seconds themselves"
    if runs["throttled_s"].notna().any():
        said += "; intervals of throttling use the two cells alone"
    return f"{said}."


def few(runs: pd.DataFrame) -> str:
    """A warning, with a space before it, where a cell has two successful runs: what such an interval is worth."""
    if (successful(runs).groupby("cell").size() == 2).any():
        return TWO_RUNS
    return ""


def emulated(runs: pd.DataFrame) -> bool:
    """Whether the nodes of successful runs were processes on one machine."""
    return "emulated" in set(successful(runs)["placement"])


def circumstances(runs: pd.DataFrame) -> str:
    """Placement, batch scope, timing scope, and what was not as it should be: crowded cores, stolen processor time."""
    ok = successful(runs)
    said = []
    placements = sorted(set(ok["placement"].dropna()))
    if placements:
        said.append(
            "Placement: " + "; ".join(f"{name} ({_PLACEMENTS[name]})" for name in placements) + _nodes(ok) + "."
        )
    scopes = sorted(set(runs["batch_scope"].dropna()))
    if scopes:
        said.append("Batch scope: " + "; ".join(_BATCH_SCOPES[scope] for scope in scopes) + ".")
    masters = sorted(set(ok.loc[ok["timing_scope"] == "master", "framework"]))
    if "ranks" in set(ok["timing_scope"].dropna()):
        said.append("Timing scope: the slowest rank" + ("; " if masters else "."))
        if masters:
            said[-1] += f"for {', '.join(masters)}, only the clock of the master."
    elif masters:
        said.append("Timing scope: only the clock of the master.")
    said += [note for name in sorted(set(ok["framework"])) for note in notes_of(name)]
    said += filter(None, [software(runs), algorithms(runs)])
    if len(ok) and len(traced(ok)) == len(ok):
        said.append("All runs were traced, which takes time, too.")
    crowded = sorted(set(ok.loc[ok["oversubscribed"].fillna(False), "cell"]))
    if crowded:
        said.append(f"More threads than cores (oversubscribed): {named(crowded)}.")
    used, limits = ok["foreign_cpu_share"].dropna(), ok["max_foreign_cpu_share"].dropna()
    if len(used) and len(limits):
        said.append(
            f"Other programs used at most {_percent(used.max())} of the processor time beside a run; with more than "
            f"{_percent(limits.max())} it would not count."
        )
    stolen = ok[ok["steal_share"] > NOTABLE_STEAL_SHARE]
    if len(stolen):
        said.append(
            f"In {len(stolen)} of {len(ok)} runs a hypervisor withheld more than {_percent(NOTABLE_STEAL_SHARE)} "
            f"of the processor time, at most {_percent(stolen['steal_share'].max())}."
        )
    return " ".join(said)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _nodes(runs: pd.DataFrame) -> str:
    """What a node has, where the site says it: `, each with 0.6 core, links of 125 MB/s`."""
    shares, rates = sorted(set(runs["cpu_share"].dropna())), sorted(set(runs["bandwidth_bytes_s"].dropna()))
    unlike = max(runs["cpu_shares"].dropna(), key=len, default="")
    said = [
        *([f"each with {' or '.join(f'{share:g}' for share in shares)} core"] if shares else []),
        *([f"unlike, with {unlike.replace('/', ', ')} core"] if unlike else []),
        *([f"links of {' or '.join(f'{rate / 1e6:g}' for rate in rates)} MB/s"] if rates else []),
    ]
    return "".join(f", {part}" for part in said)


def work(runs: pd.DataFrame) -> str:
    """What is the same work, and what is not, when replicas are added: by batch scope."""
    said = {
        "local": "with a local batch the effective batch grows with the replicas, so an epoch has fewer exchanges and "
        "optimizer steps, and the same number of epochs is not the same amount of training",
        "global": "with a global batch the effective batch and the number of optimizer steps stay the same, and each "
        "replica gets a smaller part of a batch",
    }
    scopes = [said[scope] for scope in sorted(set(runs["batch_scope"].dropna()), reverse=True)]
    if not scopes:
        return ""
    return f"An epoch has the same number of samples on any number of replicas (strong scaling); {'; '.join(scopes)}."


def shortfall(runs: pd.DataFrame) -> str:
    """The cells without a successful run by name (ten at most, then a count), and the runs that others lack."""
    bad = unsuccessful(runs)
    if bad.empty:
        return "No cell is missing."
    missing = missing_cells(runs)
    said = f"Missing cells: {named(missing)}." if missing else "No cell is missing."
    elsewhere = bad[~bad["cell"].isin(missing)]
    if len(elsewhere):
        lacking = list(dict.fromkeys(elsewhere["cell"]))
        said += f" {_count(len(elsewhere), 'run')} did not succeed in {named(lacking)}."
    return said


def constants(runs: pd.DataFrame) -> str:
    """The factors that have one level in the whole study, with that level."""
    levels = {name: runs[name].iloc[0] for name in factors() if runs[name].nunique(dropna=False) == 1}
    unsaid = {**THE_SITES, "trace": UNTRACED}  # `tracing` says who was traced
    levels = {name: level for name, level in levels.items() if level != unsaid.get(name)}
    said = [
        f"{title(name)} {combination_text({name: level})}"
        if name in ("framework", "model", "dataset")
        else combination_text({name: level})
        for name, level in levels.items()
        if not pd.isna(level)
    ]
    return f"The same in all cells: {', '.join(said)}." if said else ""


def tracing(runs: pd.DataFrame) -> str:
    """How many of all runs of a study were traced, which numbers are of them, and which of them lack phases; empty where none was."""
    some = traced(runs)
    if some.empty:
        return ""
    levels = ", ".join(dict.fromkeys(some["trace"]))
    whose = "tables of time are of the others" if len(some) < len(runs) else "tables of time are of them, too"
    said = f"Traced: {len(some)} of {_count(len(runs), 'run')} (trace {levels}). Tables of phases are of them; {whose}."
    return " ".join([said, *filter(None, [lacking_phases(runs)])])


def lacking_phases(runs: pd.DataFrame, told: Collection[str] | None = None) -> str:
    """The traced runs of which nothing is known, each with its reason; empty for none. `told` as in `lost_phases`."""
    bad = unsuccessful(traced(runs))
    reasons = [f"{run_id} ({status})" for run_id, status in zip(bad["run_id"], bad["status"], strict=True)]
    said = f"Traced runs that did not succeed: {named(reasons)}." if reasons else ""
    return " ".join(filter(None, [said, lost_phases(runs, told)]))


def lost_phases(runs: pd.DataFrame, told: Collection[str] | None = None) -> str:
    """The successful traced runs that have no phases, each with its reason, and what repeats them; empty for none.

    `told`: run_id of those that phases.csv of the study has; None where nobody looked.
    """
    ok = successful(traced(runs)).set_index("run_id")
    reasons = ok["without_phases"].dropna().to_dict()
    if told is not None:
        reasons |= {run_id: "not in phases.csv" for run_id in ok.index if run_id not in told and run_id not in reasons}
    if not reasons:
        return ""
    each = named([f"{run_id} ({why})" for run_id, why in reasons.items()])
    first = next(iter(reasons))
    return f"Traced, but without phases: {each}; repeat such a run: make repeat STUDY={ok.at[first, 'study']} RUNS='{first}'."


def named(names: Sequence[str], separator: str = ", ") -> str:
    """Names with separators: ten, then how many more."""
    more = len(names) - NAMED
    return separator.join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"
