"""A study, read and checked: which levels of which factors are compared, how often, and which figures are drawn of it."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from common.errors import CodedValueError, InputError
from common.files import CHECKOUT, load_yaml, shown
from common.schemas import check, check_value
from common.text import alternatives, number_of
from declared.configuration import existing
from declared.datasets import NEXT, load_dataset, targets
from declared.factors import FEWEST_HELD_OUT, UNTRACED, Levels, as_list, factor_table, matches
from declared.figures import Declared, read_figures, usual
from declared.fraction import Fraction, generated, of_resolution
from declared.frameworks import framework_names
from declared.mesh import FOUND, is_mesh, sizes_of
from declared.models import model_names
from declared.paper import Paper, read_paper
from declared.products.traits import Traits

DEFAULT_RESOLUTION = 4
NARROWEST, WIDEST = 0.1, 50  # %, precisions that may be wanted
FEWEST_REPLICATES = 3  # from which precision is judged
KNOWN_OF_ALL = (
    16.0  # degrees of freedom of the spread of all cells together, before any is called precise (precision.stopping)
)


@dataclass(frozen=True)
class Replicates:
    """How often every cell is run: `at_least` times, and on `until` it is as precise as that, but `at_most` times.

    `until`: half the width of a 95 % interval, as a share of the value; None for a number of runs that is fixed, with at_least = at_most.
    It is that of each cell's mean epoch time; with `contrasts`, factor -> levels, that of the ratios of cells that differ in one of these
    factors alone, between these levels.
    """

    at_least: int
    at_most: int
    until: float | None = None
    contrasts: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def adaptive(self) -> bool:
        """Whether their number is chosen by precision."""
        return self.until is not None

    def known_after(self, cells: int) -> int:
        """The fewest runs of each of so many cells by which the spread of all is known well enough; of ratios what blocks do is taken out first."""
        alike = max(1, cells - 1) if self.contrasts else cells
        return 1 + math.ceil(KNOWN_OF_ALL / alike)

    @property
    def words(self) -> str:
        """The rule, as it ends a sentence about how many runs a cell has."""
        if self.until is None:
            return number_of(self.at_least, "run")
        of = [f"{name} ({', '.join(map(str, levels))})" for name, levels in self.contrasts.items()]
        what = f"ratios of cells that differ in {' or '.join(of)} alone" if of else "its mean epoch time"
        return f"{self.at_least} to {self.at_most} runs, until half the 95 % interval of {what} is {100 * self.until:g} % or less"


@dataclass(frozen=True)
class Study:
    """One experiment. `factors` has every factor of the schema, in its order, with a list of levels."""

    name: str
    file: Path
    title: str
    question: str
    seed: int
    replicates: Replicates
    factors: dict[str, list[Any]]
    exclude: tuple[dict[str, list[Any]], ...]
    step_times: bool
    extra_p: bool = False
    fraction: Fraction | None = None  # with design: fractional
    authors: tuple[dict[str, str], ...] = ()
    licence: str | None = None
    target_accuracy: float | None = None  # of validation, a share
    margin: float | None = None  # share of epoch time by which cells may differ and be called equal
    figures: tuple[Declared, ...] = ()  # those that it declares
    paper: Paper = field(default_factory=Paper)

    def combinations(self) -> Iterator[Levels]:
        """The levels of every cell that the design asks for, before any is excluded."""
        if self.fraction is None:
            for levels in itertools.product(*self.factors.values()):
                yield dict(zip(self.factors, levels, strict=True))
            return
        for signs in self.fraction.signs():
            yield {name: levels[signs.get(name, 0)] for name, levels in self.factors.items()}

    def cells(self) -> list[Levels]:
        """The combinations that are not excluded."""
        return [levels for levels in self.combinations() if not any(matches(levels, entry) for entry in self.exclude)]

    @property
    def timed(self) -> list[Levels]:
        """The cells whose epoch times count: those that are not traced."""
        return [levels for levels in self.cells() if levels["trace"] == UNTRACED]

    def compared(self, name: str, among: Sequence[Any]) -> list[Levels]:
        """The timed cells that differ from another one in this factor alone, between these levels of it."""
        cells = [levels for levels in self.timed if levels[name] in among]
        others = [tuple(value for factor, value in levels.items() if factor != name) for levels in cells]
        several = {same for same, count in Counter(others).items() if count > 1}
        return [levels for levels, same in zip(cells, others, strict=True) if same in several]

    @cached_property
    def refinable(self) -> list[Levels]:
        """The cells that may get more than `at_least` runs: those of whose numbers a precision is wanted."""
        rule = self.replicates
        if not rule.contrasts:
            return self.timed
        asked = {tuple(cell.values()) for name, among in rule.contrasts.items() for cell in self.compared(name, among)}
        return [levels for levels in self.timed if tuple(levels.values()) in asked]

    @property
    def varied(self) -> list[str]:
        """The factors with more than one level."""
        return [name for name, levels in self.factors.items() if len(levels) > 1]

    @property
    def unlike(self) -> bool:
        """Whether the ranks of some cells may be unlike, or have unlike shares."""
        return self.factors["shares"] != [factor_table()["shares"]["default"]] or "hybrid" in self.factors["device"]

    @property
    def traced(self) -> bool:
        """Whether any of its runs keep their phases."""
        return any(level != UNTRACED for level in self.factors["trace"])

    def traits(self, **of_campaign: Any) -> Traits:
        """Return what is known of the study before anything runs; `of_campaign`: traits of its campaign at a site."""
        compared = [name for name in self.varied if name != "trace" or UNTRACED not in self.factors[name]]
        traits = Traits(
            varied=compared,
            full_design=self.fraction is None,
            target_accuracy=self.target_accuracy,
            next_tokens=self.next_tokens,
            fit_can_be_checked=self._held_out,
            strategies_searched=self.finds,
            heterogeneous=self.unlike,
            replicates_by_precision=self.replicates.adaptive,
            traced=self.traced,
        )
        return replace(traits, **of_campaign)

    def drawn(self, traits: Traits | None = None) -> list[Declared]:
        """Return the figures that it declares, or those of every study with its traits."""
        return list(self.figures) or usual(traits or self.traits())

    @property
    def finds(self) -> bool:
        """Whether it asks for strategies that are found."""
        return FOUND in self.factors["parallelism"]

    @property
    def next_tokens(self) -> bool:
        """Whether any of its data sets has next tokens for labels."""
        return any(targets(load_dataset(name)) == NEXT for name in self.factors["dataset"])

    @property
    def _held_out(self) -> bool:
        several = [levels for levels in self.cells() if levels["nodes"] > 1]
        return any(len({levels[name] for levels in several}) >= fewest for name, fewest in FEWEST_HELD_OUT.items())


def load_study(name: str, folder: Path = CHECKOUT / "config" / "studies") -> Study:
    """Read and check config/studies/<name>.yaml. InputError in one line when it is wrong."""
    file = existing(folder, name, "study")
    raw = load_yaml(file)
    check(raw, "study", file)
    factors = _factors(raw["factors"], file)
    study = Study(
        name=name,
        file=file,
        title=" ".join(raw["title"].split()),
        question=" ".join(raw["question"].split()),
        seed=raw["seed"],
        replicates=_replicates(raw["replicates"], factors, file),
        factors=factors,
        exclude=tuple(
            _exclusion(entry, factors, f"exclude.{i}", file) for i, entry in enumerate(raw.get("exclude", []))
        ),
        step_times=raw.get("step_times", False),
        extra_p=raw.get("extra_p", False),
        fraction=_fraction(raw, factors, file),
        authors=tuple(raw.get("authors", [])),
        licence=raw.get("licence"),
        target_accuracy=raw.get("target_accuracy"),
        margin=_share(raw["margin"]) if "margin" in raw else None,
    )
    _check_contrasts(study)
    if "figures" in raw:
        cells = [{name: levels[name] for name in [*study.varied, "trace"]} for levels in study.cells()]
        read = read_figures(raw["figures"], cells, file, study.target_accuracy, study.next_tokens)
        study = replace(study, figures=tuple(read))
    return replace(study, paper=read_paper(raw.get("paper", {}), [one.name for one in study.drawn()], file))


def _share(percent: str) -> float:
    """5 % as a share."""
    return float(percent.rstrip("% ")) / 100


def _replicates(raw: Any, factors: Mapping[str, list[Any]], file: Path) -> Replicates:
    """A number of runs, or the precision that they are to reach."""
    if isinstance(raw, int):
        return Replicates(raw, raw)
    least, most = raw["at_least"], raw["at_most"]
    if least < FEWEST_REPLICATES:
        raise InputError(
            "out-of-range",
            f"{least} is too small: fewer than {FEWEST_REPLICATES} runs do not tell how far runs spread",
            file=shown(file),
            key="replicates.at_least",
            got=least,
            expected=f"at least {FEWEST_REPLICATES}",
        )
    if most <= least:
        raise InputError(
            "out-of-range",
            f"{most} is too small",
            file=shown(file),
            key="replicates.at_most",
            got=most,
            expected=f"more than at_least, {least}",
        )
    until = 100 * _share(raw["until"])
    if not NARROWEST <= round(until, 9) <= WIDEST:
        how = "small" if until < NARROWEST else "large"
        raise InputError(
            "out-of-range",
            f"{raw['until']} is too {how}",
            file=shown(file),
            key="replicates.until",
            got=raw["until"],
            expected=f"{NARROWEST:g} % to {WIDEST:g} %",
        )
    return Replicates(least, most, _share(raw["until"]), _contrasts(raw.get("contrasts", {}), factors, file))


def _contrasts(named: Any, factors: Mapping[str, list[Any]], file: Path) -> dict[str, tuple[Any, ...]]:
    """The factors whose ratios are to be precise, each with its levels: all of the study where none are named."""
    where, key = shown(file), "replicates.contrasts"
    if isinstance(named, str):
        named = [named]
    if isinstance(named, list):
        named = {name: factors.get(name, []) for name in named}
    for name, levels in named.items():
        if name not in factors:
            known = alternatives(name, list(factors))
            raise InputError("unknown-name", f"'{name}' is no factor", file=where, key=key, got=name, **known)
        if len(factors[name]) < 2:
            varied = [each for each, of in factors.items() if len(of) > 1]
            raise InputError(
                "factor-does-not-vary",
                f"{name} does not vary in this study",
                file=where,
                key=key,
                got=name,
                expected=varied,
                hint="" if varied else "nor does any other factor; take contrasts out",
            )
        if unknown := [level for level in levels if level not in factors[name]]:
            raise InputError(
                "unknown-level",
                f"{unknown[0]!r} is no level of the study",
                file=where,
                key=f"{key}.{name}",
                got=unknown[0],
                expected=factors[name],
                hint="name two or more",
            )
    return {name: tuple(levels) for name, levels in named.items()}


def _check_contrasts(study: Study) -> None:
    """That each factor whose ratios are to be precise has two timed cells that differ in it alone."""
    for name, levels in study.replicates.contrasts.items():
        if study.compared(name, levels):
            continue
        if name == "trace":
            code, problem, hint = "traced-contrast", "cells that are traced are not timed", "take it out"
        else:
            code, problem = "no-contrast", "no two timed cells of the study differ in it alone"
            hint = "see exclude, trace and design"
        raise InputError(
            code,
            f"{name}: {problem}, so there is no such ratio",
            file=shown(study.file),
            key="replicates.contrasts",
            got=name,
            hint=hint,
        )


def _fraction(raw: Mapping[str, Any], factors: Mapping[str, list[Any]], file: Path) -> Fraction | None:
    """The fraction of a study with design: fractional; None with design: full."""
    if raw["design"] == "full":
        if only := [key for key in ("resolution", "generators") if key in raw]:
            problem = "only with design: fractional"
            raise InputError("conflicting-keys", problem, file=shown(file), key=only[0], hint="take it out")
        return None
    if "exclude" in raw:
        raise InputError(
            "conflicting-keys",
            "a fraction needs all of its cells",
            file=shown(file),
            key="exclude",
            hint="take it out, or say design: full",
        )
    varied = [name for name, levels in factors.items() if len(levels) > 1]
    if many := [name for name in varied if len(factors[name]) > 2]:
        raise InputError(
            "too-many",
            f"{len(factors[many[0]])} levels",
            file=shown(file),
            key=f"factors.{many[0]}",
            got=len(factors[many[0]]),
            hint="with design: fractional every factor that varies has two",
        )
    if "generators" in raw and "resolution" in raw:
        raise InputError(
            "conflicting-keys",
            "follows from generators",
            file=shown(file),
            key="resolution",
            hint="take one of the two out",
        )
    key = "generators" if "generators" in raw else "design"
    try:
        if key == "generators":
            return generated(varied, raw["generators"])
        return of_resolution(varied, raw.get("resolution", DEFAULT_RESOLUTION))
    except CodedValueError as error:
        hint = "" if key == "generators" else "say design: full, or a lower resolution"
        raise InputError(error.code, error.problem, file=shown(file), key=key, hint=hint) from None


def _factors(raw: Mapping[str, Any], file: Path) -> dict[str, list[Any]]:
    table = factor_table()
    lists = {name: as_list(value) for name, value in raw.items()}
    wanted = {
        "type": "object",
        "additionalProperties": False,
        "required": [name for name, entry in table.items() if "default" not in entry],
        "properties": {
            name: {
                "type": "array",
                "minItems": 1,
                "uniqueItems": True,
                "items": entry,
                "description": entry["description"],
            }
            for name, entry in table.items()
        },
    }
    check_value(lists, wanted, "factors", file)
    known = {"framework": framework_names(), "model": model_names()}
    for name in (*known, "dataset"):
        for i, level in enumerate(lists[name]):
            key = f"factors.{name}" + f".{i}" * isinstance(raw[name], list)
            if name == "dataset":
                load_dataset(level, shown(file), key)
            elif level not in known[name]:
                raise InputError(
                    "unknown-name",
                    f"'{level}' is unknown",
                    file=shown(file),
                    key=key,
                    got=level,
                    **alternatives(level, known[name]),
                )
    for level in filter(is_mesh, lists.get("parallelism", [])):
        try:
            sizes_of(level)
        except CodedValueError as error:
            where = {"file": shown(file), "key": "factors.parallelism"}
            raise InputError(error.code, error.problem, **where, got=level) from None
    return {
        name: [_plain(level, entry) for level in lists.get(name, [entry.get("default")])]
        for name, entry in table.items()
    }


def _plain(level: Any, entry: Mapping[str, Any]) -> Any:
    """1 is a number, too: give each level the one spelling of its type."""
    return float(level) if entry.get("type") == "number" else level


def _exclusion(
    entry: Mapping[str, Any], factors: Mapping[str, list[Any]], where: str, file: Path
) -> dict[str, list[Any]]:
    for name, levels in entry.items():
        if name not in factors:
            raise InputError(
                "unknown-name",
                "unknown factor",
                file=shown(file),
                key=f"{where}.{name}",
                got=name,
                expected=list(factors),
            )
        for level in as_list(levels):
            if level not in factors[name] or isinstance(level, bool):
                raise InputError(
                    "unknown-level",
                    f"{level!r} is no level of the study",
                    file=shown(file),
                    key=f"{where}.{name}",
                    got=level,
                    expected=factors[name],
                )
    return {name: as_list(levels) for name, levels in entry.items()}
