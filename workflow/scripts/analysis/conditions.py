"""What must be said about the runs behind a figure or a table: in few words below it, and whole, once, in the study's methods note."""

import math
from collections.abc import Collection, Iterable, Sequence

import pandas as pd

from analysis.measured import combination_text, factors, missing_cells, successful, title, traced, unsuccessful
from analysis.pooling import FEWEST_BLOCKS, Pooling, Prior, pooled
from common.notes import Note
from declared.factors import UNTRACED
from declared.frameworks import notes_of, trains_alone
from declared.mesh import divides_more

NAMED = 10
COUNTED = "Runs: n = "  # how it is said how many runs stand behind a cell
THE_SITES = {"devices_per_node": 0, "device": "site", "bandwidth": 0}  # levels that leave it to the site
NOTABLE_FOREIGN_SHARE = 0.05  # of the processor time, used by other programs beside a run
NOTABLE_STEAL_SHARE = 0.05
NO_SUCCESS = Note("no-successful-run", "No run of the study succeeded.")
NO_RUN_YET = Note("no-run-yet", "No run of these cells was made yet.")
ALL_TRACED = Note("all-runs-traced", "All runs were traced, which takes time, too.")
NO_CELL_MISSING = Note("no-cell-missing", "No cell is missing.")
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


def paragraph(code: str, sentences: Iterable[str]) -> Note:
    """Join sentences to one note, leaving out empty ones; its fact `notes` has them one by one."""
    notes = [sentence for sentence in sentences if sentence]
    return Note(code, " ".join(notes), notes=notes)


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
    if not divided:
        return ""
    return Note(
        "replicas-are-devices", "Replicas are counted in devices: each rank that has a part of the model is one."
    )


def counts(runs: pd.DataFrame, intervals: bool = True, counted: pd.Series | None = None) -> str:
    """How many runs stand behind a cell, and where there are `intervals` a warning if they are too few for some.

    `counted`: how many behind each, where these are not all that succeeded.
    """
    found = successful(runs).groupby("cell").size() if counted is None else counted
    if found.empty:
        return _none(runs)
    fewest, most = found.min(), found.max()
    n = f"{COUNTED}{most} per cell" if fewest == most else f"{COUNTED}{fewest} to {most} per cell"
    too_few, wide = bool(intervals and most == 1), bool(intervals and (found == 2).any())
    if too_few:
        text = f"{n}, too few for an interval of each cell by itself."
    else:
        text = f"{n}; intervals of two runs are very wide." if wide else f"{n}."
    return Note("runs-per-cell", text, fewest=int(fewest), most=int(most), too_few=too_few, wide=wide)


def _none(runs: pd.DataFrame) -> Note:
    """That none of these runs succeeded; where there is none yet, this."""
    return NO_RUN_YET if len(runs) and (runs["status"] == "missing").all() else NO_SUCCESS


def setting(runs: pd.DataFrame) -> str:
    """Where the runs were made, whether they were disturbed, and how many are missing; `methods` has all of it."""
    ok = successful(runs)
    placements = sorted(set(ok["placement"].dropna()))
    said: list[str] = []
    if placements:
        text = f"Placement: {'; '.join(_PLACED[name] for name in placements)}{_size(ok)}."
        said.append(Note("placement", text, placements=placements))
    said += [software(runs), algorithms(runs)]
    if len(ok) and len(traced(ok)) == len(ok):
        said.append(ALL_TRACED)
    if ok["oversubscribed"].fillna(False).any():
        said.append(Note("oversubscribed", "Some cells have more threads than cores."))
    if (most := ok["foreign_cpu_share"].max()) > NOTABLE_FOREIGN_SHARE:
        text = f"Beside a run, other programs used up to {_percent(most)} of the processor time."
        said.append(Note("foreign-cpu-time", text, share=float(most)))
    if (stolen := int((ok["steal_share"] > NOTABLE_STEAL_SHARE).sum())) > 0:
        text = f"Disturbed by a hypervisor: {stolen} of {len(ok)} runs."
        said.append(Note("cpu-steal", text, runs=stolen, of=len(ok)))
    return paragraph("setting", [*said, *_missing(runs)])


def _missing(runs: pd.DataFrame) -> list[str]:
    """How many cells have no run, and how many runs others lack."""
    missing, cells, bad = missing_cells(runs), runs["cell"].nunique(), unsuccessful(runs)
    said: list[str] = [NO_CELL_MISSING]
    if missing:
        text = f"Missing: {len(missing)} of {_count(cells, 'cell')}."
        said = [Note("cells-missing", text, cells=len(missing), of=cells)]
    if others := len(bad) - int(runs["cell"].isin(missing).sum()):
        absent = bool((bad["status"] == "missing").all())
        what = f"{'was' if others == 1 else 'were'} not made" if absent else "did not succeed"
        text = f"{_count(others, 'other run' if missing else 'run')} {what}."
        said.append(Note("runs-missing", text, runs=others, not_made=absent))
    return said


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
    return Note("site-software", f"Software of the site's own: {named(own)}.", frameworks=own) if own else ""


def algorithms(runs: pd.DataFrame) -> str:
    """Which frameworks train with algorithms of their own, and which validation accuracies they and the others reach; empty for none."""
    ok = successful(runs)
    own = [name for name in sorted(set(ok["framework"])) if trains_alone(name)]
    if not own:
        return ""

    def reached(some: pd.Series) -> list[float]:
        means = ok[some].groupby("cell")["validation_accuracy"].mean().dropna()
        return [float(means.min()), float(means.max())] if len(means) else []

    def shown(ends: list[float]) -> str:
        return f"{' to '.join(dict.fromkeys(f'{100 * end:.3g}' for end in ends))} %" if ends else "unknown"

    theirs = ok["framework"].isin(own)
    accuracy, of_others = reached(theirs), reached(~theirs)
    beside = f", of the others {shown(of_others)}" if not theirs.all() else ""
    text = f"Own algorithm: {named(own)}; validation accuracy {shown(accuracy)}{beside}."
    return Note("own-algorithm", text, frameworks=own, accuracy=accuracy, accuracy_of_others=of_others)


def compared(within_blocks: pd.Series) -> str:
    """How cells are compared, in few words; nothing where none are. `within_blocks` as in `ratios`."""
    blocks, groups = bool((within_blocks > 0).any()), bool((within_blocks == 0).any())
    if not (blocks or groups):
        return ""
    text = "Cells are compared within blocks." if blocks else "Cells are compared as independent groups."
    if blocks and groups:
        text = f"Cells are compared within blocks where they share {FEWEST_BLOCKS} or more, else as independent groups."
    return Note("cells-compared", text, blocks=blocks, groups=groups)


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
    facts = {"fewest": int(fewest), "most": int(most)}
    if of_time is None:
        return Note("replicates", f"{said}.", **facts)
    pooling = pooling or pooled(runs)
    if most == 1 and not (of_time and pooling.prior.df):
        return Note("replicates", f"{said}, too few for an interval.", too_few=True, **facts)
    alone = " (a cell with one run has none)" if fewest == 1 else ""
    if not of_time:
        text = f"{said}; intervals are 95 % t intervals of the mean over replicates{alone}.{few(runs)}"
        return Note("replicates", text, **facts)
    spreads = spread(pooling)
    return Note("replicates", f"{said}; {spreads}", **facts, **spreads.facts)


def spread(pooling: Pooling) -> Note:
    """What the intervals of epoch times are, and what their standard deviations rest on."""
    said = "intervals of epoch time are 95 % intervals of the arithmetic mean, made on the log scale, mean × exp(∓ t s / √n)"
    prior, single, two = pooling.prior, *(bool((pooling.cells["n"] == n).any()) for n in (1, 2))
    facts = {"moderated": prior.df > 0, "prior_df": prior.df, "prior_variance": prior.variance, "single_runs": single}
    if not prior.df:
        none = "; a cell with one run has none" if single else ""
        text = f"{said}, with each cell's own s{none}.{TWO_RUNS if two else ''}"
        return Note("spread", text, **facts, two_runs_warned=two)
    alone = "; a cell with one run takes its s from them alone" if single else ""
    text = (
        f"{said}; s², the variance of the logarithms, is each cell's own, moderated by what is typical of all cells "
        f"({_typical(prior)}; empirical Bayes, Smyth 2004){alone}."
    )
    return Note("spread", text, **facts, two_runs_warned=False)


def _typical(prior: Prior) -> str:
    return f"s = {math.sqrt(prior.variance):.3g}, weighing {prior.df:.2g} degrees of freedom"


def ratios(runs: pd.DataFrame, within_blocks: pd.Series) -> str:
    """What the intervals of ratios of mean epoch times are; nothing without one.

    `within_blocks`: of each ratio, in how many blocks its cells are compared; 0 as independent groups, missing without interval.
    """
    pooling, ways = pooled(runs), []
    blocks, groups = bool((within_blocks > 0).any()), bool((within_blocks == 0).any())
    if blocks:
        prior = pooling.within.prior
        typical = f", moderated likewise (after blocks, {_typical(prior)})" if prior.df else ""
        ways.append(f"within the blocks in which both cells have a run, by the variance of their differences{typical}")
    if groups:
        why = f"{'where' if ways else 'because'} cells share fewer than {FEWEST_BLOCKS} blocks"
        ways.append(f"for independent groups (Welch's t test), with the s of each cell's mean, {why}")
    if not ways:
        return ""
    text = f"Intervals of ratios are 95 % intervals on the log scale: {'; '.join(ways)}."
    moderated = blocks and pooling.within.prior.df > 0
    return Note("intervals-of-ratios", text, blocks=blocks, groups=groups, moderated=moderated)


def contrasts(runs: pd.DataFrame, within_blocks: pd.Series) -> str:
    """What the intervals of ratios are, and those of differences of mean epoch times and of throttling; nothing without one."""
    if not isinstance(of_ratios := ratios(runs, within_blocks), Note):
        return ""
    said = f"{of_ratios} Intervals of differences in seconds are made in the same way, from the seconds themselves"
    if runs["throttled_s"].notna().any():
        said += "; intervals of throttling use the two cells alone"
    return Note("intervals-of-contrasts", f"{said}.", **of_ratios.facts)


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
    said: list[str] = []
    placements = sorted(set(ok["placement"].dropna()))
    if placements:
        each = "; ".join(f"{name} ({_PLACEMENTS[name]})" for name in placements)
        said.append(Note("placement", f"Placement: {each}{_nodes(ok)}.", placements=placements))
    scopes = sorted(set(runs["batch_scope"].dropna()))
    if scopes:
        text = "Batch scope: " + "; ".join(_BATCH_SCOPES[scope] for scope in scopes) + "."
        said.append(Note("batch-scope", text, scopes=scopes))
    said.append(_timing_scope(ok))
    said += [note for name in sorted(set(ok["framework"])) for note in notes_of(name)]
    said += [software(runs), algorithms(runs)]
    if len(ok) and len(traced(ok)) == len(ok):
        said.append(ALL_TRACED)
    crowded = sorted(set(ok.loc[ok["oversubscribed"].fillna(False), "cell"]))
    if crowded:
        text = f"More threads than cores (oversubscribed): {named(crowded)}."
        said.append(Note("oversubscribed", text, cells=crowded))
    used, limits = ok["foreign_cpu_share"].dropna(), ok["max_foreign_cpu_share"].dropna()
    if len(used) and len(limits):
        text = (
            f"Other programs used at most {_percent(used.max())} of the processor time beside a run; with more than "
            f"{_percent(limits.max())} it would not count."
        )
        said.append(Note("foreign-cpu-time", text, share=float(used.max()), limit=float(limits.max())))
    stolen = ok[ok["steal_share"] > NOTABLE_STEAL_SHARE]
    if len(stolen):
        text = (
            f"In {len(stolen)} of {len(ok)} runs a hypervisor withheld more than {_percent(NOTABLE_STEAL_SHARE)} "
            f"of the processor time, at most {_percent(stolen['steal_share'].max())}."
        )
        most = float(stolen["steal_share"].max())
        said.append(Note("cpu-steal", text, runs=len(stolen), of=len(ok), share=most))
    return paragraph("circumstances", said)


def _timing_scope(ok: pd.DataFrame) -> str:
    """Whose clocks epochs were timed by; empty where no run says it."""
    masters = sorted(set(ok.loc[ok["timing_scope"] == "master", "framework"]))
    slowest = "ranks" in set(ok["timing_scope"].dropna())
    if not (masters or slowest):
        return ""
    text = "Timing scope: only the clock of the master."
    if slowest:
        text = "Timing scope: the slowest rank"
        text += f"; for {', '.join(masters)}, only the clock of the master." if masters else "."
    return Note("timing-scope", text, slowest_rank=slowest, masters=masters)


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
    scopes = sorted(set(runs["batch_scope"].dropna()), reverse=True)
    if not scopes:
        return ""
    each = "; ".join(said[scope] for scope in scopes)
    text = f"An epoch has the same number of samples on any number of replicas (strong scaling); {each}."
    return Note("work-of-an-epoch", text, scopes=scopes)


def shortfall(runs: pd.DataFrame) -> str:
    """The cells without a successful run by name (ten at most, then a count), and the runs that others lack."""
    bad = unsuccessful(runs)
    if bad.empty:
        return NO_CELL_MISSING
    missing = missing_cells(runs)
    said = f"Missing cells: {named(missing)}." if missing else NO_CELL_MISSING
    elsewhere = bad[~bad["cell"].isin(missing)]
    lacking = list(dict.fromkeys(elsewhere["cell"]))
    if lacking:
        said += f" {_count(len(elsewhere), 'run')} did not succeed in {named(lacking)}."
    return Note("shortfall", said, missing_cells=missing, runs=len(elsewhere), cells=lacking)


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
    return Note("constants", f"The same in all cells: {', '.join(said)}.", levels=levels) if said else ""


def tracing(runs: pd.DataFrame) -> str:
    """How many of all runs of a study were traced, which numbers are of them, and which of them lack phases; empty where none was."""
    some = traced(runs)
    if some.empty:
        return ""
    levels = ", ".join(dict.fromkeys(some["trace"]))
    whose = "tables of time are of the others" if len(some) < len(runs) else "tables of time are of them, too"
    text = f"Traced: {len(some)} of {_count(len(runs), 'run')} (trace {levels}). Tables of phases are of them; {whose}."
    said = Note("traced-runs", text, runs=len(some), of=len(runs), levels=list(dict.fromkeys(some["trace"])))
    return paragraph("tracing", [said, lacking_phases(runs)])


def lacking_phases(runs: pd.DataFrame, told: Collection[str] | None = None) -> str:
    """The traced runs of which nothing is known, each with its reason; empty for none. `told` as in `lost_phases`."""
    bad = unsuccessful(traced(runs))
    status = dict(zip(bad["run_id"], bad["status"], strict=True))
    text = f"Traced runs that did not succeed: {named([f'{run_id} ({why})' for run_id, why in status.items()])}."
    said = [Note("traced-runs-unsuccessful", text, status=status)] if status else []
    return paragraph("lacking-phases", [*said, lost_phases(runs, told)])


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
    command = f"./ringside repeat {first} --study {ok.at[first, 'study']}"
    text = f"Traced, but without phases: {each}; repeat such a run: {command}."
    return Note("without-phases", text, reasons=reasons, command=command)


def named(names: Sequence[str], separator: str = ", ") -> str:
    """Names with separators: ten, then how many more."""
    more = len(names) - NAMED
    return separator.join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"
