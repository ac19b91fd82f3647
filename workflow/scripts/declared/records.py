"""Describe the tables of records, the inputs of figures and tables; config/schemas/ has their columns."""

from collections.abc import Mapping
from dataclasses import dataclass

WARNING_SEPARATOR = " | "  # between the warnings of a run, which can contain semicolons
SETTING_SEPARATOR = " | "  # between the settings of a run


def join_settings(settings: Mapping[str, str]) -> str | None:
    """Return the settings of a record as the text of a row of runs.csv, None without any."""
    return SETTING_SEPARATOR.join(f"{name}: {value}" for name, value in settings.items()) or None


def split_settings(text: str) -> dict[str, str]:
    """Return the settings in the text of a row of runs.csv; the inverse of join_settings."""
    entries = (entry.partition(": ") for entry in text.split(SETTING_SEPARATOR))
    return {name: value for name, _, value in entries}


@dataclass(frozen=True)
class RecordTable:
    """A table of records.

    Attributes:
        rows: Meaning of a row, and which studies have the table.
        note: Further sentences for the reference pages.
        when: Traits of the studies that have it (declared.products.traits).
    """

    rows: str
    note: str = ""
    when: tuple[str, ...] = ()


RECORD_TABLES = {
    "runs": RecordTable(
        "one row per run of the design, whether or not it succeeded",
        "Figures and tables are made from this file, `epochs.csv` and `network.csv` alone; those of traced "
        "runs also from `phases.csv`, `trace_steps.csv` and `replay_steps.csv`.",
    ),
    "epochs": RecordTable("one row per epoch of a run", "Join it to `runs.csv` by `run_id`."),
    "network": RecordTable(
        "one row per repetition of a collective benchmark, if the study has distributed "
        "frameworks on several nodes",
        "A benchmark without results has one row with its status and reason.",
        when=("has_collective_benchmark",),
    ),
    "costs": RecordTable(
        "one row per layer of a model and way to partition it, if strategies are searched (`./ringside "
        "strategies`): medians over repetitions, for one part",
        when=("costs_timed",),
    ),
    "messages": RecordTable(
        "one row per size of messages between two ranks, if strategies are searched", when=("costs_timed",)
    ),
    "power": RecordTable(
        "one row per sample of a machine's power while a run trained, if the study draws the figure `power`",
        when=("power_recorded",),
    ),
    "nodes": RecordTable(
        "one row per test of a node, or of one of its accelerators, if the study has `node_check`",
        when=("nodes_checked",),
    ),
    "phases": RecordTable(
        "one row per traced run, rank and phase, and of the critical path, which has no rank",
        "Join it to `runs.csv` by `run_id`. [Where the time of a step goes](../how-to/phases.md) says what "
        "the phases mean.",
        when=("traced",),
    ),
    "trace_steps": RecordTable(
        "one row per interval of a few consecutive steps of a typical traced run of each cell",
        when=("trace_steps_recorded",),
    ),
    "replay_steps": RecordTable(
        "one row per interval of the steps of every traced run that the table "
        "[`what_if`](tables.md#what_if) replays",
        when=("replay_steps_recorded",),
    ),
}
