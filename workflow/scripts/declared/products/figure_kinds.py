"""Read the kinds of figures that a study can declare, from figures.yaml."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.files import load_yaml
from declared.factors import treatments_of
from declared.products.traits import Traits
from declared.responses import RESPONSES

MIN_HEAT_MAP_CELLS = 12
FILE = Path(__file__).with_name("figures.yaml")
ALL_RESPONSES = "responses"  # stands for all responses as allowed_y in figures.yaml


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure; the head of figures.yaml explains the attributes.

    `shows_response` is true if `allowed_y` are all responses.
    """

    name: str
    question: str
    shows: str
    reading: str
    drawn_by_default: str
    example: Mapping[str, Any]
    alt: str = ""
    inputs: Sequence[str] = ()
    takes: Sequence[str] = ()
    allowed_x: Sequence[str] = ()
    allowed_y: Sequence[str] = ()
    needs: Sequence[str] = ()
    axis_factors: Sequence[str] = ()
    size_is_axis: bool = False
    one_colour: bool = False
    shows_response: bool = False
    shows_traces: bool = False
    never_main_by_default: bool = False
    when: Sequence[str] = ()
    default_figures: str | Sequence[Mapping[str, Any]] = ({},)

    @property
    def module(self) -> str:
        """The module that draws it."""
        return f"figures.kinds.{self.name}"

    def factors_on_axes(self, size_factor: str, x: str | None) -> list[str]:
        """Return the factors that have an axis, and so make neither series nor panels.

        Args:
            size_factor: The factor that makes the cells of the figure larger (`size_factor_of`).
            x: The figure's key `x`, which is a factor if the kind has no other values for it.
        """
        return [
            *([x] if x and not self.allowed_x else []),
            *([size_factor] if self.size_is_axis else []),
            *self.axis_factors,
        ]

    def default_entries(self, traits: Traits) -> list[dict[str, Any]]:
        """Return the default figures of this kind for a study that declares no figures, as entries."""
        if not traits.has_all(self.when):
            return []
        entries = self.default_figures
        if isinstance(entries, str):
            entries = DEFAULT_FIGURES[entries](traits)
        chosen = [entry for entry in entries if traits.has_all(entry.get("when", ()))]
        target = {"target": traits.target_accuracy} if "target" in self.takes else {}
        return [target | {key: value for key, value in entry.items() if key != "when"} for entry in chosen]


def default_interactions(traits: Traits) -> list[dict[str, Any]]:
    """Return the interaction of size and the first treatment, or of two other factors; [] without two.

    Figures by nodes or devices have a line per framework already, so framework comes after treatments.
    """
    order = (*treatments_of(traits.varied), "framework", traits.size_factor, "batch_size")
    factors = [name for name in order if name in traits.varied]
    if len(factors) < 2 or not traits.full_design:
        return []
    x = traits.size_factor if traits.size_factor in factors else factors[-1]
    return [{"name": "interaction", "x": x, "colour": next(name for name in factors if name != x)}]


def default_heat_maps(traits: Traits) -> list[dict[str, Any]]:
    """Return the heat map of a study with many cells and several factors, otherwise []."""
    n_factors = len([name for name in traits.varied if name != "framework"])
    if n_factors < 2 or traits.n_cells < MIN_HEAT_MAP_CELLS:
        return []
    return [{"name": "heat_map", "x": traits.fullest_factor}]


# Keyed by the value of `default_figures` in figures.yaml.
DEFAULT_FIGURES: Mapping[str, Callable[[Traits], list[dict[str, Any]]]] = {
    "interactions": default_interactions,
    "heat_maps": default_heat_maps,
}


def _kind(name: str, entry: Mapping[str, Any]) -> FigureKind:
    frozen: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
    }
    if entry.get("allowed_y") == ALL_RESPONSES:
        frozen |= {"allowed_y": tuple(RESPONSES), "shows_response": True}
    return FigureKind(name=name, **frozen)


KINDS = {name: _kind(name, entry) for name, entry in load_yaml(FILE).items()}
