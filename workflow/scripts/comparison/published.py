"""Compare a campaign with published numbers (`declared.references`): is it within a margin of them?

A cell is compared with every published row of the same model, device, precision, number of devices and batch.
Both throughputs are in samples/s, so a ratio below 1 means that the campaign is slower:

    ratio   m / r, with an error e of its logarithm
    e^2     s^2 / n + c^2 / k

m is the harmonic mean of the cell's n runs with the standard deviation s of their logarithms
(`analysis.pooling`), r the published number of k runs with the coefficient of variation c. Where the source
gives no spread, c is 0: the interval then covers the campaign's runs alone. Degrees of freedom are by
Satterthwaite. "Within the margin" is shown by two one-sided tests (Schuirmann 1987), "beyond" by one test,
both with Holm's correction for all rows.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import special

from analysis import intervals, tables
from analysis.intervals import SIGNIFICANCE_LEVEL
from analysis.measured import (
    cell_levels,
    factors,
    level_text,
    read_timing_runs,
    successful,
    title,
    treatment_text,
    varying,
)
from analysis.pooling import pooled_response
from common.errors import InputError
from common.files import write_text
from common.notes import Note, find_note
from common.text import number_of
from comparison.draw import draw_ratios, farthest, selection_note
from comparison.matched import table_in
from declared.factors import DEVICES, NODES_AND_DEVICES
from declared.imported import campaign_name
from declared.references import PublishedCell, Reference, load_reference
from declared.responses import RESPONSES
from figures import style

THROUGHPUT = RESPONSES["throughput"]
WITHIN, SLOWER, FASTER, OPEN = "within", "slower", "faster", "open"
VENDORS = {
    "nvidia",
    "amd",
    "intel",
    "tesla",
    "instinct",
    "geforce",
    "gpu",
}  # words that names of devices may lack
BATCH_TOLERANCE = 1e-6
MAX_LISTED_VALUES = 3
PRINTED_NOTES = ("published", "no-published-spread", "not-compared")
# What may differ between a cell and a published row, the least basic first.
CONDITIONS = ("sequence length", "batch size", "global batch size", "devices", "precision", "device", "model")


@dataclass(frozen=True)
class CellFacts:
    """What a cell and a published row must have in common."""

    model: str
    device: str
    precision: str
    nodes: int
    devices_per_node: int
    global_batch: int
    batch_size: float
    sequence_length: int | None


def differences(cell: CellFacts, row: PublishedCell) -> Iterator[tuple[str, str, str]]:
    """Yield what differs, the cell's value and the row's, the most basic difference first."""
    if cell.model not in row.models:
        yield "model", cell.model, row.models[0]
    if not _words(row.device) <= _words(cell.device):
        yield "device", cell.device or "not recorded", row.device
    if cell.precision != row.precision:
        yield "precision", cell.precision, row.precision
    if (cell.nodes, cell.devices_per_node) != (row.nodes, row.devices_per_node):
        yield (
            "devices",
            f"{cell.nodes} x {cell.devices_per_node}",
            f"{row.nodes} x {row.devices_per_node}",
        )
    if cell.global_batch != row.global_batch:
        yield "global batch size", str(cell.global_batch), str(row.global_batch)
    elif row.batch_size and abs(cell.batch_size / row.batch_size - 1) > BATCH_TOLERANCE:
        yield "batch size", f"{cell.batch_size:g}", f"{row.batch_size:g}"
    if cell.sequence_length and row.sequence_length and cell.sequence_length != row.sequence_length:
        yield "sequence length", str(cell.sequence_length), str(row.sequence_length)


def _words(device: str) -> set[str]:
    """Return the words in the name of a device, without its vendor: {a100, sxm4, 40gb}."""
    return set(re.findall(r"[a-z0-9]+", device.lower())) - VENDORS


def cell_facts(runs: pd.DataFrame) -> dict[str, CellFacts]:
    """Return the facts of each cell with a successful run that has a throughput, in the order of tables."""
    ok = successful(runs).dropna(subset=THROUGHPUT.column)
    first = ok.drop_duplicates("cell").set_index("cell")
    tokens = first["throughput_tokens_s"].astype(float) / first[THROUGHPUT.column].astype(float)
    return {
        cell: CellFacts(
            model=str(row["model"]),
            device="" if pd.isna(row["devices"]) else str(row["devices"]),
            precision=str(row["precision"]),
            nodes=int(row["nodes"]),
            devices_per_node=int(row["replicas"]) // int(row["nodes"]),
            global_batch=int(row["effective_batch"]),
            batch_size=float(row["local_batch"]),
            sequence_length=None if math.isnan(tokens[cell]) else round(tokens[cell]),
        )
        for cell, row in first.reindex(
            [cell for cell in cell_levels(runs)["cell"] if cell in first.index]
        ).iterrows()
    }


def match_cells(
    runs: pd.DataFrame, reference: Reference
) -> tuple[list[tuple[str, PublishedCell]], dict[str, Note]]:
    """Return the pairs of cells and published rows that are compared, and why other cells are not.

    A refused cell's reason is the first difference from the rows that are most like it.
    """
    pairs, refused = [], {}
    for cell, facts in cell_facts(runs).items():
        by_row = [(row, list(differences(facts, row))) for row in reference.cells]
        if equal := [row for row, differing in by_row if not differing]:
            pairs += [(cell, row) for row in equal]
            continue
        first = [differing[0] for _, differing in by_row]
        name, own, _ = min(first, key=lambda difference: CONDITIONS.index(difference[0]))
        published = list(dict.fromkeys(value for condition, _, value in first if condition == name))
        text = f"{name} {own}, published is {_list_values(published)}"
        refused[cell] = Note(
            f"other-{name.replace(' ', '-')}", text, differs=name, own=own, published=published
        )
    return pairs, refused


def build_rows(runs: pd.DataFrame, reference: Reference, margin: float) -> pd.DataFrame:
    """Return a row per compared pair: levels of the cell, both throughputs, ratio, p values and verdict.

    Args:
        runs: Runs of the campaign.
        reference: Published numbers.
        margin: Share by which a throughput may differ: `within` is 1 / (1 + margin) to 1 + margin.

    Raises:
        InputError: If no cell can be compared.
    """
    pairs, refused = match_cells(runs, reference)
    if not pairs:
        problem = f"has no number of the same conditions: {_reasons(refused) or 'no run succeeded'}"
        raise InputError("nothing-to-compare", problem, file=f"config/references/{reference.name}.yaml")
    published = pd.DataFrame([_published_columns(row) for _, row in pairs])
    own = pooled_response(runs, THROUGHPUT).cell_statistics.loc[[cell for cell, _ in pairs]]
    mean, low, high, s, df, n = (
        own[name].to_numpy(float) for name in ("mean", "low", "high", "s", "df", "n")
    )
    spread, count = published["published_cv"].fillna(0.0), published["published_n"]
    squares = [s**2 / n, (spread**2 / count).to_numpy(float)]
    error = np.sqrt(squares[0] + squares[1])
    with np.errstate(all="ignore"):
        parts = squares[0] ** 2 / df + np.nan_to_num(squares[1] ** 2 / (count.to_numpy(float) - 1))
        df = np.where(error == 0, df, error**4 / parts)
    change = np.log(mean / published["published_samples_s"].to_numpy(float))
    ends = np.exp(intervals.t_interval(change, error, df))
    cells = cell_levels(runs).set_index("cell")
    varied = [name for name in varying(runs) if name != DEVICES]
    data = cells.loc[own.index, [*varied, DEVICES]].reset_index()
    data = data.assign(n=n.astype(int), samples_s=mean, samples_s_low=low, samples_s_high=high)
    data = data.join(published).assign(ratio=np.exp(change), ratio_low=ends[0], ratio_high=ends[1])
    limit = math.log1p(margin)
    with np.errstate(all="ignore"):
        beyond = special.stdtr(df, -(np.abs(change) - limit) / error)
    beyond = np.where(error == 0, (np.abs(change) <= limit).astype(float), beyond)
    data["p_within"] = intervals.equivalence_p(change, error, df, -limit, limit)
    data["p_within_holm"] = intervals.holm(data["p_within"].tolist())
    data["p_beyond"] = beyond
    data["p_beyond_holm"] = intervals.holm(beyond.tolist())
    side = np.where(change < 0, SLOWER, FASTER)
    is_within, is_beyond = (data[f"p_{name}_holm"] < SIGNIFICANCE_LEVEL for name in ("within", "beyond"))
    return data.assign(verdict=np.select([is_within, is_beyond], [WITHIN, side], OPEN))


def _published_columns(row: PublishedCell) -> dict[str, Any]:
    return {
        "published_framework": row.framework,
        "published_note": row.note,
        "published_n": row.runs,
        "published_cv": math.nan if row.cv is None else row.cv,
        "published_samples_s": row.throughput,
    }


def _reasons(refused: Mapping[str, Note]) -> str:
    """Return why cells are refused: what differs, in how many cells."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for note in refused.values():
        reason = (note.facts["differs"], _list_values(note.facts["published"]))
        by_reason.setdefault(reason, []).append(note.facts["own"])
    return "; ".join(
        f"{differs} {_list_values(own)}, published is {published} ({number_of(len(own), 'cell')})"
        for (differs, published), own in by_reason.items()
    )


def _list_values(values: Sequence[str]) -> str:
    """Return distinct values, at most MAX_LISTED_VALUES of them."""
    distinct = list(dict.fromkeys(values))
    rest = ["others"] if len(distinct) > MAX_LISTED_VALUES else []
    return " or ".join([*distinct[:MAX_LISTED_VALUES], *rest])


def make_table(runs: pd.DataFrame, name: str, reference: Reference, margin: float) -> tables.Table:
    """Return the table of a campaign, `name`, and published numbers."""
    data = build_rows(runs, reference, margin)
    percent = f"{100 * margin:g} %"
    differing_names = differing_factors(data)
    columns: dict[str, Any] = {title(factor): data[factor].map(level_text) for factor in differing_names}
    columns = columns or {"cell": data["cell"]}
    columns |= {
        "published": published_labels(data),
        "samples/s": tables.mean_texts(data, "samples_s", "samples_s"),
        "published samples/s": [tables.number(value, 4) for value in data["published_samples_s"]],
        "n": [f"{a}, {b}" for a, b in zip(data["n"], data["published_n"], strict=True)],
        "ratio": tables.interval_texts(data, "ratio"),
        "p within (Holm)": data["p_within_holm"].map(tables.p_value),
        f"within {percent}?": data["verdict"].map({WITHIN: "yes"}.get).fillna(data["verdict"]),
    }
    _, refused = match_cells(runs, reference)
    notes = [
        summary(data, name, reference, margin),
        f"Ratio: throughput in {name} divided by the published one; below 1, {name} is slower. n: runs of "
        "the cell, and runs behind the published number. Intervals are 95 % t intervals (Satterthwaite), "
        "not corrected for multiple comparisons.",
        Note(
            "margin",
            f"Within {percent}: yes where two one-sided tests show that the ratio lies in "
            f"{1 / (1 + margin):.3f} to {1 + margin:.3f}; slower or faster where a test shows that it lies "
            f"beyond; else open. All p are corrected by Holm's method for {number_of(len(data), 'row')}.",
            margin=margin,
        ),
        spread_note(data),
        Note(
            "same-conditions",
            "Compared rows agree in model, device, precision, number of devices and batch. Software, data "
            "pipeline, links and date may differ, and are part of the ratio.",
        ),
        reference.keys.note or "",
        Note("not-compared", f"Not compared: {_reasons(refused)}.", cells=dict(refused)) if refused else "",
        source_note(reference),
    ]
    words = [name for name in columns if name not in ("samples/s", "published samples/s", "n", "ratio")]
    table_title = f"Throughput compared with published numbers: {reference.keys.title}"
    return tables.Table(table_title, data, pd.DataFrame(columns), [note for note in notes if note], words)


def differing_factors(data: pd.DataFrame) -> list[str]:
    """Return the factors that differ between the compared cells."""
    names = [name for name in (*factors(data), DEVICES) if name in data]
    varied = [name for name in names if data[name].nunique(dropna=False) > 1]
    return [name for name in varied if name != DEVICES or not set(NODES_AND_DEVICES) & set(varied)]


def published_labels(data: pd.DataFrame) -> list[str]:
    """Return framework and note of each published row, without one that all rows share."""
    texts = data[["published_framework", "published_note"]].fillna("")
    differing_names = [name for name in texts if texts[name].nunique() > 1] or list(texts)
    return [
        ", ".join(filter(None, row)) or tables.DASH for row in texts[differing_names].itertuples(index=False)
    ]


def summary(data: pd.DataFrame, name: str, reference: Reference, margin: float) -> Note:
    """Return how many rows are within the margin, and the range of the ratios."""
    counts = data["verdict"].value_counts().to_dict()
    texts = {WITHIN: f"within {100 * margin:g} %", SLOWER: "slower", FASTER: "faster", OPEN: "open"}
    parts = [f"{counts[verdict]} {text}" for verdict, text in texts.items() if verdict in counts]
    low, high = (tables.number(end(data["ratio"])) for end in (min, max))
    ratios = f"ratio {low}" if low == high else f"ratios {low} to {high}"
    text = f"{name} and {reference.name}: {number_of(len(data), 'row')}: {', '.join(parts)} ({ratios})."
    return Note("published", text, by_verdict=counts, rows=len(data), margin=margin)


def spread_note(data: pd.DataFrame) -> Note | None:
    """Return how many published numbers have no spread, which the intervals then cannot cover."""
    unknown = int((data["published_cv"].isna() | (data["published_n"] < 2)).sum())
    if not unknown:
        return None
    text = (
        f"{number_of(unknown, 'published number')} without a spread: there the interval covers the "
        "campaign's runs alone, as if the published number were exact."
    )
    return Note("no-published-spread", text, rows=unknown)


def source_note(reference: Reference) -> Note:
    """Return where the published numbers come from."""
    keys = reference.keys
    address = f" ({keys.url})" if keys.url else ""
    text = f"Published numbers: {keys.source}{address}. Licence: {keys.licence}."
    return Note("source", text, source=keys.source, licence=keys.licence)


def _draw(table: tables.Table, name: str, margin: float) -> tuple[Figure, str]:
    """Return the figure of a table and its caption."""
    rows = farthest(table.data)
    differing_names = differing_factors(rows)
    levels = rows[differing_names].astype(object).to_dict("records")
    labels = [treatment_text(own) or cell for own, cell in zip(levels, rows["cell"], strict=True)]
    if len(set(published := published_labels(rows))) > 1:
        labels = [f"{label} | {text}" for label, text in zip(labels, published, strict=True)]
    drawn = draw_ratios(rows, labels, f"throughput, {name} over published", margin)
    notes = (selection_note(rows, table.data), find_note(table.notes, "published"), table.notes[-1])
    caption = (
        f"Throughput in {name} divided by a published one, on a logarithmic axis; the band is "
        f"{100 * margin:g} % around 1. Bars are 95 % intervals, not corrected for the number of rows. Filled "
        "markers have p < 0.05 after Holm's correction for all rows: black is within the band, red is "
        f"slower, blue is faster. {' '.join(filter(None, notes))}"
    )
    return drawn, caption


def compare_with_reference(campaign: Path, name: str, margin: float, *, dry_run: bool = False) -> None:
    """Write results/comparison/CAMPAIGN--REFERENCE/published.csv and so on, and print what was found.

    Args:
        campaign: Folder of a campaign with runs.csv.
        name: Name of a file in config/references/.
        margin: Share by which throughputs may differ.
        dry_run: Whether to write nothing.

    Raises:
        InputError: If one of the two does not exist, or no cell can be compared.
    """
    reference = load_reference(name)
    own_name = campaign_name(campaign)
    table = make_table(read_timing_runs(table_in(str(campaign), "BASE")), own_name, reference, margin)
    stem = Path("results", "comparison", f"{own_name}--{name}", "published")
    if not dry_run:
        tables.write(table, stem)
        figure, caption = _draw(table, own_name, margin)
        style.save(figure, stem)
        write_text(stem.with_name(f"{stem.name}.caption.md"), caption + "\n")
    for note in table.notes:
        if isinstance(note, Note) and note.code in PRINTED_NOTES:
            print(note)
    print(f"{'would write' if dry_run else 'wrote'} {stem}.md")
