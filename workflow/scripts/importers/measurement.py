"""Content of imported files: runs, tables of collective benchmarks, and findings about them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from training_logs.log import Step


@dataclass(frozen=True)
class Measurement:
    """One run in a file.

    Attributes:
        place: The file, and the line of a table, for messages.
        values: Values of the run, by names of `importers.values.VALUES`.
        steps: In a log: the steps after warm-up.
        other_columns: In a table: texts of columns that are not values.
        custom: Levels of users' factors.
    """

    place: str
    values: Mapping[str, Any]
    steps: tuple[Step, ...] = ()
    other_columns: Mapping[str, str] = field(default_factory=dict)
    custom: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """A problem that a check has found; it stops the import unless the user accepts its code.

    Attributes:
        code: The kind of finding, in kebab-case. Codes are stable, wording is not.
        place: The file or the files.
        text: The problem, as a clause.
        hint: What to do.
    """

    code: str
    place: str
    text: str
    hint: str


@dataclass(frozen=True)
class CollectiveTest:
    """One table of a collective benchmark: a collective on some ranks.

    Attributes:
        place: The file.
        collective: Name in models.collectives.
        ranks: Number of ranks; None if unknown.
        nodes: Number of nodes; None if unknown.
        device: Model of the devices; "" if unknown.
        library: The communication library: nccl or mpi.
        times: Pairs of message size (bytes) and time (s); a size with several pairs was repeated.
    """

    place: str
    collective: str
    ranks: int | None
    nodes: int | None
    device: str
    library: str
    times: tuple[tuple[int, float], ...]
