"""Which figures a study has: those that its key `figures` declares, or those that every study of its kind has.

products/figures.yaml has the kinds. No pandas here, which every start of Snakemake would wait for.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import shown
from common.text import alternatives
from declared.factors import MOST_SERIES, implied, is_numeric, is_traced, matches, scale_of
from declared.products.figures import KINDS, FigureKind
from declared.products.traits import Traits

MOST_VARIANTS = 4  # series of one framework, which all have its colour

Levels = Mapping[str, Any]


@dataclass(frozen=True)
class Declared:
    """One figure. `colour` and `facet`: factors; None leaves them to figures.view. `filter`: factor -> levels that are drawn.
    `target`: a validation accuracy, a share."""

    name: str
    kind: str
    x: str | None = None
    colour: tuple[str, ...] | None = None
    facet: tuple[str, ...] | None = None
    filter: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    target: float | None = None
    y: str | None = None

    def to_json(self) -> str:
        """One line that `from_json` reads."""
        return json.dumps({key: value for key, value in asdict(self).items() if value not in (None, {})})


class _Mistake(Exception):
    """Something wrong with a figure, under a key."""

    def __init__(self, code: str, key: str, problem: str, **fields: Any) -> None:
        super().__init__(problem)
        self.code, self.key, self.problem, self.fields = code, key, problem, fields


def usual(traits: Traits) -> list[Declared]:
    """Return the figures of a study that declares none, in the order of the kinds."""
    return [_read(name, entry) for name, kind in KINDS.items() for entry in kind.usual_entries(traits)]


def read_figures(
    written: Sequence[Mapping[str, Any]],
    cells: Sequence[Levels],
    file: Path,
    target: float | None = None,
    next_tokens: bool = False,
) -> list[Declared]:
    """The figures that a study declares, in their order. InputError, one line with file and key, for what is declared wrongly.

    `cells`: the levels of all cells that the study has, of the factors that vary; `target`: its target accuracy; `next_tokens`: whether
    any of them tells next tokens.
    """
    made: list[Declared] = []
    for place, entry in enumerate(written):
        try:
            made.append(_checked(entry, cells, [one.name for one in made], target))
            if made[-1].y == "perplexity" and not next_tokens:
                problem = "perplexity is of next tokens, and no data set of the study has these"
                raise _Mistake("not-possible-here", "y", problem, got="perplexity", hint="say accuracy")
        except _Mistake as mistake:
            key = f"figures.{place}.{mistake.key}"
            raise InputError(mistake.code, mistake.problem, file=shown(file), key=key, **mistake.fields) from None
    return made


def from_json(text: str) -> Declared:
    """The figure that a line of `Declared.to_json` says, or one that a person wrote. InputError in one line."""
    try:
        entry = json.loads(text)
    except ValueError:
        entry = None
    if not isinstance(entry, dict) or entry.get("kind") not in KINDS:
        expected = f"JSON with a kind, one of {', '.join(KINDS)}"
        raise InputError("not-one-of", "is no figure", file=f"--figure {text[:80]}", got=text, expected=expected)
    kind = entry.pop("kind")
    if unknown := sorted(set(entry) - {"name", *KINDS[kind].takes}):
        raise InputError("unknown-key", f"{kind} takes none", file="--figure", key=unknown[0], expected=_taken(kind))
    return _read(kind, entry)


def _read(kind: str, entry: Mapping[str, Any]) -> Declared:
    """A figure of what is written, which is right; one factor or level may stand for a list of one."""
    x, y = entry.get("x"), entry.get("y")
    return Declared(
        name=entry.get("name", f"{y or kind}-{x}" if x else y or kind),
        kind=kind,
        x=x,
        y=y,
        colour=_several(entry.get("colour")),
        facet=_several(entry.get("facet")),
        filter={name: list(_several(levels) or ()) for name, levels in entry.get("filter", {}).items()},
        target=entry.get("target"),
    )


def _several(value: Any) -> tuple[Any, ...] | None:
    return None if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)


def _checked(entry: Mapping[str, Any], cells: Sequence[Levels], names: Sequence[str], target: float | None) -> Declared:
    """The figure that is written, all of whose keys are right. `cells`: the levels of all cells, of
    the factors that vary; `names`: of the figures before it; `target`: the study's."""
    kind = entry["kind"]
    if kind not in KINDS:
        raise _Mistake("unknown-name", "kind", f"'{kind}' is unknown", got=kind, **alternatives(kind, KINDS))
    of = KINDS[kind]
    if of.of_traces and not any(is_traced(levels) for levels in cells):
        problem, hint = f"{kind} draws traced runs, and the study has none", "add trace: [none, phases] to its factors"
        raise _Mistake("not-possible-here", "kind", problem, got=kind, hint=hint)
    cells = _drawn(of, cells)
    for key in entry:
        if key not in ("kind", "name", *of.takes):
            raise _Mistake("unknown-key", key, f"{kind} takes none", expected=_taken(kind))
    for key in of.needs:
        if key not in entry:
            raise _Mistake("missing-key", key, f"is missing: {kind} needs it", **_expected(_varied(cells)))
    if "target" in of.takes:
        entry = {"target": target, **entry}
        if entry["target"] is None:
            hint = "write target: 0.9, or target_accuracy in the study"
            raise _Mistake("missing-key", "target", f"is missing: {kind} needs it", hint=hint)
    one = _read(kind, entry)
    if one.name in names:
        problem = f"'{one.name}' is figures.{names.index(one.name)} already"
        raise _Mistake("duplicate", "name", problem, got=one.name, hint="give one of them another name")
    _check_filter(one, cells)
    left = [levels for levels in cells if matches(levels, one.filter)]
    _check_places(one, of, _varied(left))
    if one.facet is not None and one.colour is None:
        # what is left is told by colour; the other way round figures.view makes panels of it
        one = replace(one, colour=tuple(sorted(_rest(one, of, _varied(left)), key=is_numeric)) or None)
    _check_series(one.colour or (), left)
    return one


def _drawn(of: FigureKind, cells: Sequence[Levels]) -> list[Levels]:
    """The cells whose runs a kind draws: traced ones; of others the untraced ones, where there are any."""
    kept = [levels for levels in cells if is_traced(levels) == of.of_traces]
    return kept or list(cells)


def _taken(kind: str) -> list[str]:
    """Return the keys that a figure of this kind may have."""
    return ["kind", "name", *KINDS[kind].takes]


def _check_filter(one: Declared, cells: Sequence[Levels]) -> None:
    varied = _varied(cells)
    for name, levels in one.filter.items():
        if name not in varied:
            problem = "is no factor that varies"
            raise _Mistake("factor-does-not-vary", f"filter.{name}", problem, got=name, **_expected(varied))
        there = _levels(cells, name)
        for level in levels:
            if level not in there or isinstance(level, bool):
                problem = f"{level!r} is no level of the study"
                raise _Mistake("unknown-level", f"filter.{name}", problem, got=level, expected=there)
    if not any(matches(levels, one.filter) for levels in cells):
        raise _Mistake("leaves-no-cell", "filter", "leaves no cell", hint="take a level out")


def _check_places(one: Declared, of: FigureKind, varied: Sequence[str]) -> None:
    """Whether every factor that varies in what is drawn has one place, and nothing else has any."""
    for key, said, words in (("x", one.x, of.x), ("y", one.y, of.y)):
        if words and said not in (None, *words):
            raise _Mistake("not-one-of", key, f"'{said}' is unknown", got=said, expected=words)
    taken: dict[str, str] = {}
    for key, names in _used(one, of).items():
        for name in names:
            if name not in varied:
                where = " in what is drawn" if one.filter else ""
                problem = f"'{name}' is no factor that varies{where}"
                raise _Mistake("factor-does-not-vary", key, problem, got=name, **_expected(varied))
            if name in taken:
                problem = f"{name} is {taken[name]} already"
                raise _Mistake("duplicate", key, problem, got=name, hint="name it once")
            taken[name] = key
    if of.one_colour and len(one.colour or ()) != 1:
        given = len(one.colour or ())
        raise _Mistake("wrong-count", "colour", f"{one.kind} takes one factor, not {given}", got=given)
    if one.colour and one.facet and (rest := _rest(one, of, varied)):
        places = [key for key in ("x", "colour", "facet") if key in of.takes and not (key == "x" and of.x)]
        hint = f"name it in {' or '.join(places)}, or hold it to one level by filter"
        raise _Mistake("factor-without-place", "facet", f"{rest[0]} varies, too", got=rest[0], hint=hint)


def _check_series(colour: Sequence[str], cells: Sequence[Levels]) -> None:
    """Whether so many series can be told apart."""
    others = [name for name in colour if name != "framework"]
    most, of_what = (MOST_SERIES, "") if len(others) == len(colour) else (MOST_VARIANTS, " of a framework")
    count = len({tuple(levels[name] for name in others) for levels in cells})
    if count > most:
        problem, hint = f"{', '.join(colour)} would make {count} series{of_what}", "name a factor in facet or filter"
        raise _Mistake("too-many", "colour", problem, got=count, expected=f"at most {most}", hint=hint)


def _used(one: Declared, of: FigureKind) -> dict[str, tuple[str, ...]]:
    """The factors that a figure names, by key."""
    x = (one.x,) if one.x and not of.x else ()
    return {"x": x, "colour": one.colour or (), "facet": one.facet or ()}


def _rest(one: Declared, of: FigureKind, varied: Sequence[str]) -> list[str]:
    """The factors that vary in what is drawn, and that neither a key nor the figure's own axis has."""
    own = [*([scale_of(varied)] if of.along_scale else []), *of.along]
    named = {name for names in _used(one, of).values() for name in names}
    return [name for name in varied if name not in named and name not in own]


def _varied(cells: Sequence[Levels]) -> list[str]:
    without = implied(cells)
    return [name for name in (cells[0] if cells else ()) if len(_levels(cells, name)) > 1 and name not in without]


def _levels(cells: Sequence[Levels], name: str) -> list[Any]:
    return list(dict.fromkeys(levels[name] for levels in cells))


def _expected(names: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of a mistake that say which names would have been right."""
    return {"expected": names} if names else {"hint": "no factor varies here"}
