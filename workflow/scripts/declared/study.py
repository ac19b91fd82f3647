"""Read and check a study: its factors and their levels, replicates and figures."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from common.errors import CodedValueError, InputError
from common.files import CHECKOUT, display_path, load_yaml
from common.keys import Keys, Line, Maybe, ParsedFrom, Rules, key, optional, parse
from common.renamed import other_factor_names, rename_factors
from common.text import alternatives, number_of
from declared.commands import PLACEHOLDERS, Command, command_names, load_command
from declared.configuration import existing, unknown_name_error
from declared.datasets import NEXT, TOKENS, find_dataset, kind, load_dataset, targets
from declared.factors import (
    CUSTOM,
    MIN_LEVELS_TO_HOLD_OUT,
    MODEL_AND_DATASET,
    N_DEVICES,
    NODES_AND_DEVICES,
    UNTRACED,
    CustomName,
    Levels,
    as_list,
    factor_lists,
    factor_table,
    is_numeric,
    level_of,
    level_type,
    matches,
    size_factor_of,
    with_devices,
)
from declared.figure_specs import (
    FigureSpec,
    choose_response,
    default_figures,
    impossible_response,
    read_figures,
)
from declared.fraction import Fraction, smallest_fraction
from declared.frameworks import framework_names
from declared.imported import CAMPAIGN, Imported, load_campaigns, load_imported
from declared.mesh import SEARCHED, is_mesh, sizes_of
from declared.models import trainable_model_names
from declared.paper import Paper, checked_paper
from declared.products.traits import Traits
from declared.responses import EPOCH_TIME, RESPONSES
from declared.user_models import is_user_model, load_user_model

SECTIONS_WITH_FACTORS = ("factors", "exclude", "replicates", "answer", "figures")
CUSTOM_KEY = "custom"  # key below `factors` with custom factors
DEFAULT_RESOLUTION = 4
ACCURACIES = ("validation_accuracy", "train_accuracy", "perplexity")  # columns of runs.csv
MIN_REPLICATES = 3  # The spread of fewer runs cannot be estimated.
MIN_RUNS_FOR_RESIDUALS = 8  # a plot of fewer residuals shows nothing
# Degrees of freedom that the pooled spread of all cells needs before any cell can reach an interval target
# (replication.stopping).
MIN_POOLED_DF = 16.0


@dataclass(frozen=True)
class Replicates:
    """How often every cell is run: `at_least` times, then until it reaches the interval target or `at_most`.

    Attributes:
        at_least: Runs of every cell.
        at_most: Runs after which a cell gets no more.
        until: Interval target: half the width of a 95 % interval, as a share of the value. None for a fixed
            number of runs; then at_least = at_most.
        contrasts: Levels by factor. Without contrasts the target is for the mean epoch time of each cell;
            with contrasts, for the ratios of cells that differ only in one of these factors, between these
            levels.
    """

    at_least: int
    at_most: int
    until: float | None = None
    contrasts: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def adaptive(self) -> bool:
        """Whether the number of runs is chosen by an interval target."""
        return self.until is not None

    def known_after(self, cells: int) -> int:
        """Return the runs of each of `cells` cells after which their pooled spread has MIN_POOLED_DF.

        With contrasts, the effects of blocks use up degrees of freedom, too.
        """
        n_free = max(1, cells - 1) if self.contrasts else cells
        return 1 + math.ceil(MIN_POOLED_DF / n_free)

    @property
    def words(self) -> str:
        """The rule as the end of a sentence such as `a cell has ...`."""
        if self.until is None:
            return number_of(self.at_least, "run")
        contrasts = [f"{name} ({', '.join(map(str, levels))})" for name, levels in self.contrasts.items()]
        value = (
            (f"ratios of cells that differ in {' or '.join(contrasts)} alone")
            if contrasts
            else "its mean epoch time"
        )
        return (
            f"{self.at_least} to {self.at_most} runs, until half the 95 % interval of {value} is "
            f"{100 * self.until:g} % or less"
        )


def as_share(percent: str) -> float:
    """Return a percentage, such as 5 %, as a share."""
    return float(percent.rstrip("% ")) / 100


def as_names(written: str | list[str]) -> tuple[str, ...]:
    """Return the names in a list, or a single name as a list of one."""
    return tuple(as_list(written))


# Levels by factor.
LevelsOf = dict[str, Annotated[list[str | int | float | bool], Rules(unique=True, min_length=2)]]
Names = str | Annotated[list[str], Rules(unique=True, min_length=1)]  # one factor, or a list of factors
AnswerFactors = str | Annotated[list[str], Rules(unique=True, min_length=1, max_length=2)]
Percentage = Annotated[
    str,
    Rules(
        "a percentage up to 50, such as 5 %",
        pattern=r"^([1-9]|[1-4]\d|50|0\.\d*[1-9]|[1-9]\.\d+|[1-4]\d\.\d+) ?%\Z",
    ),
]


@dataclass(frozen=True)
class IntervalTarget(Keys):
    """The key `replicates` of a study with an interval target."""

    at_least: int = key("runs that every cell gets", ge=MIN_REPLICATES)
    at_most: int = key(
        "number of blocks after which no cell gets another run, however wide its interval is", le=1000
    )
    until: Percentage = key(
        "interval target, such as '5 %': half the width of the 95 % interval of a cell's mean epoch time, "
        "relative to it; at most 50 %"
    )
    contrasts: Names | Annotated[LevelsOf, Rules(min_length=1)] = key(
        "reach the target for ratios of cells that differ in one factor alone, instead of for means of "
        "cells: a factor or a list of factors, with all their levels, or FACTOR: [LEVEL, LEVEL, ...]",
        default_factory=dict,
    )


def as_replicates(written: int | IntervalTarget) -> Replicates:
    """Return the key `replicates` as a rule; a contrast without levels gets them in `_with_levels`."""
    if isinstance(written, int):
        return Replicates(written, written)
    named, contrasts = written.contrasts, dict[str, tuple[Any, ...]]()
    if isinstance(named, dict):
        contrasts = {name: tuple(levels) for name, levels in named.items()}
    else:
        contrasts = dict.fromkeys(as_list(named), ())
    return Replicates(written.at_least, written.at_most, as_share(written.until), contrasts)


@dataclass(frozen=True)
class FigureKeys(Keys):
    """An entry of the key `figures` (see `declared.figure_specs`)."""

    kind: str = key("kind of figure: overview, by_factor, scaling, accuracy, interaction, ...")
    name: Maybe[str] = optional(
        "letters a to z, digits, - and _: the name of the figure's files; default: kind, y and x if given, "
        "joined by -, where y replaces the kinds accuracy and pareto",
        max_length=60,
        pattern=r"^[a-z0-9]+([_-][a-z0-9]+)*\Z",
    )
    x: Maybe[str] = optional(
        "factor on the x axis; for accuracy: epochs, updates or wall_time; for shares: run or epoch"
    )
    y: Maybe[str] = optional(
        "response on the y axis, such as throughput; default: response of the study. For accuracy: accuracy "
        "or, of next tokens, perplexity"
    )
    colour: Maybe[Names] = optional("factor or list of factors whose combinations are the series")
    facet: Maybe[Names] = optional("factor or list of factors whose combinations are the panels")
    filter: Maybe[dict[str, Any]] = optional(
        "draw only cells with these levels: a level or a list of levels for each factor", min_length=1
    )
    target: Maybe[float] = optional(
        "for time_to_accuracy: validation accuracy as a share; default: target_accuracy of the study",
        gt=0,
        le=1,
    )


def _as_given(figures: Sequence[FigureKeys]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {name: value for name, value in vars(figure).items() if value is not None} for figure in figures
    )


@dataclass(frozen=True, kw_only=True)
class Author(Keys):
    """An entry of the key `authors`, in the words of CITATION.cff."""

    family_names: str = key("family name, such as Lovelace", alias="family-names", min_length=1)
    given_names: str = key("given name, such as Ada", alias="given-names", min_length=1)
    affiliation: Maybe[str] = optional("university or company", min_length=1)
    orcid: Maybe[str] = optional(
        "ORCID iD, such as https://orcid.org/0000-0000-0000-0000",
        pattern=r"^https://orcid\.org/\d{4}-\d{4}-\d{4}-\d{3}[0-9X]\Z",
    )


@dataclass(frozen=True, kw_only=True)
class QuestionKeys(Keys):
    """The keys that every study has: its question and its products."""

    title: Line = key("title for figures and the report")
    question: Line = key("question that the study answers")
    target_accuracy: Maybe[float] = optional(
        "validation accuracy as a share, such as 0.9: the table time_to_accuracy says how long each cell "
        "trains until it reaches it",
        gt=0,
        le=1,
    )
    margin: Maybe[Annotated[float, ParsedFrom(Percentage, as_share)]] = optional(
        "difference of mean responses that does not matter, such as '5 %'; at most 50 %. The table of "
        "effects then tests which cells are equal within it"
    )
    answer_factors: Annotated[tuple[str, ...], ParsedFrom(AnswerFactors, as_names)] = key(
        "factor, or list of at most two factors, that the question is about: the answer in report and paper "
        "opens with a sentence about each; default: the first of `factors` that varies, other than model "
        "and dataset",
        default=(),
        alias="answer",
    )
    extra_p: bool = key(
        "add predictions of Extra-P to the prediction table; its environment is built first", default=False
    )
    authors: tuple[Author, ...] = key(
        "authors of the study, for CITATION.cff and the RO-Crate of the archive", default=(), min_length=1
    )
    anonymous: bool = key(
        "leave names of hosts, users, sites and authors, and paths, out of the report and of the paper, for "
        "double-blind review",
        default=False,
    )
    licence: Maybe[str] = optional(
        "licence of the study's records, figures and tables: an SPDX identifier such as CC-BY-4.0",
        pattern=r"^[A-Za-z0-9.+-]+\Z",
    )
    response: Literal[tuple(RESPONSES)] = key(  # type: ignore[valid-type]
        "what figures and tables compare; docs/reference/figures.md explains each", default=EPOCH_TIME.name
    )
    figures: Annotated[
        tuple[Any, ...], ParsedFrom(Annotated[tuple[FigureKeys, ...], Rules(min_length=1)], _as_given)
    ] = key(
        "figures of the study, in this order, instead of the default ones; docs/reference/figures.md "
        "lists the keys of each kind",
        default=(),
    )
    paper: Annotated[Paper, Rules(filled=True)] = key(
        "contents of the paper; all other figures and tables are in its supplement", default_factory=Paper
    )


@dataclass(frozen=True, kw_only=True)
class StudyKeys(QuestionKeys):
    """The keys of config/studies/NAME.yaml. A study names no account, no partition and no path."""

    seed: int = key(
        "number from which the order of the runs and the seed of every run are derived", ge=0, le=4294967295
    )
    design: Literal["full", "fractional"] = key(
        "full: all combinations of levels; fractional: a fraction of them, to screen many factors with two "
        "levels each"
    )
    resolution: Maybe[Literal[3, 4, 5]] = optional(
        "minimum resolution of a fractional design; default: 4. 3: main effects are not aliased with each "
        "other; 4: nor with two-way interactions; 5: two-way interactions are not aliased with each other, "
        "either"
    )
    replicates: Annotated[
        Replicates, ParsedFrom(Annotated[int, Rules(ge=1, le=1000)] | IntervalTarget, as_replicates)
    ] = key("independent repetitions of every cell, each with new processes: a number, or an interval target")
    factors: dict[str, Any] = key(
        "factors with their levels: a list varies a factor, a single value fixes it; `custom` has factors of "
        "your own, such as {tp: [1, 2, 4]}; everywhere else such a factor is called custom_tp "
        "(docs/reference/factors.md)",
        min_length=1,
    )
    exclude: tuple[Annotated[dict[str, Any], Rules(min_length=1)], ...] = key(
        "cells to leave out; each entry names one or more factors with a level or a list of levels, such as "
        "{framework: pytorch-single, nodes: [2, 4]}",
        default=(),
    )
    step_times: bool = key("write steps.csv with the time of every training step", default=False)
    node_check: bool = key(
        "whether the first job of the campaign compares the nodes (not with launcher local), so that later "
        "jobs leave out slow ones; the records of runs state the reasons",
        default=False,
    )


@dataclass(frozen=True, kw_only=True)
class ImportedStudyKeys(QuestionKeys):
    """The keys of config/studies/NAME.yaml for measurements made elsewhere."""

    imported: str = key(
        "folder with import.yaml, runs.csv and epochs.csv, relative to the checkout, which ./ringside import "
        "writes",
        min_length=1,
    )


@dataclass(frozen=True, kw_only=True)
class CombinedStudyKeys(QuestionKeys):
    """The keys of config/studies/NAME.yaml for the runs of several campaigns."""

    campaigns: Annotated[tuple[str, ...], Rules(unique=True, min_length=2)] = key(
        "campaigns whose runs are shown together: names of studies with results, or folders with runs.csv "
        "and epochs.csv, relative to the checkout. Each is a level of the factor custom_campaign"
    )


@dataclass(frozen=True, kw_only=True)
class Study(StudyKeys):
    """One experiment.

    Attributes:
        name: The name of its file.
        file: Its file.
        factors: Levels of every factor of Ringside, in the schema's order, and then of custom factors.
        exclude: Entries that exclude cells: levels by factor.
        answer_factors: The factors that the question is about, at most two; none if no factor varies.
        fraction: The fraction of the full design that is measured, None with design: full.
        figures: The figures that the study declares, none if it has the default ones.
        imported: The measurements made elsewhere or in other campaigns, None if the study's runs are planned
            here.
    """

    name: str
    file: Path
    factors: dict[str, list[Any]]
    exclude: tuple[dict[str, list[Any]], ...] = ()
    fraction: Fraction | None = None
    figures: tuple[FigureSpec, ...] = ()
    imported: Imported | None = None

    def combinations(self) -> Iterator[Levels]:
        """Yield the levels of every cell of the design, before any is excluded."""
        if self.fraction is None:
            for levels in itertools.product(*self.factors.values()):
                yield dict(zip(self.factors, levels, strict=True))
            return
        for signs in self.fraction.signs():
            yield {name: levels[signs.get(name, 0)] for name, levels in self.factors.items()}

    def cells(self) -> list[Levels]:
        """Return the cells: the combinations that are not excluded, or those measured elsewhere."""
        if self.imported:
            return [dict(levels) for levels in self.imported.cells]
        return [
            levels
            for levels in self.combinations()
            if not any(matches(levels, entry) for entry in self.exclude)
        ]

    @property
    def untraced_cells(self) -> list[Levels]:
        """The cells without a trace, the only ones whose epoch times count."""
        return [levels for levels in self.cells() if levels["trace"] == UNTRACED]

    def contrast_cells(self, factor: str, compared_levels: Sequence[Any]) -> list[Levels]:
        """Return the untraced cells with one of these levels that have a partner.

        The partner is another such cell that differs in this factor only.
        """
        cells = [levels for levels in self.untraced_cells if levels[factor] in compared_levels]
        remainders = [tuple(level for name, level in levels.items() if name != factor) for levels in cells]
        repeated = {remainder for remainder, count in Counter(remainders).items() if count > 1}
        return [levels for levels, remainder in zip(cells, remainders, strict=True) if remainder in repeated]

    @cached_property
    def refinable(self) -> list[Levels]:
        """The cells that can get more than `at_least` runs to reach an interval target."""
        rule = self.replicates
        if not rule.contrasts:
            return self.untraced_cells
        refined = {
            tuple(cell.values())
            for name, choices in rule.contrasts.items()
            for cell in self.contrast_cells(name, choices)
        }
        return [levels for levels in self.untraced_cells if tuple(levels.values()) in refined]

    @property
    def varied(self) -> list[str]:
        """The factors with more than one level.

        N_DEVICES replaces nodes and devices_per_node if they form a ladder (`declared.factors.is_ladder`).
        """
        varied = [name for name, levels in self.factors.items() if len(levels) > 1]
        if not set(NODES_AND_DEVICES) <= set(varied):
            return varied
        return with_devices(varied, ((cell["nodes"], cell["devices_per_node"]) for cell in self.cells()))

    def levels(self, name: str) -> list[Any]:
        """Return the levels of a factor, which may be N_DEVICES."""
        return (
            self.factors[name]
            if name in self.factors
            else sorted({level_of(cell, name) for cell in self.cells()})
        )

    @property
    def is_heterogeneous(self) -> bool:
        """Whether ranks of some cells can differ in speed or have different shares."""
        return (
            self.factors["shares"] != [factor_table()["shares"]["default"]]
            or "hybrid" in self.factors["device"]
        )

    @property
    def traced(self) -> bool:
        """Whether any of its runs are traced."""
        return any(level != UNTRACED for level in self.factors["trace"])

    def traits(self, **of_campaign: Any) -> Traits:
        """Return the study's traits, which decide what figures and tables it can have.

        Args:
            of_campaign: Traits that only its campaign at a site knows (`Campaign.recorded_traits`).
        """
        compared = [name for name in self.varied if name != "trace" or UNTRACED not in self.factors[name]]
        cells, n = self.untraced_cells, self.replicates.at_least
        has_trainer = not set(self.factors["framework"]) <= set(command_names())
        traits = Traits(
            varied=compared,
            full_design=self.fraction is None,
            target_accuracy=self.target_accuracy,
            n_cells=len(cells),
            fullest_factor=self._fullest_factor(compared),
            token_sequences=self.token_sequences,
            step_times=self.step_times or self._is_filled("step_time_median_s"),
            next_tokens=self.next_tokens,
            residuals_testable=n > 1 and n * len(cells) >= MIN_RUNS_FOR_RESIDUALS,
            regression_predicts=len(cells) > self._n_coefficients,
            has_baseline=any(cell["nodes"] == 1 and cell["devices_per_node"] <= 1 for cell in cells),
            fit_can_be_checked=self._can_hold_out,
            strategies_searched=self.searches_strategies,
            heterogeneous=self.is_heterogeneous,
            has_interval_target=self.replicates.adaptive,
            traced=self.traced,
            accuracy_recorded=has_trainer,
            startup_recorded=has_trainer,
        )
        if self.imported:
            traits = replace(
                traits,
                planned_here=False,
                accuracy_recorded=any(map(self._is_filled, ACCURACIES)),
                energy_recorded=self._is_filled("energy_j"),
            )
        return replace(traits, **of_campaign)

    def figure_specs(self, traits: Traits) -> list[FigureSpec]:
        """Return the figures to draw: those that it declares, or else the defaults for its traits."""
        specs = self.figures or default_figures(traits)
        return [choose_response(spec, self.response, self.target_accuracy) for spec in specs]

    @property
    def possible_figure_specs(self) -> list[FigureSpec]:
        """The figures that it can have; site and records decide which of them a campaign draws."""
        # By default, Traits assumes all that a site can provide except prices.
        return self.figure_specs(self.traits(priced=True, grid_stated=True))

    @property
    def searches_strategies(self) -> bool:
        """Whether some of its cells need a strategy from a search."""
        return SEARCHED in self.factors["parallelism"]

    @property
    def next_tokens(self) -> bool:
        """Whether the labels of any of its data sets are next tokens."""
        if self.imported:
            return self._is_filled("perplexity")
        return any(entry and targets(entry) == NEXT for entry in map(find_dataset, self.factors["dataset"]))

    @property
    def token_sequences(self) -> bool:
        """Whether the samples of any of its data sets are sequences of tokens."""
        if self.imported:
            return self._is_filled("throughput_tokens_s")
        return any(entry and kind(entry) == TOKENS for entry in map(find_dataset, self.factors["dataset"]))

    def _is_filled(self, column: str) -> bool:
        """Return whether measurements made elsewhere have a value in a column of runs.csv."""
        return self.imported is not None and column in self.imported.filled

    def _fullest_factor(self, varied: Sequence[str]) -> str:
        """Return the factor whose levels, as columns of a grid of all cells, leave the fewest gaps.

        Among equals the factor that scales a cell comes first. "" if only frameworks vary.
        """
        size_factor, cells = size_factor_of(varied), self.untraced_cells

        def gaps(name: str) -> int:
            rows = {
                tuple(level_of(levels, factor) for factor in varied if factor != name) for levels in cells
            }
            return len(rows) * len(self.levels(name)) - len(cells)

        names = sorted((name for name in varied if name != "framework"), key=lambda name: name != size_factor)
        return min(names, key=gaps, default="")

    @property
    def _n_coefficients(self) -> int:
        """The number of coefficients of a linear model with all factors that vary.

        A numeric factor has one, a factor of words has one for each level but the first.
        """
        return 1 + sum(
            1 if is_numeric(name) and not _has_words(self.levels(name)) else len(self.levels(name)) - 1
            for name in self.varied
            if name != "trace"
        )

    @property
    def _can_hold_out(self) -> bool:
        """Whether prediction can hold out a level and fit the others (MIN_LEVELS_TO_HOLD_OUT)."""
        multi_node = [levels for levels in self.cells() if levels["nodes"] > 1]
        return any(
            len({levels[name] for levels in multi_node}) >= fewest
            for name, fewest in MIN_LEVELS_TO_HOLD_OUT.items()
        )


def _has_words(levels: Sequence[Any]) -> bool:
    return any(isinstance(level, str) for level in levels)


def load_study(name: str, folder: Path = CHECKOUT / "config" / "studies") -> Study:
    """Read and check config/studies/<name>.yaml.

    Raises:
        InputError: If it is wrong; one line.
    """
    file = existing(folder, name, "study")
    content = rename_factors(load_yaml(file), file, SECTIONS_WITH_FACTORS)
    written: StudyKeys | ImportedStudyKeys | CombinedStudyKeys
    if isinstance(content, dict) and "imported" in content:
        written = parse(ImportedStudyKeys, content, file)
        study = _imported_study(written, load_imported(written.imported, file), name, file)
    elif isinstance(content, dict) and "campaigns" in content:
        written = parse(CombinedStudyKeys, content, file)
        study = _imported_study(written, load_campaigns(written.campaigns, name, file), name, file)
    else:
        written = parse(StudyKeys, content, file)
        study = _planned_study(written, name, file)
    _check_response(study)
    if N_DEVICES in study.varied:
        names = (N_DEVICES if name in NODES_AND_DEVICES else name for name in study.answer_factors)
        study = replace(study, answer_factors=tuple(dict.fromkeys(names)))
    if written.figures:
        varied = study.varied
        cells = [{name: level_of(levels, name) for name in [*varied, "trace"]} for levels in study.cells()]
        entries = [_over_devices(entry, study) if N_DEVICES in varied else entry for entry in written.figures]
        read = read_figures(entries, cells, file, study.traits())
        study = replace(study, figures=tuple(read))
    paper = checked_paper(study.paper, [spec.name for spec in study.possible_figure_specs], file)
    return replace(study, paper=paper)


def _over_devices(entry: Mapping[str, Any], study: Study) -> dict[str, Any]:
    """Return an entry of `figures` with N_DEVICES instead of nodes and devices_per_node."""
    changed = dict(entry)
    for place in ("x", "colour", "facet"):
        if place in entry:
            names = [N_DEVICES if name in NODES_AND_DEVICES else name for name in as_list(entry[place])]
            changed[place] = list(dict.fromkeys(names)) if isinstance(entry[place], list) else names[0]
    filtered = {
        name: as_list(levels) for name, levels in entry.get("filter", {}).items() if name in NODES_AND_DEVICES
    }
    if filtered:
        sizes = {level_of(cell, N_DEVICES) for cell in study.cells() if matches(cell, filtered)}
        rest = {name: levels for name, levels in entry["filter"].items() if name not in filtered}
        changed["filter"] = {**rest, N_DEVICES: sorted(sizes)}
    return changed


def _planned_study(written: StudyKeys, name: str, file: Path) -> Study:
    """Return a study with runs to plan, without its figures."""
    factors = _read_factors(written.factors, file)
    study = Study(
        **vars(written)
        | {
            "name": name,
            "file": file,
            "factors": factors,
            "replicates": _with_levels(written.replicates, factors, file),
            "exclude": tuple(
                _read_exclusion(entry, factors, f"exclude.{i}", file)
                for i, entry in enumerate(written.exclude)
            ),
            "answer_factors": _answer_factors(
                written.answer_factors, _named_factors(written.factors), factors, file
            ),
            "figures": (),
        },
        fraction=_fraction(written, factors, file),
    )
    _check_contrasts(study)
    return study


def _imported_study(written: QuestionKeys, imported: Imported, name: str, file: Path) -> Study:
    """Return a study of existing measurements, made elsewhere or in other campaigns, without its figures.

    Its cells and their numbers of runs are from runs.csv. Its seed has no effect, since no run is planned.
    """
    factors = imported.factors
    named = sorted(factors, key=lambda factor: factor != CAMPAIGN)
    return Study(
        **{key: value for key, value in vars(written).items() if key != "campaigns"}
        | {
            "name": name,
            "file": file,
            "factors": factors,
            "answer_factors": _answer_factors(written.answer_factors, named, factors, file),
            "figures": (),
            "imported": imported,
        },
        seed=0,
        design="full",
        replicates=Replicates(*imported.n_runs),
    )


def _with_levels(rule: Replicates, factors: Mapping[str, list[Any]], file: Path) -> Replicates:
    """Return the rule, checked, with all levels of each factor whose contrast names none."""
    if rule.until is None:
        return rule
    if rule.at_most <= rule.at_least:
        problem, expected = f"{rule.at_most} is too small", f"more than at_least, {rule.at_least}"
        place: dict[str, Any] = {"file": file, "key": "replicates.at_most", "got": rule.at_most}
        raise InputError("out-of-range", problem, expected=expected, **place)
    return replace(rule, contrasts=_contrasts(rule.contrasts, factors, file))


def _contrasts(
    named: Mapping[str, tuple[Any, ...]], factors: Mapping[str, list[Any]], file: Path
) -> dict[str, tuple[Any, ...]]:
    """Return the levels of each factor of contrasts, checked; all levels of the study if none are named."""
    for name, levels in named.items():
        _check_varies(name, factors, file, "replicates.contrasts")
        _check_levels(name, levels, factors, file, f"replicates.contrasts.{name}")
    return {name: levels or tuple(factors[name]) for name, levels in named.items()}


def _check_levels(
    name: str, levels: Iterable[Any], factors: Mapping[str, list[Any]], file: Path, key: str
) -> None:
    """Check that a factor of the study has all `levels`, which the file has under `key`."""
    for level in levels:
        if level not in factors[name] or isinstance(level, bool):
            problem, expected = f"{level!r} is not a level of the study", factors[name]
            raise InputError("unknown-level", problem, file=file, key=key, got=level, expected=expected)


def _check_varies(name: str, factors: Mapping[str, list[Any]], file: Path, key: str) -> None:
    """Check that a factor, which the file names under `key`, has several levels."""
    if name not in factors:
        raise unknown_name_error(name, file, key, [*factors, *other_factor_names()])
    if len(factors[name]) < 2:
        problem = f"{name} does not vary in this study"
        varied = [factor for factor, levels in factors.items() if len(levels) > 1]
        raise InputError("factor-does-not-vary", problem, file=file, key=key, got=name, expected=varied)


def _answer_factors(
    written: tuple[str, ...], named: Sequence[str], factors: Mapping[str, list[Any]], file: Path
) -> tuple[str, ...]:
    """Return the factors that the question is about: those under the key `answer`, or the first that varies.

    Traced runs are not timed, so `trace` is not such a factor if other runs are untraced.

    Args:
        written: The factors under the key `answer`.
        named: The factors that the study names, in its order.
        factors: Levels of all factors.
        file: The study's file.
    """
    untimed = ["trace"] if UNTRACED in factors["trace"] else []
    if not written:
        varied = [name for name in named if len(factors[name]) > 1 and name not in untimed]
        return tuple([*(name for name in varied if name not in MODEL_AND_DATASET), *varied][:1])
    answer_factors = tuple("nodes" if name == N_DEVICES else name for name in written)
    for name in answer_factors:
        _check_varies(name, factors, file, "answer")
        if name in untimed:
            problem = "traced cells are not timed, so the answer cannot be about trace"
            raise InputError("traced-contrast", problem, file=file, key="answer", got="trace")
    return answer_factors


def _check_contrasts(study: Study) -> None:
    """Check that each factor of a contrast has two timed cells that differ only in it."""
    for name, levels in study.replicates.contrasts.items():
        if study.contrast_cells(name, levels):
            continue
        place: dict[str, Any] = {"file": study.file, "key": "replicates.contrasts", "got": name}
        if name == "trace":
            raise InputError("traced-contrast", "traced cells are not timed", **place)
        problem = f"no two timed cells of the study differ in {name} alone"
        raise InputError("no-contrast", problem, hint="see exclude, trace and design", **place)


def _check_response(study: Study) -> None:
    """Check that the study's measurements have its response."""
    if not study.traits().has_all(RESPONSES[study.response].when):
        mistake = impossible_response(study.response)
        raise InputError("not-possible-here", file=study.file, key="response", **mistake)


def _fraction(written: StudyKeys, factors: Mapping[str, list[Any]], file: Path) -> Fraction | None:
    """Return the fraction of a study with design: fractional, None with design: full."""
    if written.design == "full":
        if written.resolution:
            problem = "only with design: fractional"
            raise InputError("conflicting-keys", problem, file=file, key="resolution", hint="remove it")
        return None
    if written.exclude:
        problem, hint = "a fraction needs all of its cells", "remove it, or set design: full"
        raise InputError("conflicting-keys", problem, file=file, key="exclude", hint=hint)
    varied = [name for name, levels in factors.items() if len(levels) > 1]
    for name in varied:
        if (n_levels := len(factors[name])) > 2:
            problem, hint = f"{n_levels} levels", "with design: fractional every factor that varies has two"
            raise InputError("too-many", problem, file=file, key=f"factors.{name}", got=n_levels, hint=hint)
    try:
        return smallest_fraction(varied, written.resolution or DEFAULT_RESOLUTION)
    except CodedValueError as error:
        hint = "set design: full, or a lower resolution"
        raise InputError(error.code, error.problem, file=file, key="design", hint=hint) from None


def _named_factors(written: Mapping[str, Any]) -> list[str]:
    """Return the names of the factors that a study's file has, in its order, with those below `custom`."""
    names: list[str] = []
    for name, levels in written.items():
        names += [f"{CUSTOM}{custom_factor}" for custom_factor in levels] if name == CUSTOM_KEY else [name]
    return names


def _read_factors(written: Mapping[str, Any], file: Path) -> dict[str, list[Any]]:
    """Return the levels of every factor of Ringside, and after them of custom factors.

    Also checks the files behind the levels: commands, models and data sets of the user.

    Raises:
        InputError: If a factor or a level is unknown, or one of these files is wrong.
    """
    raw = {name: value for name, value in written.items() if name != CUSTOM_KEY}
    custom = _read_custom_factors(written[CUSTOM_KEY], file) if CUSTOM_KEY in written else {}
    if unknown := sorted(set(raw) - set(factor_table())):
        choices = sorted([*factor_table(), *other_factor_names()])
        place: dict[str, Any] = {"file": file, "key": f"factors.{unknown[0]}", "got": unknown[0]}
        raise InputError("unknown-key", "unknown key", **place, **alternatives(unknown[0], choices))
    lists = vars(
        parse(factor_lists(), {name: as_list(value) for name, value in raw.items()}, file, "factors")
    )
    commands = [load_command(name) for name in lists["framework"] if name in command_names()]
    for command in commands:
        command.check_placeholders([name.removeprefix(CUSTOM) for name in custom])
    for name in filter(is_user_model, lists["model"]):
        load_user_model(name)
    _check_named_levels(lists, raw, commands, file)
    _check_meshes(lists["parallelism"], file)
    return lists | custom


def _read_custom_factors(raw: Any, file: Path) -> dict[str, list[Any]]:
    """Return the levels of custom factors by name, with its prefix.

    Raises:
        InputError: If they are wrong, or a factor or a placeholder of Ringside has such a name.
    """
    place = f"factors.{CUSTOM_KEY}"
    level: Any = level_type(CUSTOM)
    level_list: Any = Annotated[list[level], Rules(unique=True, min_length=1)]
    if isinstance(raw, dict):
        raw = {name: as_list(value) for name, value in raw.items()}
    custom = parse(dict[CustomName, level_list], raw, file, place)
    for name in custom:
        if name in factor_table() or name in other_factor_names() or name in PLACEHOLDERS:
            problem, key = "is a factor or a placeholder of Ringside", f"{place}.{name}"
            hint = "give it another name, or write a factor of Ringside right below factors"
            raise InputError("reserved-name", problem, file=file, key=key, got=name, hint=hint)
    return {f"{CUSTOM}{name}": levels for name, levels in custom.items()}


def _check_named_levels(
    lists: Mapping[str, list[Any]], raw: Mapping[str, Any], commands: Sequence[Command], file: Path
) -> None:
    """Check that Ringside or a user-supplied command has every framework, model and data set.

    Args:
        lists: Levels of all factors.
        raw: Levels as the file has them, single ones without a list.
        commands: The study's user-supplied commands.
        file: The study's file.
    """
    choices = {
        "framework": (*framework_names(), *command_names()),
        "model": (*trainable_model_names(), *(name for command in commands for name in command.models)),
    }
    for factor in ("framework", "model", "dataset"):
        for i, level in enumerate(lists[factor]):
            key = f"factors.{factor}.{i}" if isinstance(raw[factor], list) else f"factors.{factor}"
            if factor == "dataset":
                if not any(level in command.datasets for command in commands):
                    load_dataset(level, display_path(file), key)
            elif level not in choices[factor]:
                raise unknown_name_error(level, file, key, choices[factor])


def _check_meshes(levels: Iterable[str], file: Path) -> None:
    """Check the meshes among the levels of `parallelism`."""
    for level in filter(is_mesh, levels):
        try:
            sizes_of(level)
        except CodedValueError as error:
            place: dict[str, Any] = {"file": file, "key": "factors.parallelism", "got": level}
            raise InputError(error.code, error.problem, **place) from None


def _read_exclusion(
    entry: Mapping[str, Any], factors: Mapping[str, list[Any]], location: str, file: Path
) -> dict[str, list[Any]]:
    """Return a checked entry of `exclude`, with lists of levels."""
    for name, levels in entry.items():
        if name not in factors:
            raise unknown_name_error(name, file, f"{location}.{name}", [*factors, *other_factor_names()])
        _check_levels(name, as_list(levels), factors, file, f"{location}.{name}")
    return {name: as_list(levels) for name, levels in entry.items()}
