"""Compare a campaign with published numbers (`declared.references`): is it within a margin of them?

A cell is compared with every published row of the same model, device, precision, number of devices, batch and
sequence length. A ratio below 1 means that the campaign is slower:

    ratio   m / r, with an error e of its logarithm
    e^2     s^2 / n + c^2 / k

m is the harmonic mean of the throughput of a cell's n runs, with the standard deviation s of their logarithms
(`analysis.cell_means`). r is the published throughput of k runs with the coefficient of variation c. If the
source gives no spread, c is 0, and the interval covers the campaign's runs alone. Degrees of freedom are by
Satterthwaite. Two one-sided tests show that a ratio is within the margin (Schuirmann 1987). One test shows
that it lies beyond. Both have Holm's correction for all rows.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from analysis import intervals, tables
from analysis.cell_means import estimate_response_means
from analysis.intervals import SIGNIFICANCE_LEVEL
from analysis.level_words import level_text, title
from analysis.records import cell_levels, read_timing_runs, successful, varying
from common.errors import InputError
from common.notes import Note
from common.text import number_of
from comparison.changes import log_ratios
from comparison.matched import runs_csv_of
from declared.factors import N_DEVICES, NODES_AND_DEVICES, factor_names
from declared.imported import campaign_name
from declared.references import PublishedCell, Reference, load_reference
from declared.responses import RESPONSES

THROUGHPUT = RESPONSES["throughput"]
WITHIN, SLOWER, FASTER, OPEN = "within", "slower", "faster", "open"
# Words that the name of a device may have or lack; they do not distinguish devices.
VENDORS = {"nvidia", "amd", "intel", "tesla", "instinct", "geforce"}
MAX_LISTED_VALUES = 3
# Attributes of a PublishedCell that the table has as columns, with the prefix published_.
PUBLISHED = ["framework", "note", "runs", "cv", "samples_s"]
PRINTED_NOTES = ("published", "no-published-spread", "not-compared")


def published_conditions(row: PublishedCell) -> dict[str, Any]:
    """Return the conditions of a published row, the most basic one first; None agrees with everything."""
    return {
        "model": row.model,
        "device": row.device,
        "precision": row.precision,
        "devices": f"{row.nodes} x {row.devices_per_node}",
        "global batch size": row.global_batch,
        "batch size": row.batch_size,
        "sequence length": row.sequence_length,
    }


def cell_conditions(runs: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return cell -> its conditions, named as in `published_conditions`, in the order of tables.

    Cells without a successful run that has a throughput are excluded.
    """
    ok = successful(runs).dropna(subset=THROUGHPUT.column)
    by_cell = ok.drop_duplicates("cell").set_index("cell")
    order = [cell for cell in cell_levels(runs)["cell"] if cell in by_cell.index]
    tokens = by_cell["throughput_tokens_s"].astype(float) / by_cell[THROUGHPUT.column].astype(float)
    return {
        cell: {
            "model": row["model"],
            "device": "not recorded" if pd.isna(row["devices"]) else row["devices"],
            "precision": row["precision"],
            "devices": f"{row['nodes']} x {row['n_devices'] // row['nodes']}",
            "global batch size": int(row["effective_batch"]),
            "batch size": float(row["local_batch"]),
            "sequence length": None if math.isnan(tokens[cell]) else round(tokens[cell]),
        }
        for cell, row in by_cell.loc[order].iterrows()
    }


def first_difference(cell: Mapping[str, Any], published: Mapping[str, Any]) -> str | None:
    """Return the most basic condition in which a cell and a published row differ, None if they agree.

    A cell's model has to be one of the published names. A cell's device has to have all published words.
    """
    for name, value in published.items():
        if name == "model":
            agrees = cell[name] in value
        elif name == "device":
            agrees = bool(_words(value)) and _words(value) <= _words(cell[name])
        else:
            agrees = None in (value, cell[name]) or cell[name] == value
        if not agrees:
            return name
    return None


def _words(device: str) -> set[str]:
    """Return the words in the name of a device, without its vendor: {a100, sxm4, 40gb}."""
    return set(re.findall(r"[a-z0-9]+", device.lower())) - VENDORS


def match_cells(
    runs: pd.DataFrame, reference: Reference
) -> tuple[list[tuple[str, PublishedCell]], list[tuple[str, str, list[str]]]]:
    """Return the pairs of cells and published rows that are compared, and why other cells are not.

    A reason is the condition in which a cell differs from the rows that agree with it furthest, with its
    value in the cell and its values in these rows.
    """
    pairs, refused = [], []
    published = [published_conditions(row) for row in reference.rows]
    for cell, conditions_of_cell in cell_conditions(runs).items():
        differing = [first_difference(conditions_of_cell, conditions) for conditions in published]
        if None in differing:
            pairs += [
                (cell, row) for row, name in zip(reference.rows, differing, strict=True) if name is None
            ]
            continue
        name = max(filter(None, differing), key=list(conditions_of_cell).index)
        similar = [conditions[name] for conditions, n in zip(published, differing, strict=True) if n == name]
        names = [value[0] if name == "model" else str(value) for value in similar]
        refused.append((name, str(conditions_of_cell[name]), names))
    return pairs, refused


def build_rows(runs: pd.DataFrame, reference: Reference, margin: float) -> pd.DataFrame:
    """Return a row per compared pair: levels of the cell, both throughputs, ratio, p values and verdict.

    Args:
        runs: Runs of the campaign.
        reference: Published numbers.
        margin: Share by which a throughput may differ: "within" is 1 / (1 + margin) to 1 + margin.

    Raises:
        InputError: If no cell can be compared.
    """
    pairs, refused = match_cells(runs, reference)
    if not pairs:
        problem = f"has no number of the same conditions: {_reasons(refused) or 'no run succeeded'}"
        raise InputError("nothing-to-compare", problem, file=reference.title)
    measured = estimate_response_means(runs, THROUGHPUT).cell_statistics.loc[[cell for cell, _ in pairs]]
    published = pd.DataFrame([vars(row) for _, row in pairs])[PUBLISHED].astype({"cv": float})
    exact = published.assign(mean=published["samples_s"], s=published["cv"].fillna(0.0), n=published["runs"])
    log_ratio, error, df = log_ratios(measured, exact.assign(df=np.maximum(exact["n"] - 1, 1)))
    varied = [name for name in varying(runs) if name != N_DEVICES]
    levels = cell_levels(runs).set_index("cell").loc[measured.index, [*varied, N_DEVICES]]
    columns = {
        "n": measured["n"],
        "samples_s": measured["mean"],
        "samples_s_low": measured["low"],
        "samples_s_high": measured["high"],
    }
    data = levels.assign(**columns).reset_index().join(published.add_prefix("published_"))
    limit = math.log1p(margin)
    with np.errstate(all="ignore"):
        beyond = special.stdtr(df, -(np.abs(log_ratio) - limit) / error)
    low, high = intervals.t_interval(log_ratio, error, df)
    data = data.assign(ratio=np.exp(log_ratio), ratio_low=np.exp(low), ratio_high=np.exp(high))
    data["p_within"] = intervals.equivalence_p(log_ratio, error, df, -limit, limit)
    data["p_beyond"] = np.where(error == 0, np.abs(log_ratio) <= limit, beyond)
    for name in ("p_within", "p_beyond"):
        data[f"{name}_holm"] = intervals.holm(data[name].tolist())
    is_shown = [data[f"{name}_holm"] < SIGNIFICANCE_LEVEL for name in ("p_within", "p_beyond")]
    side = np.where(log_ratio < 0, SLOWER, FASTER)
    return data.assign(verdict=np.select(is_shown, [np.full(len(data), WITHIN), side], OPEN))


def _reasons(refused: Iterable[tuple[str, str, list[str]]]) -> str:
    """Return which conditions differ, and in how many cells; `refused` comes from `match_cells`."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for name, value, published in refused:
        by_reason.setdefault((name, _list_values(published)), []).append(value)
    return "; ".join(
        f"{name} {_list_values(values)}, published is {published} ({number_of(len(values), 'cell')})"
        for (name, published), values in by_reason.items()
    )


def _list_values(values: Iterable[str]) -> str:
    """Return distinct values, at most MAX_LISTED_VALUES of them."""
    distinct = list(dict.fromkeys(values))
    return " or ".join([*distinct[:MAX_LISTED_VALUES], *["others"] * (len(distinct) > MAX_LISTED_VALUES)])


def make_table(runs: pd.DataFrame, name: str, reference: Reference, margin: float) -> tables.Table:
    """Return the table of a campaign, `name`, and published numbers.

    Raises:
        InputError: If no cell can be compared.
    """
    data, percent = build_rows(runs, reference, margin), f"{100 * margin:g} %"
    varied = [
        factor for factor in (*factor_names(data), N_DEVICES) if factor in data and data[factor].nunique() > 1
    ]
    varied = [factor for factor in varied if factor != N_DEVICES or not set(NODES_AND_DEVICES) & set(varied)]
    labels = {title(factor): data[factor].map(level_text) for factor in varied} or {"cell": data["cell"]}
    texts = data[["published_framework", "published_note"]].fillna("").itertuples(index=False)
    labels["published"] = [", ".join(filter(None, row)) or tables.DASH for row in texts]
    columns = labels | {
        "samples/s": tables.mean_texts(data, "samples_s", "samples_s"),
        "published samples/s": [tables.number(value, 4) for value in data["published_samples_s"]],
        "n": [f"{n}, {published}" for n, published in zip(data["n"], data["published_runs"], strict=True)],
        "ratio": tables.interval_texts(data, "ratio"),
        "p within (Holm)": data["p_within_holm"].map(tables.p_value),
        f"within {percent}?": data["verdict"].replace(WITHIN, "yes"),
    }
    notes = [
        *_verdict_notes(data, name, reference, percent),
        f"Ratio: throughput in {name} divided by the published one; below 1, {name} is slower. n: runs of "
        "the cell, and runs of the published number. Intervals are 95 % t intervals (Satterthwaite), not "
        "corrected for multiple comparisons.",
        Note(
            "margin",
            f"Yes: two one-sided tests show that the ratio lies between {1 / (1 + margin):.3f} and "
            f"{1 + margin:.3f}. Slower, faster: a test shows that it lies beyond. Open: neither is shown. "
            f"All p are corrected by Holm's method for {number_of(len(data), 'row')}.",
            margin=margin,
        ),
        "Compared rows agree in model, device, precision, number of devices, batch and sequence length. "
        "Software, data pipeline, links and date may differ, and are part of the ratio.",
        reference.note or "",
        _not_compared_note(runs, reference),
        Note(
            "source",
            f"Published numbers: {reference.source}{f' ({reference.url})' if reference.url else ''}. "
            f"Licence: {reference.licence}.",
            licence=reference.licence,
        ),
    ]
    table_title = f"Throughput compared with published numbers: {reference.title}"
    left_aligned = [*labels, f"within {percent}?"]
    return tables.Table(table_title, data, pd.DataFrame(columns), notes, left_aligned)


def _verdict_notes(data: pd.DataFrame, name: str, reference: Reference, percent: str) -> Iterator[Note]:
    """Yield the numbers of rows by verdict, and the number of published rows without a spread."""
    counts = data["verdict"].replace(WITHIN, "yes").value_counts().to_dict()
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    yield Note("published", f"{name} within {percent} of {reference.title}? {summary}.", by_verdict=counts)
    if n_exact := int((data["published_cv"].isna() | (data["published_runs"] < 2)).sum()):
        text = (
            f"{number_of(n_exact, 'published number')} without a spread: their intervals cover the runs of "
            f"{name} alone, as if the published number were exact."
        )
        yield Note("no-published-spread", text, rows=n_exact)


def _not_compared_note(runs: pd.DataFrame, reference: Reference) -> str:
    """Return a note on why cells are not compared; "" if all are."""
    _, refused = match_cells(runs, reference)
    return Note("not-compared", f"Not compared: {_reasons(refused)}.", reasons=refused) if refused else ""


def compare_with_reference(campaign: str, name: str, margin: float) -> None:
    """Write results/comparison/CAMPAIGN--REFERENCE/published.csv, .md and .tex, and print the verdicts.

    Args:
        campaign: Folder of a campaign with runs.csv, or name of a study.
        name: Name of a file in config/references/.
        margin: Share by which throughputs may differ.

    Raises:
        InputError: If one of the two does not exist, or no cell can be compared.
    """
    reference, short_name = load_reference(name), campaign_name(campaign)
    table = make_table(read_timing_runs(runs_csv_of(campaign, "BASE")), short_name, reference, margin)
    stem = Path("results", "comparison", f"{short_name}--{name}", "published")
    tables.write(table, stem)
    lines = [note for note in table.notes if isinstance(note, Note) and note.code in PRINTED_NOTES]
    print(*lines, f"wrote {stem}.md", sep="\n")
