"""Does adding a slower device pay? Epoch times of unlike ranks, predicted from their speeds before they are measured together.

    T = max_r c(n_r) / k_r + X exchange        c(n) = a + b n

c(n) is what an epoch takes one rank alone with n samples a step, from the runs on one replica; k_r the strength of rank r
relative to that one; the exchanges take what the sweeps of the network say, and none of it is hidden. Strengths are either
the declared shares of the processor (cpu_shares), or the speeds that ranks measured before their first epoch. The best
division of a step's samples makes all ranks end together: n_r = (T k_r - a) / b, with T = (b n + R a) / sum k for R ranks.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import conditions, tables
from analysis.measured import cell_words, read_runs, successful, varying
from analysis.measured import cells as in_order
from common.notes import Note
from common.options import run_program
from common.schemas import schema
from common.tables import read_table
from declared.factors import fixed_shares
from prediction import law, physics
from ranks.worker.sampling import divided

TITLE = "Does adding a slower device pay? Predicted and measured epoch times of unlike ranks"
NOTHING = Note(
    "nothing-to-predict",
    "Nothing to predict: it needs cells on several ranks of which somebody knows the speeds, and one on a single rank.",
)
DECLARED, MEASURED = "declared shares", "measured speeds"
WEAKEST, STRONGEST = 1e-3, 1e3  # a strength that is looked for
HALVINGS = 50
SCALE = ("nodes", "devices_per_node", "shares")  # factors in which a cell differs from the one that it adds a device to


@dataclass(frozen=True)
class Ranks:
    """The ranks of a cell. `alone_s`, `sample_s`: a and b; `block`: samples of a step; `shares`: the level of the factor."""

    alone_s: float
    sample_s: float
    exchange_s: float
    block: int
    shares: str
    strengths: tuple[float, ...]

    def samples(self) -> list[int]:
        """The samples of each rank in a step, as the level of `shares` divides them."""
        if self.shares == "measured":
            return self.best()
        return divided(self.block, fixed_shares(self.shares) or [1.0] * len(self.strengths))

    def best(self) -> list[int]:
        """Those with which all ranks end together, as far as samples allow."""
        k = np.array(self.strengths)
        end_s = (self.sample_s * self.block + len(k) * self.alone_s) / k.sum()
        return divided(self.block, np.maximum(end_s * k - self.alone_s, 1e-9 * end_s).tolist())

    def seconds(self, samples: Sequence[int]) -> float:
        """An epoch in which each rank has so many samples of a step."""
        computed = (self.alone_s + self.sample_s * n for n in samples)
        return max(own / k for own, k in zip(computed, self.strengths, strict=True)) + self.exchange_s


def ranks_of(runs: pd.DataFrame, network: pd.DataFrame) -> pd.DataFrame:
    """A row per measured cell (`physics.prepared`) and source of strengths: `source`, `strengths`, and the numbers of `Ranks`.

    A cell on one rank has one row. Cells are left out whose strengths nobody knows, and those of which no rank trains alone anywhere.
    """
    cells = _computed(runs, network)
    if cells.empty:
        return cells
    told = _told(runs)
    rows = []
    for cell in cells[cells["alone_s"].notna()].to_dict("records"):
        for source, strengths in _strengths(cell, told.loc[cell["cell"]]).items():
            rows.append({**cell, "source": source, "strengths": strengths})
    return pd.DataFrame(rows)


def never_alone(runs: pd.DataFrame, network: pd.DataFrame) -> list[str]:
    """The cells whose ranks told something of their speeds, but of which no rank trains alone anywhere."""
    cells, told = _computed(runs, network), _told(runs)
    if cells.empty:
        return []
    known = told[["cpu_shares", "rank_speeds"]].map(lambda each: any(isinstance(one, str) for one in each)).any(axis=1)
    left = cells.loc[cells["alone_s"].isna() & (cells["ranks"] > 1), "cell"]
    return [cell for cell in left if known[cell]]


def _told(runs: pd.DataFrame) -> pd.DataFrame:
    """What the successful runs of each cell tell of their ranks, as lists."""
    return successful(runs).groupby("cell")[["cpu_shares", "rank_speeds", "rank_samples"]].agg(list)


def _computed(runs: pd.DataFrame, network: pd.DataFrame) -> pd.DataFrame:
    """The measured cells with a, b and the exchange of `Ranks`; a and b are NaN where no rank trains alone."""
    cells = physics.prepared(runs)
    if cells.empty:
        return cells
    made = physics.plain(cells, law.points(network))
    alone, more = (made.computed(cells.assign(local_batch=float(n))).sum(axis=1) for n in (0, 1))
    exchange_s = np.full(len(cells), np.nan)
    exchange_s[(cells["replicas"] == 1).to_numpy()] = 0.0
    for place, part in made.parts(cells):
        exchange_s[place] = part.beyond(0.0)
    cells = cells.assign(alone_s=alone, sample_s=more - alone, exchange_s=exchange_s)
    cells["block"] = (cells["local_batch"] * cells["replicas"]).round().astype(int)
    return cells


def _strengths(cell: dict[str, object], told: pd.Series) -> dict[str, tuple[float, ...]]:
    """The strengths of a cell's ranks by their sources; relative to a rank that takes c(n) for n samples."""
    count, found = int(str(cell["ranks"])), {}
    if count == 1:
        return {DECLARED: (1.0,)}
    declared = next((shares for shares in told["cpu_shares"] if isinstance(shares, str)), None)
    if declared:
        shares = [float(share) for share in declared.split("/")]
        found[DECLARED] = tuple(share / shares[0] for share in shares for _ in range(count // len(shares)))
    speeds = [[float(speed) for speed in each.split("/")] for each in told["rank_speeds"] if isinstance(each, str)]
    if speeds:
        samples = [[float(n) for n in each.split("/")] for each in told["rank_samples"]]
        alone_s, sample_s, steps = (float(str(cell[name])) for name in ("alone_s", "sample_s", "steps"))
        took = steps * np.array(samples) / np.array(speeds)  # of an epoch of such steps
        found[MEASURED] = tuple(np.mean((alone_s + sample_s * np.array(samples)) / took, axis=0).tolist())
    return found


def predict(runs: pd.DataFrame, network: pd.DataFrame) -> pd.DataFrame:
    """A row per cell on several ranks and source: what is predicted, what was measured. `saved`: the share of the epoch that the last
    rank saves, against the cell without it; `break_even`: its strength, relative to the strongest, from which it saves any."""
    found = ranks_of(runs, network)
    found = found if len(found) else pd.DataFrame(columns=["cell", "source", "ranks"])
    told = successful(runs).groupby("cell")["rank_samples"].first()
    same = varying(runs, but=SCALE)
    rows = []
    for _, own in found[found["ranks"] > 1].iterrows():
        here = _ranks(own)
        samples = here.samples()
        before = _before(found, own, same)
        fewer = _ranks(before) if before is not None else None
        before_s = fewer.seconds(fewer.samples()) if fewer else math.nan
        predicted_s, best_s = here.seconds(samples), here.seconds(here.best())
        measured_before_s = float(before["epoch_time_s"]) if before is not None else math.nan
        rows.append(
            {
                "cell": own["cell"],
                **{name: own[name] for name in dict.fromkeys([*same, *SCALE])},
                "ranks": own["ranks"],
                "source": own["source"],
                "strengths": "/".join(f"{k / max(here.strengths):.4g}" for k in here.strengths),
                "samples": "/".join(map(str, samples)),
                "measured_samples": told.get(own["cell"]),
                "exchange_s": here.exchange_s,
                "epoch_time_s": own["epoch_time_s"],
                "n": own["n"],
                "predicted_s": predicted_s,
                "error": predicted_s / own["epoch_time_s"] - 1,
                "best_samples": "/".join(map(str, here.best())),
                "best_s": best_s,
                "without": before["cell"] if before is not None else None,
                "saved": 1 - predicted_s / before_s,
                "measured_saved": 1 - own["epoch_time_s"] / measured_before_s,
                "break_even": break_even(here, before_s),
            }
        )
    order = {cell: place for place, cell in enumerate(in_order(runs)["cell"])}
    rows.sort(key=lambda row: order[row["cell"]])
    return pd.DataFrame(rows, columns=None if rows else ["cell", "source"])


def _ranks(row: pd.Series) -> Ranks:
    return Ranks(**{name: row[name] for name in ("alone_s", "sample_s", "exchange_s", "block", "shares", "strengths")})


def _before(found: pd.DataFrame, own: pd.Series, same: Sequence[str]) -> pd.Series | None:
    """The cell with the next fewer ranks that is alike in all else, and in shares and source where there is such; None: there is none."""
    alike = (found[list(same)] == own[list(same)]).all(axis=1) & (found["ranks"] < own["ranks"])
    fewer = found[alike & (found["ranks"] == found.loc[alike, "ranks"].max())]
    order = fewer.assign(other=(fewer["shares"] != own["shares"]) * 1 + (fewer["source"] != own["source"]) * 2)
    return None if fewer.empty else fewer.loc[order["other"].idxmin()]


def break_even(ranks: Ranks, before_s: float) -> float:
    """The strength of the last rank, relative to the strongest of the others, from which an epoch takes less than `before_s`.

    Infinite where none is enough; NaN where something was not measured.
    """
    others = ranks.strengths[:-1]

    def seconds(strength: float) -> float:
        with_it = replace(ranks, strengths=(*others, strength))
        return with_it.seconds(with_it.samples())

    if math.isnan(before_s) or math.isnan(ranks.exchange_s):
        return math.nan
    if seconds(STRONGEST) >= before_s:
        return math.inf
    low, high = math.log(WEAKEST), math.log(STRONGEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if seconds(math.exp(middle)) < before_s else (middle, high)
    return math.exp(high) / max(others)


def table(runs: pd.DataFrame, network: pd.DataFrame) -> tables.Table:
    """The table of a study with unlike ranks."""
    rows, words = predict(runs, network), ["cell", "speeds from"]
    setting = [conditions.setting_note(runs)] if len(successful(runs)) else []
    if left := never_alone(runs, network):
        words_of = cell_words(runs)
        named_left = "; ".join(words_of[cell] for cell in left)
        text = f"Not predicted, since no rank trains alone on their work: {named_left}."
        setting.insert(0, Note("cells-not-predicted", text, cells=left))
    if rows.empty:
        return tables.Table(TITLE, rows, pd.DataFrame(columns=["cell"]), [NOTHING, *setting], words)
    named = cell_words(runs)
    firsts = rows.index[rows["cell"] != rows["cell"].shift()].tolist()
    first = rows.index.isin(firsts)
    shown = {
        "cell": rows["cell"].map(named).where(first, ""),
        "speeds from": rows["source"],
        "strengths": rows["strengths"],
        "samples of ranks": rows["samples"],
        "measured with": rows["measured_samples"].fillna(tables.DASH).where(first, ""),
        "predicted (s)": rows["predicted_s"].map(_seconds),
        "measured (s)": rows["epoch_time_s"].map(_seconds).where(first, ""),
        "error (%)": rows["error"].map(_percent),
        "best (s)": rows["best_s"].map(_seconds),
        "last rank saves (%)": rows["saved"].map(_percent),
        "measured (%)": rows["measured_saved"].map(_percent).where(first, ""),
        "pays from strength": rows["break_even"].map(_strength),
    }
    predicted = (
        "Predicted: the slowest rank's computation, by the runs on one rank, plus the exchanges, by the sweep of the network; nothing of "
        "them is hidden, nobody waits for chance. Strengths are relative to the strongest rank: as the site declares the processors "
        "of its nodes, or by the speeds that ranks measured before the first epoch. Best: with the division of a step's samples "
        "that makes all ranks end together. The last rank saves: 1 minus epoch time over that of the cell without it. It pays from "
        "the strength that is given, relative to the strongest of the others: weaker ones cost more than they save."
    )
    notes = [Note("predicted", predicted), *setting]
    return tables.Table(TITLE, rows, pd.DataFrame(shown), notes, words, firsts[1:])


def _seconds(value: float) -> str:
    return tables.DASH if pd.isna(value) else f"{value:.3g}"


def _percent(share: float) -> str:
    return tables.DASH if pd.isna(share) else f"{100 * share:.1f}".replace("-", tables.number(-1)[0])


def _strength(value: float) -> str:
    if pd.isna(value):
        return tables.DASH
    return "none" if math.isinf(value) else f"{value:.2g}"


def main(*, runs: Path, out: Path, network: Path | None = None) -> None:
    """Write the table of unlike ranks.

    Args:
        runs: runs.csv of the study
        out: files to write, without their suffix
        network: network.csv of the study, where the network was swept
    """
    columns = list(schema("network")["properties"])
    sweeps = read_table(network, "network") if network else pd.DataFrame(columns=columns)
    tables.write(table(read_runs(runs), sweeps), out)


if __name__ == "__main__":
    sys.exit(run_program(main))
