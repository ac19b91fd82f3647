"""Tabulate what parts of layers cost at a site: costs.csv and messages.csv -> tables/costs."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import tables
from common.notes import Note
from common.options import run_program
from common.tables import read_table
from common.text import number_of
from plan.timings import PART_FACTORS
from strategies.measured import message_cost

TITLE = "Cost of the parts of layers"
METHOD = Note(
    "timing-method",
    "Medians over repetitions of one part on one otherwise idle rank: forward pass, backward pass, and "
    "update of its weights. Each layer is split into the largest number of equal parts, up to the number of "
    "devices: by samples, and in the best other way. Inputs are in memory, so times do not include messages.",
)
NO_COSTS = Note("nothing-timed", "No part was timed.")
WORDS = ["framework", "model", "layer", "status"]


def build_rows(costs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per layer of each model, with the seconds of the layer and of its smallest parts."""
    rows: list[dict[str, Any]] = []
    for _, model in costs.groupby(["framework", *PART_FACTORS], sort=False):
        first = model.iloc[0]
        question = {name: first[name] for name in ("framework", *PART_FACTORS, "status", "reason")}
        if first["status"] != "ok":
            rows.append(question)
            continue
        for name, layer in model.groupby("layer", sort=False):
            unsplit = layer[layer["parts"] == 1].iloc[0]
            timed = layer.assign(seconds=layer["forward_s"] + layer["backward_s"] + layer["update_s"])
            samples = timed["degrees"].str.split("x").str[0].astype(int) == timed["parts"]
            is_split = timed["parts"] > 1
            by_samples, otherwise = (
                smallest_part(timed[is_split & selection]) for selection in (samples, ~samples)
            )
            times = {f"{step}_s": unsplit[f"{step}_s"] for step in ("forward", "backward", "update")}
            split_times = {"parts_by_samples": by_samples[0], "by_samples_s": by_samples[1]}
            split_times |= {"parts_otherwise": otherwise[0], "otherwise_s": otherwise[1]}
            spread = layer[["forward_spread", "backward_spread"]].max(axis=None)
            rows.append(
                {**question, "layer": name, **times, **split_times, "spread": spread, "n": layer["n"].min()}
            )
    columns = ["framework", *PART_FACTORS, "status", "reason", "layer", "forward_s", "backward_s", "update_s"]
    columns += ["parts_by_samples", "by_samples_s", "parts_otherwise", "otherwise_s", "spread", "n"]
    return pd.DataFrame(rows, columns=columns)


def smallest_part(parts: pd.DataFrame) -> tuple[int | None, float | None]:
    """Return the number of the smallest parts of a layer, and the shortest time of one in seconds."""
    if parts.empty:
        return None, None
    n_parts = int(parts["parts"].max())
    return n_parts, float(parts[parts["parts"] == n_parts]["seconds"].min())


def table(costs: pd.DataFrame, messages: pd.DataFrame) -> tables.Table:
    """Return the table of costs."""
    data = build_rows(costs)
    if data.empty:
        return tables.Table(TITLE, data, pd.DataFrame(columns=["model"]), [NO_COSTS], WORDS)
    columns: dict[str, Any] = {
        name: data[name] for name in ("framework", "model") if data[name].nunique() > 1
    }
    columns["layer"] = data["layer"].where(data["layer"].notna(), tables.DASH)
    if (data["status"] != "ok").any():
        columns["status"] = data["status"]
    for name in ("forward", "backward", "update"):
        columns[f"{name} (ms)"] = [
            tables.number(1e3 * seconds) for seconds in data[f"{name}_s"].astype(float)
        ]
    for name in ("by_samples", "otherwise"):
        times = zip(data[f"parts_{name}"], data[f"{name}_s"].astype(float), strict=True)
        columns[f"a part {name.replace('_', ' ')} (ms)"] = [
            tables.DASH if pd.isna(parts) else f"{tables.number(1e3 * seconds)} (of {int(parts)})"
            for parts, seconds in times
        ]
    columns["spread (%)"] = [tables.percent(spread, 0) for spread in data["spread"].astype(float)]
    repetitions = data["n"].dropna()
    notes = [
        METHOD,
        " ".join(message_notes(messages)),
        Note(
            "repetitions",
            f"At least {number_of(int(repetitions.min()), 'repetition')}. Spread: interquartile range over "
            "median, the largest of all partitions of a layer.",
            least=int(repetitions.min()),
        )
        if len(repetitions)
        else NO_COSTS,
    ]
    return tables.Table(TITLE, data, pd.DataFrame(columns), notes, WORDS)


def message_notes(messages: pd.DataFrame) -> list[Note]:
    """Return a note for each framework on what a message costs its two ranks."""
    notes = []
    for framework, rows in messages.groupby("framework"):
        if cost := message_cost(rows):
            costs = [
                f"{tables.number(1e6 * fixed_s)} µs plus {tables.number(1e9 * byte_s)} ns per byte"
                for fixed_s, byte_s in (
                    (cost.send_s, cost.send_byte_s),
                    (cost.receive_s, cost.receive_byte_s),
                )
            ]
            text = (
                f"A {framework} message costs {costs[0]} of CPU time at the sender, and {costs[1]} at the "
                "receiver."
            )
            notes.append(Note("message-cost", text, framework=framework, **asdict(cost)))
        else:
            status, reason = rows.iloc[0]["status"], rows.iloc[0]["reason"]
            text = f"Messages of {framework}: {status}: {reason}."
            notes.append(Note("messages-not-timed", text, framework=framework, status=status, reason=reason))
    return notes


def main(*, costs: Path, messages: Path, out: Path) -> None:
    """Write what parts of layers cost as a table.

    Args:
        costs: costs.csv of the study
        messages: messages.csv of the study
        out: files to write, without their suffix
    """
    tables.write(table(read_table(costs, "costs"), read_table(messages, "messages")), out)


if __name__ == "__main__":
    sys.exit(run_program(main))
