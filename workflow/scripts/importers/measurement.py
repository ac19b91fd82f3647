"""A run that was measured elsewhere, as its file tells it, and as it is once the statement is added."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from training_logs.log import Step


@dataclass(frozen=True)
class Measurement:
    """One run of a file.

    Attributes:
        place: The file, of a table with the line, as messages name it.
        values: What the file says of the run (`importers.values.VALUES`).
        steps: Times of its optimizer steps after warm-up, of a log.
        other_columns: Texts of columns that are no values.
        custom: Levels of factors of the user's own.
    """

    place: str
    values: Mapping[str, Any]
    steps: tuple[Step, ...] = ()
    other_columns: Mapping[str, str] = field(default_factory=dict)
    custom: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        code: What kind of finding this is, in kebab-case. Stable.
        place: The file or the files.
        text: What was found, as a clause.
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
        ranks: Number of ranks, None if the text does not say it.
        nodes: Number of nodes, None likewise.
        device: Model of the devices, "" likewise.
        library: What carried the messages.
        times: Bytes of a message, s; a size that stands several times was repeated.
    """

    place: str
    collective: str
    ranks: int | None
    nodes: int | None
    device: str
    library: str
    times: tuple[tuple[int, float], ...]
