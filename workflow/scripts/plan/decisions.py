"""Read which cells get another run in a study with an interval target.

After each block from `at_least` on, the stage `replication` decides from the records which cells get a run in
the next block. It writes the decision, with the rule that it follows, to
results/<study>/replication/block-<block>.json. The last decision names no cell; the one after block `at_most`
is always the last.
"""

import functools
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError, raise_if_machine_error
from common.files import read_json
from common.schemas import check
from common.text import number_of
from declared.replicates import Replicates

# Values of `reached` in config/schemas/decision.schema.yaml: whether a cell has reached its interval target.
REACHED = YES, BY_CHANCE, NO, NOT_ASKED = ("yes", "perhaps by chance", "no", "not asked")
# Folders of decisions in results: the current one, and that of campaigns that 0.1.0 ran, until 0.3.0.
DECISION_FOLDERS = ("replication", "precision")


@dataclass(frozen=True)
class Decision:
    """The decision after a block.

    Attributes:
        block: Number of the block.
        cells: By cell: n, half_width (relative, or None), reached, refine and expected
            (config/schemas/decision.schema.yaml).
    """

    block: int
    cells: Mapping[str, Mapping[str, Any]]

    @property
    def refined(self) -> list[str]:
        """The cells that get a run in the next block."""
        return [cell for cell, state in self.cells.items() if state["refine"]]


def summarize_target(cells: Mapping[str, Mapping[str, Any]], rule: Mapping[str, Any]) -> str:
    """Return in words how many cells have reached the interval target of a rule (see `rule_fields`)."""
    counts = Counter(state["reached"] for state in cells.values())
    n_targeted = number_of(len(cells) - counts[NOT_ASKED], "cell")
    text = f"{counts[YES] + counts[BY_CHANCE]} of {n_targeted} within {100 * rule['until']:g} %"
    text = f"ratios of {text}" if rule["contrasts"] else text
    return text + (f", {counts[BY_CHANCE]} perhaps by chance" if counts[BY_CHANCE] else "")


def decision_file(results: Path, block: int) -> Path:
    """Return the file of the decision after a block: an older campaign's unless it has been made again."""
    file, older = (results / folder / f"block-{block}.json" for folder in DECISION_FOLDERS)
    return older if older.is_file() and not file.exists() else file


def rule_fields(replicates: Replicates) -> dict[str, Any]:
    """Return the rule of replicates as a decision stores it."""
    contrasts = {name: list(levels) for name, levels in replicates.contrasts.items()}
    return {**asdict(replicates), "contrasts": contrasts}


def read_decision(file: Path, replicates: Replicates) -> Decision | None:
    """Return the decision in a file, None if it is missing, broken or follows another rule."""
    try:
        file_stat = os.stat(file)
    except OSError as error:
        raise_if_machine_error(error)
        return None
    fields = _load(file, file_stat.st_mtime_ns, file_stat.st_size)
    return (
        Decision(fields["block"], fields["cells"])
        if fields and fields["rule"] == rule_fields(replicates)
        else None
    )


@functools.lru_cache(maxsize=2000)  # Snakemake reads the same ones many times
def _load(file: Path, _date_ns: int, _size: int) -> Mapping[str, Any] | None:
    """Return the content of a file, None if it is not a decision. Date and size are keys of the cache."""
    try:
        fields: Mapping[str, Any] = read_json(file)
        check(fields, "decision", file)
    except (OSError, ValueError, InputError) as error:
        raise_if_machine_error(error, file)
        return None
    return fields


def read_decisions(results: Path, replicates: Replicates) -> list[Decision]:
    """Return the decisions so far, one per block, up to the first missing or final one."""
    decisions: list[Decision] = []
    for block in range(replicates.at_least, replicates.at_most + 1):
        decision = read_decision(decision_file(results, block), replicates)
        if decision is None:
            break
        decisions.append(decision)
        if not decision.refined:
            break
    return decisions
