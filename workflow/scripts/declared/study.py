"""Read and check a study: its factors and their levels, replicates and figures."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from common.errors import CodedValueError, InputError
from common.files import CHECKOUT, load_yaml
from common.keys import parse
from common.renamed import rename_factors
from declared.commands import command_names
from declared.configuration import existing_file
from declared.datasets import NEXT, TOKENS, find_dataset, kind, targets
from declared.factors import (
    MIN_LEVELS_TO_HOLD_OUT,
    MODEL_AND_DATASET,
    N_DEVICES,
    NODES_AND_DEVICES,
    UNTRACED,
    Levels,
    as_list,
    factor_table,
    is_numeric,
    level_of,
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
from declared.imported import CAMPAIGN, Imported, load_campaigns, load_imported
from declared.mesh import SEARCHED
from declared.paper import checked_paper
from declared.products.traits import Traits
from declared.replicates import Replicates
from declared.responses import RESPONSES
from declared.study_factors import check_levels, check_varies, named_factors, read_exclusion, read_factors
from declared.study_keys import CombinedStudyKeys, ImportedStudyKeys, QuestionKeys, StudyKeys

SECTIONS_WITH_FACTORS = ("factors", "exclude", "replicates", "answer", "figures")
DEFAULT_RESOLUTION = 4
ACCURACIES = ("validation_accuracy", "train_accuracy", "perplexity")  # columns of runs.csv
MIN_RUNS_FOR_RESIDUALS = 8  # a plot of fewer residuals shows nothing


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
    file = existing_file(folder, name, "study")
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
    factors = read_factors(written.factors, file)
    study = Study(
        **vars(written)
        | {
            "name": name,
            "file": file,
            "factors": factors,
            "replicates": _with_levels(written.replicates, factors, file),
            "exclude": tuple(
                read_exclusion(entry, factors, f"exclude.{i}", file)
                for i, entry in enumerate(written.exclude)
            ),
            "answer_factors": _answer_factors(
                written.answer_factors, named_factors(written.factors), factors, file
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
        check_varies(name, factors, file, "replicates.contrasts")
        check_levels(name, levels, factors, file, f"replicates.contrasts.{name}")
    return {name: levels or tuple(factors[name]) for name, levels in named.items()}


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
        check_varies(name, factors, file, "answer")
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
