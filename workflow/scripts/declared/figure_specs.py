"""Read the figures that a study declares under its key `figures`, or those that it has by default.

products/figures.yaml declares the kinds. This module does not import pandas, which would delay every start of
Snakemake.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.renamed import rename_product
from common.text import alternatives
from declared.factors import MAX_SERIES, implied, is_numeric, is_traced, matches, size_factor_of
from declared.products.figure_kinds import KINDS, FigureKind
from declared.products.traits import Traits
from declared.responses import EPOCH_TIME, RESPONSES, TO_TARGET

MAX_VARIANTS = 4  # series of one framework, which share its colour

Levels = Mapping[str, Any]


@dataclass(frozen=True)
class FigureSpec:
    """What a figure shows, as a study declares it.

    Attributes:
        name: The name of its files.
        kind: One of the kinds in products/figures.yaml.
        x: What the x axis shows; a factor, or one of the values that the kind allows.
        colour: Factors whose combinations are series; None lets figures.view choose them.
        facet: Factors whose combinations are panels; None lets figures.view choose them.
        filter: The levels to draw, by factor; all levels of factors that it does not name.
        target: A validation accuracy, as a share.
        y: What the y axis shows, such as a response.
    """

    name: str
    kind: str
    x: str | None = None
    colour: tuple[str, ...] | None = None
    facet: tuple[str, ...] | None = None
    filter: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    target: float | None = None
    y: str | None = None

    def to_json(self) -> str:
        """Return the spec as one line of JSON, for `from_json`."""
        return json.dumps({key: value for key, value in asdict(self).items() if value not in (None, {})})


class _Mistake(Exception):
    """A problem of a declared figure, under one of its keys."""

    def __init__(self, code: str, key: str, problem: str, **fields: Any) -> None:
        super().__init__(problem)
        self.code, self.key, self.problem, self.fields = code, key, problem, fields


def default_figures(traits: Traits) -> list[FigureSpec]:
    """Return the figures that a study with these traits has by default, in the order of the kinds."""
    return [_read(name, entry) for name, kind in KINDS.items() for entry in kind.default_entries(traits)]


def read_figures(
    written: Sequence[Mapping[str, Any]], cells: Sequence[Levels], file: Path, traits: Traits
) -> list[FigureSpec]:
    """Return the figures that a study declares, in the order of their declaration.

    An older name of a kind is replaced, with a hint on stderr.

    Args:
        written: The entries of the study's key `figures`.
        cells: The levels of each cell, by factor, of the factors that vary.
        file: The study's file.
        traits: The study's traits.

    Raises:
        InputError: If an entry is not valid.
    """
    specs: list[FigureSpec] = []
    for index, entry in enumerate(written):
        if entry["kind"] not in KINDS:
            entry = {**entry, "kind": rename_product("figures", entry["kind"], file, f"figures.{index}.kind")}
        try:
            specs.append(_read_checked(entry, cells, [spec.name for spec in specs], traits))
        except _Mistake as mistake:
            key = f"figures.{index}.{mistake.key}"
            raise InputError(mistake.code, mistake.problem, file=file, key=key, **mistake.fields) from None
    return specs


def from_json(text: str) -> FigureSpec:
    """Return the spec that `FigureSpec.to_json` wrote.

    Raises:
        InputError: If the text is not a valid spec.
    """
    try:
        entry = json.loads(text)
        return _read(entry.pop("kind"), entry)
    except (ValueError, KeyError, AttributeError, TypeError):
        expected, file = f"JSON with a kind, one of {', '.join(KINDS)}", f"--figure {text[:80]}"
        problem = "is not a valid figure"
        raise InputError("not-one-of", problem, file=file, got=text, expected=expected) from None


def _read(kind: str, entry: Mapping[str, Any]) -> FigureSpec:
    """Return the spec of a valid entry, in which a single factor or level can stand for a list of one."""
    x, y = entry.get("x"), entry.get("y")
    return FigureSpec(
        name=entry.get("name", _default_name(kind, x, y)),
        kind=kind,
        x=x,
        y=y,
        colour=_as_tuple(entry.get("colour")),
        facet=_as_tuple(entry.get("facet")),
        filter={factor: list(_as_tuple(levels) or ()) for factor, levels in entry.get("filter", {}).items()},
        target=entry.get("target"),
    )


def _default_name(kind: str, x: str | None, y: str | None) -> str:
    """Return the kind, y and x, joined by hyphens.

    Where the kind allows few values of y, y replaces it: `perplexity` instead of `accuracy-perplexity`.
    """
    stem = [kind, y] if KINDS[kind].shows_response else [y or kind]
    return "-".join(filter(None, [*stem, x]))


def _as_tuple(value: Any) -> tuple[Any, ...] | None:
    return None if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)


def _read_checked(
    entry: Mapping[str, Any], cells: Sequence[Levels], names: Sequence[str], traits: Traits
) -> FigureSpec:
    """Return the spec of an entry, after checking all its keys.

    Args:
        entry: The figure as the study declares it.
        cells: The levels of each cell, by factor, of the factors that vary.
        names: The names of earlier figures.
        traits: The study's traits.

    Raises:
        _Mistake: If a key is unknown, missing or has a wrong value.
    """
    kind = _check_kind(entry["kind"], cells)
    # A figure draws either traced or untraced runs, since tracing slows a run down.
    cells = [levels for levels in cells if is_traced(levels) == kind.shows_traces] or list(cells)
    spec = _read(kind.name, _check_keys(entry, kind, cells, traits))
    if spec.name in names:
        problem = f"'{spec.name}' is also the name of figures.{names.index(spec.name)}"
        raise _Mistake("duplicate", "name", problem, got=spec.name, hint="give one of them another name")
    _check_y(spec, kind, traits)
    spec = _with_study_target(spec, traits.target_accuracy)
    _check_filter(spec, cells)
    drawn_cells = [levels for levels in cells if matches(levels, spec.filter)]
    varied = _varied(drawn_cells)
    _check_places(spec, kind, varied)
    if spec.facet is not None and spec.colour is None and "colour" in kind.takes:
        # With facets alone, the other factors become colours. With colours alone, figures.view makes panels.
        colour = sorted(_unplaced_factors(spec, kind, varied), key=is_numeric)
        spec = replace(spec, colour=tuple(colour) or None)
    _check_series(spec.colour or (), drawn_cells)
    return spec


def _check_kind(name: str, cells: Sequence[Levels]) -> FigureKind:
    """Return the kind of this name, which the study must have the runs for."""
    if name not in KINDS:
        raise _Mistake("unknown-name", "kind", f"'{name}' is unknown", got=name, **alternatives(name, KINDS))
    if KINDS[name].shows_traces and not any(is_traced(levels) for levels in cells):
        problem = f"{name} draws traced runs, and the study has none"
        hint = "add trace: [none, phases] to its factors"
        raise _Mistake("not-possible-here", "kind", problem, got=name, hint=hint)
    return KINDS[name]


def _check_keys(
    entry: Mapping[str, Any], kind: FigureKind, cells: Sequence[Levels], traits: Traits
) -> dict[str, Any]:
    """Return an entry with all required keys and no unknown one; the study can provide its target."""
    allowed = ["kind", "name", *kind.takes]
    if unknown := next((key for key in entry if key not in allowed), None):
        problem = f"a figure of kind {kind.name} has no key '{unknown}'"
        raise _Mistake("unknown-key", unknown, problem, expected=allowed)
    is_required = f"is missing; a figure of kind {kind.name} requires it"
    if missing := next((key for key in kind.needs if key not in entry), None):
        raise _Mistake("missing-key", missing, is_required, **_expected(_varied(cells)))
    if "target" not in kind.takes:
        return dict(entry)
    completed = {"target": traits.target_accuracy, **entry}
    if completed["target"] is None:
        hint = "write target: 0.9, or target_accuracy in the study"
        raise _Mistake("missing-key", "target", is_required, hint=hint)
    return completed


def _check_filter(spec: FigureSpec, cells: Sequence[Levels]) -> None:
    """Raise a mistake unless the filter names levels of factors that vary, and keeps a cell."""
    varied = _varied(cells)
    for name, levels in spec.filter.items():
        if name not in varied:
            problem = "is not a factor that varies"
            raise _Mistake("factor-does-not-vary", f"filter.{name}", problem, got=name, **_expected(varied))
        study_levels = _levels(cells, name)
        for level in levels:
            if level not in study_levels or isinstance(level, bool):
                problem = f"{level!r} is not a level of the study"
                raise _Mistake("unknown-level", f"filter.{name}", problem, got=level, expected=study_levels)
    if not any(matches(levels, spec.filter) for levels in cells):
        raise _Mistake("leaves-no-cell", "filter", "matches no cell", hint="remove a level")


def _check_y(spec: FigureSpec, kind: FigureKind, traits: Traits) -> None:
    """Raise a mistake unless the study records what the y axis shows."""
    if kind.allowed_y and spec.y not in (None, *kind.allowed_y):
        problem = f"'{spec.y}' is unknown"
        raise _Mistake("not-one-of", "y", problem, got=spec.y, **alternatives(str(spec.y), kind.allowed_y))
    if spec.y == "perplexity" and not traits.next_tokens:
        problem = "perplexity needs data sets of next tokens, and the study has none"
        raise _Mistake("not-possible-here", "y", problem, got="perplexity", hint="use accuracy")
    if spec.y in RESPONSES and not traits.has_all(RESPONSES[spec.y].when):
        raise _Mistake("not-possible-here", "y", **impossible_response(spec.y))


def impossible_response(name: str) -> dict[str, Any]:
    """Return the arguments of an error on a response that the study does not record."""
    return {"problem": f"the study records no {name}", "got": name, "hint": RESPONSES[name].hint}


def choose_response(spec: FigureSpec, response: str | None, target: float | None) -> FigureSpec:
    """Return a spec whose y is the study's response unless it names another one.

    If its y depends on a target accuracy, the spec also gets the study's target.

    Args:
        spec: The figure.
        response: The study's response; None or epoch_time leaves y as it is.
        target: The study's target accuracy.
    """
    if KINDS[spec.kind].shows_response and response not in (None, EPOCH_TIME.name):
        spec = replace(spec, y=spec.y or response)
    return _with_study_target(spec, target)


def _with_study_target(spec: FigureSpec, target: float | None) -> FigureSpec:
    """Return a spec with the study's target accuracy if its y depends on one."""
    return replace(spec, target=target) if spec.y in TO_TARGET else spec


def _check_places(spec: FigureSpec, kind: FigureKind, varied: Sequence[str]) -> None:
    """Raise a mistake if a factor is named twice or does not vary, or if one that varies is not named."""
    if kind.allowed_x and spec.x not in (None, *kind.allowed_x):
        raise _Mistake("not-one-of", "x", f"'{spec.x}' is unknown", got=spec.x, expected=kind.allowed_x)
    key_of: dict[str, str] = {}
    for key, names in _placed_factors(spec, kind).items():
        for name in names:
            if name not in varied:
                scope = " in the drawn cells" if spec.filter else ""
                problem = f"'{name}' is not a factor that varies{scope}"
                raise _Mistake("factor-does-not-vary", key, problem, got=name, **_expected(varied))
            if name in key_of:
                problem = f"{name} is also in {key_of[name]}"
                raise _Mistake("duplicate", key, problem, got=name, hint="name it once")
            key_of[name] = key
    if kind.one_colour and (n_factors := len(spec.colour or ())) != 1:
        raise _Mistake(
            "wrong-count", "colour", f"{kind.name} takes one factor, not {n_factors}", got=n_factors
        )
    if spec.colour and spec.facet and (unplaced := _unplaced_factors(spec, kind, varied)):
        keys = [
            key
            for key in ("x", "colour", "facet")
            if key in kind.takes and not (key == "x" and kind.allowed_x)
        ]
        hint = f"name it in {' or '.join(keys)}, or restrict it to one level by filter"
        problem = f"{unplaced[0]} also varies"
        raise _Mistake("factor-without-place", "facet", problem, got=unplaced[0], hint=hint)


def _check_series(colour: Sequence[str], cells: Sequence[Levels]) -> None:
    """Raise a mistake if there are more series than can be distinguished."""
    factors = [name for name in colour if name != "framework"]
    limit, scope = (MAX_SERIES, "") if len(factors) == len(colour) else (MAX_VARIANTS, " of a framework")
    count = len({tuple(levels[name] for name in factors) for levels in cells})
    if count > limit:
        problem, hint = (
            f"{', '.join(colour)} would make {count} series{scope}",
            "name a factor in facet or filter",
        )
        raise _Mistake("too-many", "colour", problem, got=count, expected=f"at most {limit}", hint=hint)


def _placed_factors(spec: FigureSpec, kind: FigureKind) -> dict[str, tuple[str, ...]]:
    """Return the factors that a figure names, by key."""
    x = (spec.x,) if spec.x and not kind.allowed_x else ()
    return {"x": x, "colour": spec.colour or (), "facet": spec.facet or ()}


def _unplaced_factors(spec: FigureSpec, kind: FigureKind, varied: Sequence[str]) -> list[str]:
    """Return the factors that vary in the drawn cells and are neither named nor on an axis of the kind."""
    on_axes = kind.factors_on_axes(size_factor_of(varied), spec.x)
    placed = {*on_axes, *(spec.colour or ()), *(spec.facet or ())}
    return [name for name in varied if name not in placed]


def _varied(cells: Sequence[Levels]) -> list[str]:
    """Return the factors that vary in these cells and that no other factor implies."""
    redundant = implied(cells)
    return [
        name
        for name in (cells[0] if cells else ())
        if len(_levels(cells, name)) > 1 and name not in redundant
    ]


def _levels(cells: Sequence[Levels], name: str) -> list[Any]:
    return list(dict.fromkeys(levels[name] for levels in cells))


def _expected(names: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of an error that list the allowed names."""
    return {"expected": names} if names else {"hint": "no factor varies here"}
