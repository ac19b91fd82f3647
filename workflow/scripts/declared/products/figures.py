"""Read the kinds of figures that a study can declare, from figures.yaml."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.files import load_yaml
from declared.products.traits import Traits
from declared.responses import RESPONSES

FILE = Path(__file__).with_name("figures.yaml")
ALL_RESPONSES = "responses"  # as y in figures.yaml, it stands for the names of all responses


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure; the head of figures.yaml explains the attributes."""

    name: str
    question: str
    shows: str
    reading: str
    drawn_by_default: str
    example: Mapping[str, Any]
    alt: str = ""
    inputs: Sequence[str] = ()
    takes: Sequence[str] = ()
    x: Sequence[str] = ()
    y: Sequence[str] = ()
    needs: Sequence[str] = ()
    along: Sequence[str] = ()
    along_size: bool = False
    one_colour: bool = False
    shows_response: bool = False
    shows_traces: bool = False
    in_supplement: bool = False
    when: Sequence[str] = ()
    default_figures: str | Sequence[Mapping[str, Any]] = ({},)

    @property
    def module(self) -> str:
        """The module that draws it."""
        return f"figures.kinds.{self.name}"

    def default_entries(self, traits: Traits) -> list[dict[str, Any]]:
        """Return the default figures of this kind for a study that declares no figures, as entries."""
        if not traits.has_all(self.when):
            return []
        entries = self.default_figures
        if isinstance(entries, str):
            entries = getattr(traits, entries)
        chosen = [entry for entry in entries if traits.has_all(entry.get("when", ()))]
        target = {"target": traits.target_accuracy} if "target" in self.takes else {}
        return [target | {key: value for key, value in entry.items() if key != "when"} for entry in chosen]


def _kind(name: str, entry: Mapping[str, Any]) -> FigureKind:
    frozen: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
    }
    if entry.get("y") == ALL_RESPONSES:
        frozen |= {"y": tuple(RESPONSES), "shows_response": True}
    return FigureKind(name=name, **frozen)


KINDS = {name: _kind(name, entry) for name, entry in load_yaml(FILE).items()}
