"""What stands in the paper of a study, and what in its supplement: as its key `paper` says, or as is usual."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import shown
from common.text import alternatives
from declared.figures import Declared

ANALYSIS = (
    "cells", "speedup", "effects", "anova", "scaling", "missing", "checks", "decomposition", "time_to_accuracy", "energy", "variance", "regression",
    "strategies", "drift", "adjusted",
)  # fmt: skip
REFERENCED = ("drift", "adjusted")  # of ANALYSIS, of the reference beside runs
TRACES = ("phases", "bottlenecks", "critical_path", "exposed", "tracing")
TABLES = (
    *ANALYSIS,
    "precision",
    "network",
    "prediction",
    "outlook",
    "crossover",
    "simulated",
    "hybrid",
    *TRACES,
    "what_if",
)
# What shows how sound the results are, rather than results, is usual in a supplement.
SUPPLEMENT_KINDS = ("residuals", "regression", "timeline", "drift", "shares", "critical_path")
SUPPLEMENT_TABLES = (
    "checks",
    "precision",
    "variance",
    "regression",
    "drift",
    "adjusted",
    "critical_path",
    "exposed",
    "tracing",
)


@dataclass(frozen=True)
class Paper:
    """The names of the figures and of the tables of a paper, in their order; None: the usual ones."""

    figures: tuple[str, ...] | None = None
    tables: tuple[str, ...] | None = None

    def chosen_figures(self, drawn: Sequence[Declared]) -> Sequence[str]:
        """Those that stand in the paper of a study that has `drawn`; all others are its supplement's."""
        return self.figures if self.figures is not None else [x.name for x in drawn if x.kind not in SUPPLEMENT_KINDS]

    def chosen_tables(self) -> Sequence[str]:
        """Those that stand in the paper; all others are its supplement's."""
        return self.tables if self.tables is not None else [name for name in TABLES if name not in SUPPLEMENT_TABLES]


def of_runs(referenced: bool) -> tuple[str, ...]:
    """The tables that are made of runs alone; `referenced`: whether runs have a reference beside them, or will have one."""
    return tuple(name for name in ANALYSIS if referenced or name not in REFERENCED)


def read_paper(written: Mapping[str, Any], figures: Sequence[str], file: Path) -> Paper:
    """The key `paper` of a study with these `figures`. InputError, one line with file and key, for a name that is unknown."""
    known: dict[str, Sequence[str]] = {"figures": figures, "tables": TABLES}
    for key, names in written.items():
        for place, name in enumerate(names):
            if name not in known[key]:
                raise InputError(
                    "unknown-name",
                    f"'{name}' is unknown",
                    file=shown(file),
                    key=f"paper.{key}.{place}",
                    got=name,
                    **alternatives(name, known[key]),
                )
    return Paper(**{key: tuple(names) for key, names in written.items()})
