"""Select the part of a study that a figure draws: filtered cells, series and panels.

Intervals are estimated from all runs that the figure can use, before its filter (`analysis.cell_means`), so
that figures and tables agree.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import pandas as pd

from analysis.cell_means import CellMeans, estimate_response_means
from analysis.intervals import Estimate
from analysis.level_words import OUT_OF_MEMORY_MARK, combination_text, level_text, title, treatment_text
from analysis.records import (
    currency_of,
    default_series_factors,
    levels_in_order,
    out_of_memory_cells,
    size_factor_name,
    successful,
    varying,
)
from analysis.responses import response_notes, with_response
from common.notes import Note
from declared.factors import (
    N_DEVICES,
    NODES_AND_DEVICES,
    NOT_TREATMENTS,
    PARALLELISM_OPTIONS,
    factor_names,
    implied,
    treatments_of,
)
from declared.figure_specs import FigureSpec
from declared.products.figure_kinds import KINDS
from declared.responses import EPOCH_TIME, RESPONSES, Response
from figures import captions, panels, style
from figures.captions import Caption
from figures.selection import Series, level_combinations, rows_at

PanelLevels = Sequence[dict[str, Any]]
MAX_NAMED_LEVELS = 4  # levels of a factor that a caption names; of more it states the number
NOT_RECORDED = "not recorded"


class ViewRow(NamedTuple):
    """A row of a figure of all cells: its series, its number of nodes or devices if they vary, its label."""

    series: Series
    size_levels: dict[str, Any]
    label: str


@dataclass(frozen=True)
class View:
    """The part of a study that one figure draws.

    Attributes:
        unfiltered_runs: The runs that tables of time use, before the filter of the figure.
        runs: The runs that the filter keeps and that fit the page.
        spec: The figure as the study declares it.
        series_factors: Factors that distinguish series.
        panel_factors: Factors that distinguish panels.
        omission_note: Note on panels that do not fit the page; "" if all fit.
        response: The response that `estimate` and `values` return.
    """

    unfiltered_runs: pd.DataFrame
    runs: pd.DataFrame
    spec: FigureSpec
    series_factors: list[str]
    panel_factors: list[str]
    omission_note: str = ""
    response: Response = EPOCH_TIME

    def fit_to_page(
        self, height_in: float, across: int = panels.MAX_GRID_COLUMNS, panel_levels: PanelLevels | None = None
    ) -> "View":
        """Return the view reduced to as many panels of this height as fit a printed page.

        If there are more panels, levels are dropped: of the last panel factor first, then of the one before.
        Levels with the most measured panels are kept. If all remaining panels share a level, the caption
        names it instead of the panel titles.

        Args:
            height_in: Height of a panel with its title, in inches.
            across: Panels per row.
            panel_levels: Levels of the panels that have content; all panels by default.
        """
        all_panels = list(self.panel_levels if panel_levels is None else panel_levels)
        fitting = _select_fitting(all_panels, self.ok, panels.max_panels_on_page(height_in, across))
        kept_levels, all_levels = (
            {name: list(dict.fromkeys(panel[name] for panel in panel_list)) for name in self.panel_factors}
            for panel_list in (fitting, all_panels)
        )
        restricted = {
            name: levels for name, levels in kept_levels.items() if len(levels) < len(all_levels[name])
        }
        if not restricted:
            return self
        runs = self.runs
        for name, levels in restricted.items():
            runs = runs[runs[name].isin(levels)]
        panel_factors = [
            name for name in self.panel_factors if name not in restricted or len(restricted[name]) > 1
        ]
        at_levels = ", ".join(
            _levels_phrase(
                name, levels, " or ".join([combination_text({name: levels[0]}), *map(level_text, levels[1:])])
            )
            for name, levels in restricted.items()
        )
        counts = f"{len(fitting)} of {len(all_panels)} panels are drawn"
        text = f"{counts}, those at {at_levels}; a `filter` shows others."
        facts = {"drawn": len(fitting), "panels": len(all_panels), "levels": restricted}
        note = Note("panels-left-out", text, **facts)
        return replace(self, runs=runs, panel_factors=panel_factors, omission_note=note)

    @cached_property
    def ok(self) -> pd.DataFrame:
        """The runs to draw that succeeded and have the response."""
        return self.measured(self.runs)

    def measured(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Return the successful runs that have the response."""
        return successful(runs).dropna(subset=self.response.column)

    @cached_property
    def out_of_memory(self) -> set[str]:
        """The drawn cells without a successful run because memory ran out."""
        return set(out_of_memory_cells(self.runs))

    def absence_reason(self, planned: pd.DataFrame) -> str:
        """Return why cells with these planned runs have no value."""
        if len(planned) and set(planned["cell"]) <= self.out_of_memory:
            return OUT_OF_MEMORY_MARK
        return captions.NO_SUCCESS if successful(planned).empty else NOT_RECORDED

    @property
    def missing_cause(self) -> Note:
        """Why no run has the response."""
        if len(self.runs) and set(self.runs["cell"]) <= self.out_of_memory:
            return captions.ALL_OUT_OF_MEMORY
        if successful(self.runs).empty:
            return captions.NO_SUCCESS
        name = self.response.title
        return Note("response-not-recorded", f"no run records its {name}", response=self.response.name)

    @cached_property
    def cell_means(self) -> CellMeans:
        """Means of all cells of `unfiltered_runs`, with their intervals."""
        return estimate_response_means(self.unfiltered_runs, self.response)

    @property
    def axis_name(self) -> str:
        """Name of the axis of values, as in the note that it is logarithmic."""
        return "time" if self.response == EPOCH_TIME else self.response.title

    @property
    def response_notes(self) -> list[str]:
        """The endnotes on the response; none for epoch time."""
        return [] if self.response == EPOCH_TIME else response_notes(self.runs, self.response)

    def estimate(self, cell: str) -> Estimate:
        """Return the mean response of a cell in its displayed unit, with its interval."""
        return self.cell_means.cell_mean(cell).times(self.response.unit_multiplier)

    def values(self, runs: pd.DataFrame) -> pd.Series:
        """Return the response of runs in its displayed unit."""
        return self.response.unit_multiplier * runs[self.response.column].astype(float)

    def values_and_means(
        self, levels: Mapping[str, Any], drawn: Collection[str] | None = None
    ) -> tuple[pd.Series, pd.DataFrame]:
        """Return the response of runs at these levels, and n, mean, low and high of their cells.

        Args:
            levels: Levels of some factors.
            drawn: The cells that are drawn; None for all.
        """
        ok = rows_at(self.ok, levels)
        ok = ok if drawn is None else ok[ok["cell"].isin(drawn)]
        means = self.cell_means.cell_statistics.loc[list(set(ok["cell"])), ["n", "mean", "low", "high"]]
        means[["mean", "low", "high"]] *= self.response.unit_multiplier
        return self.values(ok), means

    @cached_property
    def series(self) -> list[Series]:
        """The series, in order.

        A treatment has the same style in all figures of a study, as a framework has.
        """
        study_series = self._make_series(self.unfiltered_runs, self.series_factors)
        drawn_series = [series for series in study_series if len(series.select(self.runs))]
        if len(drawn_series) < len(level_combinations(self.runs, self.series_factors)):
            # The study has more series than there are styles, so some of those to draw have none.
            drawn_series = self._make_series(self.runs, self.series_factors)
        default_factors = default_series_factors(self.unfiltered_runs)
        if default_factors == ["framework"] or not set(self.series_factors) <= set(default_factors):
            return drawn_series
        default_series = self._make_series(self.unfiltered_runs, default_factors)
        matching = [
            [
                candidate.style
                for candidate in default_series
                if len(candidate.select(series.select(self.runs)))
            ]
            for series in drawn_series
        ]
        # Styles are taken over only if each series is exactly one of the default series.
        is_unique = all(len(styles) == 1 for styles in matching)
        if not is_unique or len({styles[0] for styles in matching}) < len(drawn_series):
            return drawn_series
        return [
            replace(series, style=styles[0]) for series, styles in zip(drawn_series, matching, strict=True)
        ]

    def _make_series(self, runs: pd.DataFrame, names: Sequence[str]) -> list[Series]:
        return _make_series(runs, names, sorted(set(self.unfiltered_runs["framework"])))

    @cached_property
    def cells(self) -> pd.DataFrame:
        """A row per planned cell: its name, every factor, and its devices."""
        return self.runs.drop_duplicates("cell")[["cell", *factor_names(self.runs), N_DEVICES]]

    @cached_property
    def panel_levels(self) -> list[dict[str, Any]]:
        """Levels of each panel, in order."""
        names = self.panel_factors
        return sorted(level_combinations(self.runs, names), key=_level_order(self.runs, names))

    @cached_property
    def rows(self) -> list[ViewRow]:
        """The rows of a figure of all cells: by nodes or devices if they vary, then by series.

        Frameworks with equally many nodes, which readers compare, thus stand beside each other.
        """
        factor = size_factor_name(self.runs)
        varied = varying(self.runs, exclude=[*self.series_factors, *self.panel_factors])
        return [
            ViewRow(series, levels, ", ".join(filter(None, (series.name, combination_text(levels)))))
            for levels in level_combinations(self.runs, [factor] if factor in varied else [])
            for series in self.series
            if len(rows_at(series.select(self.runs), levels))
        ]

    @property
    def first_rows_of_groups(self) -> list[int]:
        """Indices of the rows where another number of nodes or devices starts, except the first one."""
        return [
            index
            for index, (row, previous) in enumerate(zip(self.rows[1:], self.rows, strict=False), start=1)
            if row.size_levels != previous.size_levels
        ]

    @property
    def series_description(self) -> str:
        """What distinguishes the series, such as `framework` or `treatment (training loop, schedule)`."""
        names = [title(name) for name in self.series_factors]
        if set(self.series_factors) <= set(NOT_TREATMENTS):
            return " and ".join(names)
        return f"treatment ({', '.join(names)})"

    @property
    def series_plural(self) -> str:
        """What the series are, such as `frameworks` or `treatments`."""
        if self.series_factors == ["framework"]:
            return "frameworks"
        return "series" if "framework" in self.series_factors else "treatments"

    def caption(
        self,
        lead: str | Sequence[str],
        *details: str,
        endnotes: Sequence[str] = (),
        with_intervals: bool = True,
        counted: pd.Series | None = None,
    ) -> Caption:
        """Return the caption of `captions.compose_caption` with notes on series, filter and omitted panels.

        The arguments are those of `captions.compose_caption`.
        """
        lead = [*([lead] if isinstance(lead, str) else lead), self.omission_note]
        sentences = [self._series_note, self._filter_note, *details]
        return captions.compose_caption(
            self.runs, lead, *sentences, endnotes=endnotes, with_intervals=with_intervals, counted=counted
        )

    @property
    def _series_note(self) -> str:
        """Which factors distinguish series; "" for the framework alone."""
        if self.series_factors == ["framework"]:
            return ""
        return Note(
            "series",
            f"Series: {', '.join(title(name) for name in self.series_factors)}.",
            factors=self.series_factors,
        )

    @property
    def _filter_note(self) -> str:
        """Which levels the filter keeps; "" without a filter."""
        parts = [
            _levels_phrase(name, levels, f"{title(name)} {', '.join(map(level_text, levels))}")
            for name, levels in self.spec.filter.items()
        ]
        levels = {name: list(levels) for name, levels in self.spec.filter.items()}
        return Note("filtered", f"Shown: only {'; '.join(parts)}.", levels=levels) if parts else ""


def filtered(runs: pd.DataFrame, spec: FigureSpec) -> pd.DataFrame:
    """Return the runs, or rows of a table, that the figure's filter keeps.

    Factors that are not columns of `runs` are ignored.
    """
    for name, levels in spec.filter.items():
        if name in runs:
            runs = runs[runs[name].isin(list(levels))]
    return runs


class RunsAndEpochs(Protocol):
    """What a view of a response needs: the records of a study, or the material of its report."""

    @property
    def runs(self) -> pd.DataFrame:
        """The runs that tables of time use."""

    @property
    def epochs(self) -> pd.DataFrame:
        """The epochs of these runs, and possibly of others."""


def build_response_view(records: RunsAndEpochs, spec: FigureSpec) -> View:
    """Return the view of a figure whose `y` is a response."""
    response = RESPONSES[spec.y or EPOCH_TIME.name]
    runs = with_response(records.runs, response, lambda: records.epochs, spec.target)
    return build_view(runs, spec, response)


def build_view(runs: pd.DataFrame, spec: FigureSpec, response: Response = EPOCH_TIME) -> View:
    """Return the view of a figure.

    Without a `colour` in the spec, series are those of `default_series_factors`. Every other varying factor
    makes panels, so that no marker averages over a factor.

    Args:
        runs: The runs of the study that the figure can use.
        spec: The figure.
        response: The quantity on the axis of values.
    """
    filtered_runs = filtered(runs, spec)
    implied_factors = implied(
        filtered_runs[["parallelism", *PARALLELISM_OPTIONS]].drop_duplicates().to_dict("records")
    )
    varied_factors = varying(filtered_runs, exclude=implied_factors)
    if N_DEVICES in {spec.x, *(spec.colour or ()), *(spec.facet or ())}:
        # N_DEVICES stands for nodes and devices of a node, of which the filtered cells may vary only one.
        varied_factors = [name for name in varied_factors if name not in (*NODES_AND_DEVICES, N_DEVICES)]
        varied_factors += [N_DEVICES] if filtered_runs[N_DEVICES].nunique() > 1 else []
    axis_factors = KINDS[spec.kind].factors_on_axes(size_factor_name(filtered_runs), spec.x)
    panel_factors = [name for name in spec.facet or () if name in varied_factors]
    series_factors = [name for name in spec.colour or () if name in varied_factors]
    if not series_factors and spec.colour:
        series_factors = ["framework"]
    elif not series_factors:
        placed = [*axis_factors, *panel_factors, *implied_factors]
        series_factors = default_series_factors(filtered_runs, exclude=placed)
    placed = [*axis_factors, *series_factors, *panel_factors]
    unplaced = [name for name in varied_factors if name not in placed]
    treatments = treatments_of(unplaced)
    panel_factors += [*(name for name in unplaced if name not in treatments), *treatments]
    return View(
        unfiltered_runs=runs,
        runs=filtered_runs,
        spec=spec,
        series_factors=series_factors,
        panel_factors=panel_factors,
        response=response.with_currency(currency_of(runs)),
    )


def _select_fitting(panel_levels: PanelLevels, ok: pd.DataFrame, max_panels: int) -> PanelLevels:
    """Return at most `max_panels` panels, as `View.fit_to_page` describes; `ok` are the successful runs."""
    names = list(panel_levels[0]) if len(panel_levels) > max_panels else []
    measured = set(ok[names].drop_duplicates().itertuples(index=False, name=None))
    for name in reversed(names):
        if len(panel_levels) > max_panels:
            sizes = Counter(panel[name] for panel in panel_levels)
            with_runs = Counter(panel[name] for panel in panel_levels if tuple(panel.values()) in measured)
            kept_levels: list[Any] = []
            for level, _ in (with_runs or sizes).most_common():
                n_panels = sum(sizes[kept_level] for kept_level in [*kept_levels, level])
                if not kept_levels or n_panels <= max_panels:
                    kept_levels.append(level)
            panel_levels = [panel for panel in panel_levels if panel[name] in kept_levels]
    return panel_levels


def _levels_phrase(name: str, levels: Sequence[Any], text: str) -> str:
    """Return `text`, which names these levels of a factor, or their number if there are many."""
    return text if len(levels) <= MAX_NAMED_LEVELS else f"{len(levels)} levels of {title(name)}"


def _level_order(runs: pd.DataFrame, names: Sequence[str]) -> Callable[[dict[str, Any]], list[int]]:
    """Return a key that sorts combinations of levels as tables do, except models, which it sorts by size."""
    positions = {
        name: {level: rank for rank, level in enumerate(levels_in_order(runs, name))} for name in names
    }
    if "model" in positions and runs["parameters"].notna().all():
        sizes = runs.groupby("model")["parameters"].max().sort_values(kind="stable")
        positions["model"] = {model: rank for rank, model in enumerate(sizes.index)}
    return lambda levels: [positions[name].get(levels[name], -1) for name in names]


def _distinguishing(levels: dict[str, Any], combined: PanelLevels) -> dict[str, Any]:
    """Return the levels that a legend has to name: options of a strategy only if it has several of them.

    A schedule, for example, is an option of pipelines. All other strategies have its default, which says
    nothing.
    """
    if "parallelism" not in levels:
        return levels
    same_strategy = [row for row in combined if row["parallelism"] == levels["parallelism"]]
    return {
        name: level
        for name, level in levels.items()
        if name not in PARALLELISM_OPTIONS or len({row[name] for row in same_strategy}) > 1
    }


def _make_series(runs: pd.DataFrame, names: Sequence[str], frameworks: Sequence[str]) -> list[Series]:
    """Return a series for each combination of levels of `names` that occurs, until styles run out.

    `frameworks` are all frameworks of the study; each has a style of its own.
    """
    combined = sorted(level_combinations(runs, names), key=_level_order(runs, names))
    if list(names) == ["framework"]:
        return [
            Series(levels["framework"], levels, style.framework_style(levels["framework"], frameworks))
            for levels in combined
        ]
    if "framework" not in names:
        return [
            Series(treatment_text(_distinguishing(levels, combined)), levels, series_style)
            for levels, series_style in zip(combined, style.TREATMENT_STYLES, strict=False)
        ]
    texts = [
        treatment_text({name: level for name, level in levels.items() if name != "framework"})
        for levels in (_distinguishing(levels, combined) for levels in combined)
    ]
    number = {text: position for position, text in enumerate(dict.fromkeys(texts))}
    return [
        Series(
            f"{levels['framework']}, {text}",
            levels,
            style.variant_style(levels["framework"], number[text], frameworks),
        )
        for levels, text in zip(combined, texts, strict=True)
        if number[text] < len(style.VARIANTS)
    ]
