"""Which cells get another run, where a study says a precision in place of a number of replicates: decisions, read.

After each block from `at_least` on it is decided from the records which cells get a run in the next one (stage precision). A decision stands in
results/<study>/precision/block-<block>.json, with the rule by which it was made. The last one names no cell; that after `at_most` always is.
"""

import functools
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError, refuse_machine_error
from common.files import read_json
from common.schemas import check
from common.text import number_of
from declared.study import Replicates

# Whether a cell has the precision that is wanted: what config/schemas/decision.schema.yaml has for `reached`.
REACHED = YES, BY_CHANCE, NO, NOT_ASKED = ("yes", "perhaps by chance", "no", "not asked")


@dataclass(frozen=True)
class Decision:
    """What was decided after `block`; `cells`: cell -> n, half_width (a share, None where there is none), reached, refine, expected."""

    block: int
    cells: Mapping[str, Mapping[str, Any]]

    @property
    def refined(self) -> list[str]:
        """The cells that get a run in the next block."""
        return [cell for cell, said in self.cells.items() if said["refine"]]


def in_words(cells: Mapping[str, Mapping[str, Any]], rule: Mapping[str, Any]) -> str:
    """How many cells are as precise as the rule wants, of those that it asks for; `rule`: as `rule_of` has it."""
    found = Counter(said["reached"] for said in cells.values())
    asked = number_of(len(cells) - found[NOT_ASKED], "cell")
    told = f"{found[YES] + found[BY_CHANCE]} of {asked} within {100 * rule['until']:g} %"
    told = f"ratios of {told}" if rule["contrasts"] else told
    return told + (f", {found[BY_CHANCE]} perhaps by chance" if found[BY_CHANCE] else "")


def place(results: Path, block: int) -> Path:
    """Where the decision stands that is made after a block."""
    return results / "precision" / f"block-{block}.json"


def rule_of(replicates: Replicates) -> dict[str, Any]:
    """The rule as a decision has it."""
    contrasts = {name: list(levels) for name, levels in replicates.contrasts.items()}
    return {**asdict(replicates), "contrasts": contrasts}


def read(file: Path, replicates: Replicates) -> Decision | None:
    """The decision in a file; None where there is none, or it is broken, or made by another rule: then it is made again."""
    try:
        there = os.stat(file)
    except OSError as error:
        refuse_machine_error(error)
        return None
    said = _said(file, there.st_mtime_ns, there.st_size)
    return Decision(said["block"], said["cells"]) if said and said["rule"] == rule_of(replicates) else None


@functools.lru_cache(maxsize=2000)  # Snakemake asks for the same ones again and again
def _said(file: Path, date_ns: int, size: int) -> Mapping[str, Any] | None:
    """What stands in a file of that date and size; None where it is no decision."""
    try:
        said: Mapping[str, Any] = read_json(file)
        check(said, "decision", file)
    except (OSError, ValueError, InputError) as error:
        refuse_machine_error(error, file)
        return None
    return said


def decided(results: Path, replicates: Replicates) -> list[Decision]:
    """The decisions so far, one after each block, as far as one led to the next."""
    found: list[Decision] = []
    for block in range(replicates.at_least, replicates.at_most + 1):
        decision = read(place(results, block), replicates)
        if decision is None:
            break
        found.append(decision)
        if not decision.refined:
            break
    return found
