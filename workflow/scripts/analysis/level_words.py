"""Words for factors, levels and cells, in tables, figures and sentences.

Four functions write levels as text:

    combination_text    each level after the title of its factor: `2 nodes, batch size 32, precision fp32`
    treatment_text      the short words of legends: `2 nodes, fp32, accumulation over 4 batches`
    context_text        `treatment_text` of some columns of a row, without missing levels
    setting_text        `treatment_text` with prepositions, for sentences: `on 2 nodes with batch size 32`

`cell_words` has the levels that distinguish a cell from the others of its study.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.records import treatments, varying
from declared.factors import N_DEVICES, SIZE_FACTORS, factor_rules
from models.collectives import COLLECTIVES

TRAINING_LOOPS = {"custom": "Ringside's loop", "fit": "framework's fit"}  # Names in legends.
OUT_OF_MEMORY_MARK = "OOM"  # Stands in place of a cell's value.
# Their levels are clear without a title; the column `treatment` names several factors (prediction.curves).
_UNTITLED_FACTORS = ("training_loop", "precision", "optimizer", "treatment")


def title(factor: str) -> str:
    """Return the title of a factor."""
    return str(factor_rules(factor).get("title", factor))


def title_with_unit(factor: str) -> str:
    """Return the title of a factor with its unit, as for an axis label."""
    unit = factor_rules(factor).get("unit")
    return f"{title(factor)} ({unit})" if unit and unit != title(factor) else title(factor)


def axis_label(runs: pd.DataFrame, factor: str) -> str:
    """Return the axis label of a factor: title and unit; for batch sizes also local or global."""
    if factor == N_DEVICES:
        return device_axis_label(runs)
    scopes = set(runs["batch_scope"].dropna()) if factor == "batch_size" else set()
    if scopes == {"local"}:
        return f"{title(factor)} (samples per replica)"
    return f"global {title_with_unit(factor)}" if scopes == {"global"} else title_with_unit(factor)


def device_axis_label(runs: pd.DataFrame) -> str:
    """Return what an axis of devices counts: "nodes" if each has one device, "GPUs", or "devices"."""
    if (runs["n_devices"] == runs["nodes"]).all():
        return "nodes"
    return "GPUs" if set(runs.get("device", ())) == {"cuda"} else "devices"


def level_text(level: Any) -> str:
    """Return the text of a level; a dash for a missing one."""
    if pd.isna(level):
        return "–"
    return f"{level:g}" if isinstance(level, float) else str(level)


def level_texts(rows: pd.DataFrame, runs: pd.DataFrame) -> dict[str, Any]:
    """Return the first columns of a table of cells, by title: framework and all other factors that vary.

    Args:
        rows: Cells with their factors.
        runs: Runs of the study.
    """
    names = ["framework", *varying(runs, exclude=["framework"])]
    return {title(name): rows[name].map(level_text) for name in names}


def combination_text(levels: Mapping[str, Any]) -> str:
    """Return the levels of several factors in words: `2 nodes, batch size 32`."""
    return ", ".join(_factor_level(factor, level) for factor, level in levels.items())


def _factor_level(factor: str, level: Any) -> str:
    if factor == "nodes":
        return f"{level} node" if level == 1 else f"{level} nodes"
    if factor == N_DEVICES:
        return f"{level} device" if level == 1 else f"{level} devices"
    if factor in ("framework", "model", "dataset"):
        return level_text(level)
    if factor == "collective":
        return COLLECTIVES[str(level)].title
    if factor == "bandwidth":
        return f"{level} Mbit/s" if level else "the site's links"
    return f"{title(factor)} {level_text(level)}"


def treatment_text(levels: Mapping[str, Any]) -> str:
    """Return levels in the short words of legends: `Ringside's loop, no accumulation`, `2 nodes`."""
    return ", ".join(_treatment_level(factor, level) for factor, level in levels.items())


def _treatment_level(factor: str, level: Any) -> str:
    if factor == "sync_every":
        return "no accumulation" if level == 1 else f"accumulation over {level} batches"
    if factor == "training_loop":
        return TRAINING_LOOPS.get(level, level)
    return level_text(level) if factor in _UNTITLED_FACTORS else _factor_level(factor, level)


def context_text(row: "pd.Series[Any] | Mapping[str, Any]", factors: Sequence[str]) -> str:
    """Return the levels of these factors in the words of `treatment_text`, without missing ones."""
    return treatment_text({name: row[name] for name in factors if not pd.isna(row[name])})


def setting_text(levels: Mapping[str, Any]) -> str:
    """Return levels as a phrase with prepositions: `on 2 nodes with batch size 16, no accumulation`."""
    sizes = {name: level for name, level in levels.items() if name in SIZE_FACTORS}
    further = {name: level for name, level in levels.items() if name not in sizes}
    phrases = (
        (preposition, treatment_text(part)) for preposition, part in (("on", sizes), ("with", further))
    )
    return " ".join(f"{preposition} {words}" for preposition, words in phrases if words)


def cell_words(runs: pd.DataFrame, exclude: Collection[str] = ()) -> dict[str, str]:
    """Return cell -> the levels in words that distinguish it from the other cells.

    Factors in `exclude` are left out. A cell that differs in no other factor keeps its name.
    """
    treated = [name for name in treatments(runs) if name not in exclude]
    names = varying(runs, exclude=[*treated, *exclude])
    words = {}
    for row in runs.drop_duplicates("cell").to_dict("records"):
        plain = combination_text({str(name): row[name] for name in names})
        treatment = treatment_text({name: row[name] for name in treated})
        words[str(row["cell"])] = ", ".join(part for part in (plain, treatment) if part) or str(row["cell"])
    return words
