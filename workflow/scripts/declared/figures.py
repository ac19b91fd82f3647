"""Read the figures of a study: those of its key `figures`, or the default ones.

products/figures.yaml has the kinds. This module avoids pandas, which would delay every start of Snakemake.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.renamed import rename_product
from common.text import alternatives
from declared.factors import MAX_SERIES, implied, is_numeric, is_traced, matches, scale_of
from declared.products.figures import KINDS, FigureKind
from declared.products.traits import Traits
from declared.responses import EPOCH_TIME, RESPONSES, TO_TARGET

MAX_VARIANTS = 4  # series of one framework, which share its colour

Levels = Mapping[str, Any]


@dataclass(frozen=True)
class FigureSpec:
    """One figure.

    Attributes:
        name: The name of its files.
        kind: Its kind.
        x: What the x axis shows.
        colour: Factors whose combinations are series; None leaves them to figures.view.
        facet: Factors whose combinations are panels; None leaves them to figures.view.
        filter: The levels that are drawn, by factor.
        target: A validation accuracy, a share.
        y: What the y axis shows.
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
        """Return the figure as one line of JSON, for ``from_json``."""
        return json.dumps({key: value for key, value in asdict(self).items() if value not in (None, {})})


class _Mistake(Exception):
    """Something wrong with a figure, under a key."""

    def __init__(self, code: str, key: str, problem: str, **fields: Any) -> None:
        super().__init__(problem)
        self.code, self.key, self.problem, self.fields = code, key, problem, fields


def default_figures(traits: Traits) -> list[FigureSpec]:
    """Return the figures of a study that declares none, in the order of the kinds."""
    return [_read(name, entry) for name, kind in KINDS.items() for entry in kind.default_entries(traits)]


def read_figures(
    written: Sequence[Mapping[str, Any]], cells: Sequence[Levels], file: Path, traits: Traits
) -> list[FigureSpec]:
    """Return the figures that a study declares, in their order.

    Args:
        written: The entries of its key `figures`.
        cells: The levels of all its cells, of the factors that vary.
        file: The study's file.
        traits: What is known of it.

    Raises:
        InputError: If an entry is wrong; one line with file and key.
    """
    figures: list[FigureSpec] = []
    for place, entry in enumerate(written):
        if entry["kind"] not in KINDS:
            entry = {**entry, "kind": rename_product("figures", entry["kind"], file, f"figures.{place}.kind")}
        try:
            figures.append(_checked(entry, cells, [figure.name for figure in figures], traits))
        except _Mistake as mistake:
            key = f"figures.{place}.{mistake.key}"
            raise InputError(mistake.code, mistake.problem, file=file, key=key, **mistake.fields) from None
    return figures


def from_json(text: str) -> FigureSpec:
    """Return the figure of a line of ``FigureSpec.to_json``.

    Raises:
        InputError: If it is no figure.
    """
    try:
        entry = json.loads(text)
        return _read(entry.pop("kind"), entry)
    except (ValueError, KeyError, AttributeError, TypeError):
        expected, file = f"JSON with a kind, one of {', '.join(KINDS)}", f"--figure {text[:80]}"
        raise InputError("not-one-of", "is no figure", file=file, got=text, expected=expected) from None


def _read(kind: str, entry: Mapping[str, Any]) -> FigureSpec:
    """Return a figure from a valid entry, in which one factor or level may replace a list of one."""
    x, y = entry.get("x"), entry.get("y")
    stem = [kind, y] if KINDS[kind].shows_response else [y or kind]
    return FigureSpec(
        name=entry.get("name", "-".join(filter(None, [*stem, x]))),
        kind=kind,
        x=x,
        y=y,
        colour=_as_tuple(entry.get("colour")),
        facet=_as_tuple(entry.get("facet")),
        filter={factor: list(_as_tuple(levels) or ()) for factor, levels in entry.get("filter", {}).items()},
        target=entry.get("target"),
    )


def _as_tuple(value: Any) -> tuple[Any, ...] | None:
    return None if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)


def _checked(
    entry: Mapping[str, Any], cells: Sequence[Levels], names: Sequence[str], traits: Traits
) -> FigureSpec:
    """Return a figure whose keys are all right.

    Args:
        entry: The figure as it is declared.
        cells: The levels of all cells, of the factors that vary.
        names: The names of earlier figures.
        traits: What is known of the study.
    """
    kind = entry["kind"]
    if kind not in KINDS:
        raise _Mistake("unknown-name", "kind", f"'{kind}' is unknown", got=kind, **alternatives(kind, KINDS))
    figure_kind = KINDS[kind]
    if figure_kind.shows_traces and not any(is_traced(levels) for levels in cells):
        problem, hint = (
            f"{kind} draws traced runs, and the study has none",
            "add trace: [none, phases] to its factors",
        )
        raise _Mistake("not-possible-here", "kind", problem, got=kind, hint=hint)
    cells = [levels for levels in cells if is_traced(levels) == figure_kind.shows_traces] or list(cells)
    for key in entry:
        if key not in ("kind", "name", *figure_kind.takes):
            raise _Mistake("unknown-key", key, f"{kind} takes none", expected=_allowed_keys(kind))
    for key in figure_kind.needs:
        if key not in entry:
            raise _Mistake("missing-key", key, f"is missing: {kind} needs it", **_expected(_varied(cells)))
    if "target" in figure_kind.takes:
        entry = {"target": traits.target_accuracy, **entry}
        if entry["target"] is None:
            hint = "write target: 0.9, or target_accuracy in the study"
            raise _Mistake("missing-key", "target", f"is missing: {kind} needs it", hint=hint)
    figure = _read(kind, entry)
    if figure.name in names:
        problem = f"'{figure.name}' is figures.{names.index(figure.name)} already"
        raise _Mistake("duplicate", "name", problem, got=figure.name, hint="give one of them another name")
    _check_y(figure, figure_kind, traits)
    figure = choose_response(figure, figure.y, traits.target_accuracy)
    _check_filter(figure, cells)
    left = [levels for levels in cells if matches(levels, figure.filter)]
    _check_places(figure, figure_kind, _varied(left))
    if figure.facet is not None and figure.colour is None and "colour" in figure_kind.takes:
        # Remaining factors become colours; figures.view makes panels of what remains if only colours are
        # given.
        figure = replace(
            figure, colour=tuple(sorted(_rest(figure, figure_kind, _varied(left)), key=is_numeric)) or None
        )
    _check_series(figure.colour or (), left)
    return figure


def _allowed_keys(kind: str) -> list[str]:
    """Return the keys that a figure of this kind may have."""
    return ["kind", "name", *KINDS[kind].takes]


def _check_filter(figure: FigureSpec, cells: Sequence[Levels]) -> None:
    varied = _varied(cells)
    for name, levels in figure.filter.items():
        if name not in varied:
            problem = "is no factor that varies"
            raise _Mistake("factor-does-not-vary", f"filter.{name}", problem, got=name, **_expected(varied))
        study_levels = _levels(cells, name)
        for level in levels:
            if level not in study_levels or isinstance(level, bool):
                problem = f"{level!r} is no level of the study"
                raise _Mistake("unknown-level", f"filter.{name}", problem, got=level, expected=study_levels)
    if not any(matches(levels, figure.filter) for levels in cells):
        raise _Mistake("leaves-no-cell", "filter", "leaves no cell", hint="remove a level")


def _check_y(figure: FigureSpec, kind: FigureKind, traits: Traits) -> None:
    """Raise a mistake unless the study can have what the y axis shows."""
    if kind.y and figure.y not in (None, *kind.y):
        problem = f"'{figure.y}' is unknown"
        raise _Mistake("not-one-of", "y", problem, got=figure.y, **alternatives(str(figure.y), kind.y))
    if figure.y == "perplexity" and not traits.next_tokens:
        problem = "perplexity needs data sets of next tokens, and the study has none"
        raise _Mistake("not-possible-here", "y", problem, got="perplexity", hint="use accuracy")
    if figure.y in RESPONSES and not traits.hold_all(RESPONSES[figure.y].when):
        raise _Mistake("not-possible-here", "y", **impossible_response(figure.y))


def impossible_response(name: str) -> dict[str, Any]:
    """Return problem and fields of the mistake of a response that a study cannot have."""
    return {"problem": f"the study records no {name}", "got": name, "hint": RESPONSES[name].hint}


def choose_response(figure: FigureSpec, response: str | None, target: float | None) -> FigureSpec:
    """Return a figure that shows a response of the study unless it names its own y, with the target of both.

    Args:
        figure: The figure.
        response: The study's response; None or epoch_time leaves the figure as it is.
        target: The study's target accuracy.
    """
    if KINDS[figure.kind].shows_response and response not in (None, EPOCH_TIME.name):
        figure = replace(figure, y=figure.y or response)
    return replace(figure, target=target) if figure.y in TO_TARGET else figure


def _check_places(figure: FigureSpec, kind: FigureKind, varied: Sequence[str]) -> None:
    """Raise a mistake unless every factor that varies in the drawn cells has exactly one place."""
    if kind.x and figure.x not in (None, *kind.x):
        raise _Mistake("not-one-of", "x", f"'{figure.x}' is unknown", got=figure.x, expected=kind.x)
    places: dict[str, str] = {}
    for key, names in _used(figure, kind).items():
        for name in names:
            if name not in varied:
                scope = " in the drawn cells" if figure.filter else ""
                problem = f"'{name}' is no factor that varies{scope}"
                raise _Mistake("factor-does-not-vary", key, problem, got=name, **_expected(varied))
            if name in places:
                problem = f"{name} is {places[name]} already"
                raise _Mistake("duplicate", key, problem, got=name, hint="name it once")
            places[name] = key
    if kind.one_colour and (n_factors := len(figure.colour or ())) != 1:
        raise _Mistake(
            "wrong-count", "colour", f"{figure.kind} takes one factor, not {n_factors}", got=n_factors
        )
    if figure.colour and figure.facet and (rest := _rest(figure, kind, varied)):
        keys = [key for key in ("x", "colour", "facet") if key in kind.takes and not (key == "x" and kind.x)]
        hint = f"name it in {' or '.join(keys)}, or restrict it to one level by filter"
        raise _Mistake("factor-without-place", "facet", f"{rest[0]} varies, too", got=rest[0], hint=hint)


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


def _used(figure: FigureSpec, kind: FigureKind) -> dict[str, tuple[str, ...]]:
    """Return the factors that a figure names by key."""
    x = (figure.x,) if figure.x and not kind.x else ()
    return {"x": x, "colour": figure.colour or (), "facet": figure.facet or ()}


def _rest(figure: FigureSpec, kind: FigureKind, varied: Sequence[str]) -> list[str]:
    """Return the factors that vary in the drawn cells without a place in the figure."""
    own = [*([scale_of(varied)] if kind.along_scale else []), *kind.along]
    named = {name for names in _used(figure, kind).values() for name in names}
    return [name for name in varied if name not in named and name not in own]


def _varied(cells: Sequence[Levels]) -> list[str]:
    redundant = implied(cells)
    return [
        name
        for name in (cells[0] if cells else ())
        if len(_levels(cells, name)) > 1 and name not in redundant
    ]


def _levels(cells: Sequence[Levels], name: str) -> list[Any]:
    return list(dict.fromkeys(levels[name] for levels in cells))


def _expected(names: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of a mistake that say which names would have been right."""
    return {"expected": names} if names else {"hint": "no factor varies here"}
