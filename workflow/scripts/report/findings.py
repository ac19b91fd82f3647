"""State in numbers what each figure of a paper shows, from the study's runs and tables.

A finding is a sentence with FIGURE_REFERENCE in place of the reference to its figure. FINDINGS has functions
for some kinds of figures, and for some pairs of a kind and a quantity on its y axis. Other kinds that show a
response get the range of its means. For a figure without a finding, the paper leaves a reminder to its
author. A figure of an effect that the answer states has no finding: the answer's sentence refers to it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from analysis import shares, tables
from analysis.anova import BLOCK, ERROR, TOTAL
from analysis.cell_means import estimate_means, estimate_response_means
from analysis.evidence import Evidence
from analysis.intervals import ESTIMATE_COLUMNS, SIGNIFICANCE_LEVEL, Estimate, estimate_of, p_text
from analysis.level_words import cell_words, combination_text, level_text, setting_text, title
from analysis.records import cell_levels, currency_of, levels_in_order, successful, varying
from analysis.responses import with_response
from analysis.speedup import accumulates_as_baseline
from common.notes import Note
from common.text import join_words, number_of
from common.units import DATA_RATES, TIMES, in_one_unit
from declared.figure_specs import FigureSpec
from declared.products.figure_kinds import KINDS
from declared.responses import EPOCH_TIME, RESPONSES, Response
from figures.kinds.strategies import multi_node_runs
from figures.view import filtered
from network.fit import MAX_FIT_DEVIATION, deviation_note
from prediction.held_out import ALL, IN_SAMPLE
from prediction.methods import LAW

FIGURE_REFERENCE = "THISFIGURE"  # The paper replaces it by the reference to the figure.
MIN_SHARE = 0.05  # Smaller shares of the variation are not named.
MAX_TERMS = 3
CELL_COLUMNS = {"cell", "from_cell", "to_cell"}  # Columns of tables that name cells.
# Columns of `effects`, which has no bounds for single runs.
RATIO = ["ratio", "ratio_low_simultaneous", "ratio_high_simultaneous"]


def evidence_of_figure(spec: FigureSpec, evidence: Evidence) -> Evidence:
    """Return the evidence on the cells that the figure's filter keeps, and whole tables without cells."""
    if not spec.filter:
        return evidence
    runs = filtered(evidence.runs, spec)
    cells = set(runs["cell"])
    kept_tables = {
        name: table[table[list(CELL_COLUMNS & set(table))].isin(cells).all(axis=1)]
        for name, table in evidence.tables.items()
    }
    return replace(evidence, runs=runs, tables=kept_tables)


Finder = Callable[[FigureSpec, Evidence], Note | None]


def state_finding(spec: FigureSpec, evidence: Evidence) -> Note | None:
    """Return what a figure shows, in a sentence with numbers; None if there is no finding for it."""
    evidence = evidence_of_figure(spec, evidence)
    if successful(evidence.runs).empty:
        return None
    quantity = shown_quantity(spec)
    find = FINDINGS.get((spec.kind, quantity)) or FINDINGS.get((spec.kind, None))
    if find:
        return find(spec, evidence)
    return _range_of_response(spec, evidence) if KINDS[spec.kind].shows_response else None


def shown_quantity(spec: FigureSpec) -> str | None:
    """Return the quantity on the y axis of a figure; None if its kind has no choice of it."""
    # The first value that a kind allows is its default.
    return spec.y or next(iter(KINDS[spec.kind].allowed_y), None)


def find_effect_note(spec: FigureSpec, notes: Sequence[Note], response: Response) -> Note | None:
    """Return the sentence of an answer on the effect that a figure shows; None without one.

    Args:
        spec: The figure.
        notes: Sentences of the answer. Those with the code `effect` name their factor in the fact `factor`.
        response: The response of the answer.
    """
    if spec.kind != "by_factor" or spec.filter or shown_quantity(spec) != response.name:
        return None
    effects = (note for note in notes if note.code == "effect")
    return next((note for note in effects if note.facts["factor"] == spec.x), None)


def refer_to_figure(note: Note, name: str) -> Note:
    """Return a sentence of the answer with a reference to a figure, which its fact `figure` names."""
    return Note(note.code, f"{note.removesuffix('.')} ({FIGURE_REFERENCE}).", **note.facts, figure=name)


def _range_of_response(spec: FigureSpec, evidence: Evidence) -> Note | None:
    """Name the cells with the smallest and the largest mean of the figure's response."""
    return _range_of_means(RESPONSES[str(shown_quantity(spec))], spec.target, evidence)


def _range_of_means(response: Response, target: float | None, evidence: Evidence) -> Note | None:
    """Name the cells with the smallest and the largest mean of a response.

    The means are computed from the runs, because the table `cells` has only some responses.
    """
    response = response.with_currency(currency_of(evidence.runs))
    runs = with_response(evidence.runs, response, evidence.load_epochs, target)
    means = estimate_response_means(runs, response).cell_statistics["mean"].dropna()
    rows = means.rename(response.column).rename_axis("cell").reset_index()
    subject, unit = f"mean {response.title}", f" {response.unit}"
    return _range_note(evidence, rows, response.column, subject, response.unit_multiplier, unit)


def _peak_memory(_spec: FigureSpec, evidence: Evidence) -> Note | None:
    """Name the drawn cells with the smallest and the largest peak memory of a rank."""
    drawn = replace(evidence, runs=multi_node_runs(evidence.runs))
    return _range_of_means(RESPONSES["memory"], None, drawn)


def _epoch_time_range(_spec: FigureSpec, evidence: Evidence) -> Note | None:
    """Name the fastest and the slowest cell."""
    cell_means = estimate_means(evidence.runs)
    means = cell_means.cell_statistics["mean"].dropna().sort_values(kind="stable")
    if len(means) < 2:
        return None
    fastest, slowest = str(means.index[0]), str(means.index[-1])
    low, high = (f"{tables.interval(cell_means.cell_mean(cell))} s" for cell in (fastest, slowest))
    ratio = Estimate(*cell_means.ratios([slowest], [fastest])[ESTIMATE_COLUMNS].iloc[0])
    return Note(
        "epoch-time-range",
        f"An epoch is shortest with {evidence.cell(fastest)}: {low} on average. It is longest with "
        f"{evidence.cell(slowest)}: {high}, {tables.ratio(ratio)} times as long (uncorrected interval; "
        f"{FIGURE_REFERENCE}).",
        fastest=fastest,
        slowest=slowest,
        ratio=ratio.value,
    )


def _effect_of_factor(spec: FigureSpec, evidence: Evidence) -> Note | None:
    """Return how epoch time changes from the first to the last level of the figure's factor."""
    factor = str(spec.x)
    effects = evidence.table("effects", "factor", "ratio")
    rows = effects[effects["factor"] == factor]
    levels = levels_in_order(evidence.runs, factor)
    if len(rows):
        first, last = (level_text(level) for level in (levels[0], levels[-1]))
        texts = rows[["from", "to"]].map(_csv_level)
        rows = rows[(texts["from"] == first) & (texts["to"] == last)].sort_values("ratio", kind="stable")
    if rows.empty:
        return _epoch_time_range(spec, evidence)
    least, greatest = (Estimate(*rows.iloc[at].reindex(RATIO)) for at in (0, -1))
    contexts = [_other_levels(evidence, str(rows.iloc[at]["to_cell"]), factor) for at in (0, -1)]
    change = " to ".join(combination_text({factor: level}) for level in (levels[0], levels[-1]))
    tested = rows["p_holm"].dropna() if "p_holm" in rows else pd.Series(dtype=float)
    n_significant = int((tested < SIGNIFICANCE_LEVEL).sum())
    counts = (
        f"; {n_significant} of {len(tested)} differences are significant after Holm's correction"
        if len(tested) > 1
        else ""
    )
    smallest, largest = (
        f"{_change_text(ratio)}{context}" for ratio, context in zip((least, greatest), contexts, strict=True)
    )
    effect_text = (
        f"the change in epoch time ranges from {smallest} to {largest}"
        if len(rows) > 1
        else f"epoch time changes by {smallest}"
    )
    return Note(
        "effect-range",
        f"From {change}, {effect_text} ({FIGURE_REFERENCE}){counts}.",
        factor=factor,
        least=least,
        greatest=greatest,
        significant=n_significant,
        tested=len(tested),
    )


def _interaction(spec: FigureSpec, evidence: Evidence) -> Note | None:
    """Return how much of the variation the interaction of the figure's two factors explains.

    None for a figure with a filter, because the table `anova` is about all cells.
    """
    factors = [str(spec.x), *(spec.colour or ())]
    titles = [title(name) for name in factors]
    rows = evidence.table("anova", "term", "share", "p")
    rows = rows[rows["term"].isin([" × ".join(titles), " × ".join(reversed(titles))])]
    if spec.filter or rows.empty or shown_quantity(spec) != evidence.response.name:
        return None
    share, p = float(rows.iloc[0]["share"]), float(rows.iloc[0]["p"])
    pair = " and ".join(titles)
    text = (
        f"The effects of {pair} depend on each other: their interaction explains {100 * share:.1f} % of the "
        f"variation of log {evidence.response.title} ({p_text(p)}; {FIGURE_REFERENCE})."
        if p < SIGNIFICANCE_LEVEL
        else f"The data show no interaction of {pair} ({p_text(p)}; {FIGURE_REFERENCE})."
    )
    return Note("interaction", text, factors=factors, share=share, p=p)


def speedups(evidence: Evidence, reference: str = FIGURE_REFERENCE) -> Note | None:
    """Name the smallest and the largest speed-up at the most devices, which `reference` shows."""
    every_row = evidence.table("speedup", "n_devices", "speedup", "efficiency", "cell")
    rows = every_row[every_row["n_devices"] > 1]
    if rows.empty:
        return None
    n_devices = int(rows["n_devices"].max())
    rows = rows[rows["n_devices"] == n_devices].sort_values("speedup", kind="stable")
    is_alike = accumulates_as_baseline(evidence.tables["speedup"])[rows.index]
    accumulating = rows[~is_alike] if is_alike.any() else rows[:0]
    rows = rows[is_alike] if is_alike.any() else rows
    ends = [rows.iloc[0], rows.iloc[-1]][: len(rows)]
    *texts, with_accumulation = [
        f"{tables.interval(estimate_of(row, 'speedup'))}, an efficiency of "
        f"{100 * row['efficiency']:.1f} %, with {evidence.cell(row['cell'], group['cell'])}"
        for row, group in (
            *((end, rows) for end in ends),
            (accumulating.iloc[-1], accumulating) if len(accumulating) else (ends[-1], rows),
        )
    ]
    begins_later = "baseline_n_devices" in rows and (rows["baseline_n_devices"] > 1).any()
    baseline = "the fewest devices" if begins_later else "the single-device baseline"
    subject = f"{'Without accumulation, on' if len(accumulating) else 'On'} {n_devices} devices"
    subject += f", speed-up over {baseline}"
    text = (
        f"{subject} is {texts[-1]} ({reference})."
        if len(ends) == 1
        else f"{subject} is at best {texts[-1]} ({reference}). The smallest is {texts[0]}."
    )
    if len(accumulating):
        text += (
            f" With accumulation, against the same baseline, it is at best {with_accumulation}, which "
            "includes what accumulation saves."
        )
    text += _speedups_on_one_device(evidence, every_row)
    return Note(
        "speedup-range",
        text,
        n_devices=n_devices,
        least=float(rows["speedup"].iloc[0]),
        greatest=float(rows["speedup"].iloc[-1]),
        accumulating=float(accumulating["speedup"].iloc[-1]) if len(accumulating) else None,
    )


def _speedups_on_one_device(evidence: Evidence, rows: pd.DataFrame) -> str:
    """Return a sentence on cells on one device whose baseline is another framework; "" without any."""
    if "baseline_framework" not in rows:
        return ""
    rows = rows[(rows["n_devices"] == 1) & (rows["framework"] != rows["baseline_framework"])]
    is_alike = accumulates_as_baseline(evidence.tables["speedup"])[rows.index]
    rows = rows[is_alike].sort_values("speedup", kind="stable")
    texts = [
        f"{tables.interval(estimate_of(row, 'speedup'))} ({evidence.cell(row['cell'], rows['cell'])})"
        for _, row in rows.iloc[[0, -1] if len(rows) > 1 else slice(None)].iterrows()
    ]
    scope = "" if is_alike.all() else " without accumulation"
    return f" On one device{scope}, where nothing is sent, it is {' to '.join(texts)}." if texts else ""


def _range_of_column(column: str, subject: str, unit_multiplier: float, unit: str) -> Finder:
    """Return a function that names the cells with the extreme values of a column of the table `cells`."""
    return lambda _, evidence: _range_note(
        evidence, evidence.table("cells", column, "cell"), column, subject, unit_multiplier, unit
    )


def _time_to_accuracy(spec: FigureSpec, evidence: Evidence) -> Note | None:
    """Name the cells that reach the target first and last, and count those that do not."""
    column = "time_to_accuracy_s"
    rows = evidence.table("time_to_accuracy", column, "cell")
    n_cells = len(evidence.tables.get("time_to_accuracy", ()))
    target = f"the target of {100 * spec.target:g} %" if spec.target else "the target accuracy"
    subject = f"{len(rows)} of {n_cells} cells reach {target} in every run; the time to it"
    return _range_note(evidence, rows, column, subject, 1.0, " s")


def _range_note(
    evidence: Evidence, rows: pd.DataFrame, column: str, subject: str, unit_multiplier: float, unit: str
) -> Note | None:
    """Return the cells with the smallest and the largest value of a column; None without rows."""
    if rows.empty:
        return None
    rows = rows.sort_values(column, kind="stable")
    least, greatest = rows.iloc[0], rows.iloc[-1]
    printed = (unit_multiplier * rows[column].astype(float)).map(tables.number)
    texts = []
    for row in (least, greatest):
        value = tables.number(unit_multiplier * row[column])
        # A name is only for a cell that is alone at the printed precision.
        n_tied = int((printed == value).sum())
        phrase = f"with {evidence.cell(row['cell'])}" if n_tied == 1 else ""
        if n_tied > 1:
            phrase = f"in {n_tied} cells{_shared_levels_text(evidence, rows.loc[printed == value, 'cell'])}"
        texts.append(f"{value}{unit} {phrase}")
    return Note(
        "range",
        f"As {FIGURE_REFERENCE} shows, {subject} is lowest, {texts[0]}, and highest, {texts[1]}."
        if len(rows) > 1
        else f"As {FIGURE_REFERENCE} shows, {subject} is {texts[0]}.",
        column=column,
        least=float(least[column]),
        greatest=float(greatest[column]),
        tied=[int((printed == printed.iloc[at]).sum()) for at in (0, -1)],
    )


def _shared_levels_text(evidence: Evidence, cells: "pd.Series[str]") -> str:
    """Return the levels that all these cells share, as a phrase after `cells`; "" without any."""
    levels = cell_levels(evidence.runs).set_index("cell")
    levels = levels.loc[cells, varying(evidence.runs)]
    shared = {name: levels[name].iloc[0] for name in levels if levels[name].nunique(dropna=False) == 1}
    return f" {setting_text(shared)}" if shared else ""


def _communication(_spec: FigureSpec, evidence: Evidence) -> Note | None:
    """Name the cells with the smallest and the largest share of an epoch beyond its computation."""
    parts = shares.epoch_shares(evidence.runs)
    n_devices = successful(evidence.runs).drop_duplicates("cell").set_index("cell")["n_devices"]
    scaled = parts[(n_devices.reindex(parts.index) > 1) & parts["communication"].notna()]
    if scaled.empty:
        return None
    ordered = scaled.assign(communication=scaled["communication"].clip(0, 1)).sort_values(
        "communication", kind="stable"
    )
    texts = [
        f"{100 * ordered['communication'].iloc[at]:.0f} % with {evidence.cell(ordered.index[at])}"
        for at in (0, -1)
    ]
    return Note(
        "communication-range",
        "On more than one device, the part of an epoch that computation does not explain (communication, "
        f"waiting and contention) {'ranges from' if len(ordered) > 1 else 'is'} "
        f"{' to '.join(texts[: len(ordered)])} ({FIGURE_REFERENCE}).",
        least=float(ordered["communication"].iloc[0]),
        greatest=float(ordered["communication"].iloc[-1]),
    )


def _network(_spec: FigureSpec, evidence: Evidence) -> Note | None:
    """Name the frameworks with the shortest latency and the largest bandwidth of all-reduce."""
    rows = evidence.table("network", "framework", "nodes", "latency_s", "achieved_bytes_s", "deviation")
    if "collective" in rows:
        rows = rows[rows["collective"] == "all_reduce"]
    if rows.empty:
        return None
    n_nodes = int(rows["nodes"].max())
    rows = rows[rows["nodes"] == n_nodes]
    good_fits = rows[rows["deviation"] <= MAX_FIT_DEVIATION]
    bandwidth, latency = (
        " to ".join(
            f"{in_one_unit([row[name]], units, digits=3)} ({row['framework']})"
            for row in ordered.iloc[[0, -1] if len(ordered) > 1 else slice(None)].to_dict("records")
        )
        for name, units, ordered in (
            ("achieved_bytes_s", DATA_RATES, rows.sort_values("achieved_bytes_s", kind="stable")),
            ("latency_s", TIMES, good_fits.sort_values("latency_s", kind="stable")),
        )
    )
    fitted = f", and its fitted latency {latency}" if latency else ""
    return Note(
        "network-range",
        f"On {n_nodes} nodes, the measured bus bandwidth of all-reduce is {bandwidth} at the largest "
        f"message{fitted} ({FIGURE_REFERENCE}). {deviation_note(rows['deviation'])}",
        nodes=n_nodes,
        latencies_s=[good_fits["latency_s"].min(), good_fits["latency_s"].max()],
    )


def _prediction(_spec: FigureSpec, evidence: Evidence) -> Note | None:
    """Return the errors of methods for cells that were left out of the fit.

    Of several left-out levels, the sentence is about the one with the most cells that the law predicts.
    """
    rows = evidence.table("prediction", "left_out", "method", "predicted", "mape")
    rows = rows[~rows["left_out"].isin([IN_SAMPLE, ALL]) & (rows["predicted"] > 0)]
    of_law = rows[rows["method"] == LAW].sort_values("predicted", kind="stable")
    if of_law.empty:
        return None
    left_out, n_cells = of_law.iloc[-1][["left_out", "predicted"]]
    rows = rows[(rows["left_out"] == left_out) & (rows["predicted"] == n_cells)].sort_values("mape")
    errors = {str(row["method"]): estimate_of(row, "mape").times(100) for _, row in rows.iterrows()}
    texts = [
        f"{tables.interval(error)} % by {'the law' if method == LAW else method.removeprefix('by ')}"
        for method, error in errors.items()
    ]
    return Note(
        "prediction-errors",
        f"For {number_of(int(n_cells), 'cell')} with {left_out}, left out of the fit, the mean absolute "
        f"error of predictions is {join_words(texts)} ({FIGURE_REFERENCE}).",
        left_out=left_out,
        errors=errors,
    )


def variation_note(evidence: Evidence) -> Note | None:
    """Return which factors explain the differences between runs, and how large scatter is."""
    rows = evidence.table("anova", "term", "share")
    parts = rows.set_index("term")["share"].astype(float).sort_values(ascending=False, kind="stable")
    scatter, between_blocks = parts.get(ERROR), parts.get(BLOCK)
    has_overlap = round(100 * parts.drop(TOTAL, errors="ignore").sum(), 1) > 100
    parts = parts.drop([ERROR, TOTAL, BLOCK], errors="ignore")
    named = dict(parts[parts >= MIN_SHARE].head(MAX_TERMS))
    if not named:
        return None
    text = (
        f"The largest parts of the variation of {evidence.response.title} come from "
        f"{join_words([f'{term} ({100 * share:.1f} %)' for term, share in named.items()])}"
        f"{'; shares overlap' if has_overlap else ''}."
    )
    if scatter:
        of_blocks = ""
        if between_blocks:
            of_blocks = f" ({100 * between_blocks:.1f} % between blocks, {100 * scatter:.1f} % within)"
            scatter += between_blocks
        rank = _rank_text(scatter, named)
        text += f" Runs of the same configuration account for {100 * scatter:.1f} %{of_blocks}, {rank}."
    return Note("variation", text, shares=named, scatter=scatter)


def _rank_text(scatter: float, shares_of_terms: Mapping[str, float]) -> str:
    """Return how the share of scatter compares with the largest shares of terms, in descending order."""
    larger = [f"{term} ({100 * share:.1f} %)" for term, share in shares_of_terms.items() if share > scatter]
    if len(larger) == len(shares_of_terms):
        return f"less than {'each of these' if len(larger) > 1 else 'this'}"
    return f"more than any factor except {join_words(larger)}" if larger else "more than any factor"


def _change_text(ratio: Estimate) -> str:
    """Return a ratio as a signed change in per cent with its interval."""
    error = tables.half_width(ratio)
    value, low, high = (
        "±0" if math.isclose(part, 1) else _signed(tables.with_error(100 * (part - 1), error and 100 * error))
        for part in (ratio.value, ratio.low, ratio.high)
    )
    return f"{value} %" if math.isnan(ratio.low) else f"{value} % [{low} %, {high} %]"


def _signed(text: str) -> str:
    """Return the text of a number with its sign."""
    return text if text.startswith("−") else f"{'+' if text.strip('0.') else '±'}{text}"


def _other_levels(evidence: Evidence, cell: str, factor: str) -> str:
    words = cell_words(evidence.runs, exclude=[factor])[cell]
    return "" if words == cell else f" ({words})"


def _csv_level(level: object) -> str:
    """Return the text of a level as read from CSV, where a column with other texts holds texts."""
    try:
        number = float(level)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return level_text(level)
    return level_text(int(number)) if number.is_integer() else level_text(number)


# Keyed by kind and quantity on the y axis; None for all quantities, and for kinds without a choice of it.
FINDINGS: Mapping[tuple[str, str | None], Finder] = {
    ("overview", EPOCH_TIME.name): _epoch_time_range,
    ("heat_map", EPOCH_TIME.name): _epoch_time_range,
    ("by_factor", EPOCH_TIME.name): _effect_of_factor,
    ("scaling", "speedup_and_efficiency"): lambda _, evidence: speedups(evidence),
    ("scaling", "efficiency"): lambda _, evidence: speedups(evidence),
    ("interaction", None): _interaction,
    ("memory", None): _peak_memory,
    ("accuracy", "accuracy"): _range_of_column(
        "validation_accuracy_mean", "mean validation accuracy after the last epoch", 100.0, " %"
    ),
    ("accuracy", "perplexity"): _range_of_column(
        "perplexity_mean", "mean perplexity after the last epoch", 1.0, ""
    ),
    ("time_to_accuracy", None): _time_to_accuracy,
    ("shares", None): _communication,
    ("network", None): _network,
    ("prediction", None): _prediction,
}
