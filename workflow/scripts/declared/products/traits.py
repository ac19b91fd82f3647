"""Describe what is known of a study and its campaign before anything runs.

`when` in figures.yaml and tables.yaml may use the names of these traits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from declared.factors import DEVICES, scale_of, treatments_of

MIN_HEAT_MAP_CELLS = 12


@dataclass(frozen=True)
class Traits:
    """Traits of a study at a site.

    Attributes:
        varied: The factors that vary, without a trace that only tells traced from untraced runs.
        full_design: All combinations of levels are measured.
        target_accuracy: The validation accuracy that the study names, a share.
        n_cells: Number of cells.
        fullest_factor: The factor by whose levels a grid of the cells has fewest gaps.
        token_sequences: The samples of a data set are sequences of tokens.
        step_times: Runs record the quantiles of their steps.
        next_tokens: A data set has the next tokens for labels, so that there is a perplexity.
        residuals_testable: Cells have replicates, and there are enough runs for tests of residuals.
        regression_predicts: There are more cells than coefficients, so that cells predict each other.
        has_baseline: Some cell may train on one device, so that there are speed-ups over it.
        fit_can_be_checked: Cells on several nodes can be left out of a fit.
        strategies_searched: The study asks for strategies of layers that are searched.
        heterogeneous: Ranks or nodes may differ in speed.
        nodes_have_network: Nodes are not emulated on one machine, where they communicate over loopback.
        replicates_by_precision: The study sets a precision target in place of a number of replicates.
        has_collective_benchmark: There is a collective benchmark of the network, or will be.
        traced: There are phases of traced runs, or will be.
        reference_timed: A reference benchmark is timed beside every run.
        settings_recorded: Runs record what their trainers used, or will.
        memory_estimated: The memory of runs is estimated, or was before they ran.
        power_recorded: power.csv can be had.
        nodes_checked: The campaign's first job tests its nodes, or has done so.
        ranks_compared: Runs on several nodes have the reference benchmark's time of each rank, or phases.
        costs_timed: The parts of layers were timed, or will be, and links were benchmarked.
        trace_steps_recorded: trace_steps.csv can be had.
        replay_steps_recorded: replay_steps.csv can be had.
        planned_here: Runs were planned here, in random order, not measured elsewhere.
        accuracy_recorded: Runs have accuracies; those of user-supplied commands do not.
        startup_recorded: Runs record when training started; those of user-supplied commands do not.
        energy_recorded: Runs may have energy.
        peak_known: Devices may have a known peak: accelerators, or those whose peak is stated.
        priced: A price of a node is stated.
        grid_stated: The carbon dioxide of a kWh is stated.
    """

    varied: Sequence[str]
    full_design: bool = True
    target_accuracy: float | None = None
    n_cells: int = 0
    fullest_factor: str = ""
    token_sequences: bool = False
    step_times: bool = False
    next_tokens: bool = False
    residuals_testable: bool = True
    regression_predicts: bool = True
    has_baseline: bool = True
    fit_can_be_checked: bool = False
    strategies_searched: bool = False
    heterogeneous: bool = False
    nodes_have_network: bool = True
    replicates_by_precision: bool = False
    has_collective_benchmark: bool = True
    traced: bool = False
    reference_timed: bool = True
    settings_recorded: bool = True
    memory_estimated: bool = True
    power_recorded: bool = True
    nodes_checked: bool = False
    ranks_compared: bool = False
    costs_timed: bool = False
    trace_steps_recorded: bool = False
    replay_steps_recorded: bool = False
    planned_here: bool = True
    accuracy_recorded: bool = True
    startup_recorded: bool = True
    energy_recorded: bool = True
    peak_known: bool = True
    priced: bool = False
    grid_stated: bool = False

    def hold_all(self, names: Sequence[str]) -> bool:
        """Return whether a study has all traits of these names."""
        return all(getattr(self, name) for name in names)

    @property
    def scale(self) -> str:
        """All devices, nodes, or devices of a node (`declared.factors.scale_of`)."""
        return scale_of(self.varied)

    @property
    def scale_varies(self) -> bool:
        """Cells differ in their number of nodes or devices."""
        return self.scale in self.varied

    @property
    def nodes_vary(self) -> bool:
        """Cells differ in their number of nodes."""
        return "nodes" in self.varied or DEVICES in self.varied

    @property
    def only_nodes_vary(self) -> bool:
        """Cells differ in nodes, but not in devices of a node in turn with them."""
        return "nodes" in self.varied

    @property
    def nodes_and_devices_vary(self) -> bool:
        """Cells differ in nodes and in devices of a node, which grow in turn: 1x1, 1x8, 2x8, 4x8."""
        return DEVICES in self.varied

    @property
    def only_devices_vary(self) -> bool:
        """Cells differ in devices of a node, but not in nodes."""
        return self.scale == "devices_per_node"

    @property
    def has_speedups(self) -> bool:
        """Cells have a baseline: one device or, measured elsewhere, the fewest devices of a series."""
        return self.has_baseline or (not self.planned_here and self.scale_varies)

    @property
    def computation_measured(self) -> bool:
        """Epoch times tell computation from communication, though runs do not record more than these."""
        return not self.planned_here and self.has_baseline

    @property
    def costs_stated(self) -> bool:
        """A price of a node or the carbon dioxide of a kWh is stated."""
        return self.priced or self.grid_stated

    @property
    def accumulation_varies(self) -> bool:
        """Cells differ in gradient accumulation, or the study was planned here and says why it has none."""
        return self.planned_here or "sync_every" in self.varied

    @property
    def batch_size_varies(self) -> bool:
        """Cells differ in batch size."""
        return "batch_size" in self.varied

    @property
    def framework_varies(self) -> bool:
        """Cells differ in their framework."""
        return "framework" in self.varied

    @property
    def device_varies(self) -> bool:
        """Cells train on different kinds of devices."""
        return "device" in self.varied

    @property
    def parallelism_varies(self) -> bool:
        """Cells differ in how ranks share a training."""
        return "parallelism" in self.varied

    @property
    def interactions(self) -> list[dict[str, Any]]:
        """Return the figure of the two factors that most studies compare: the scale, and the treatment."""
        order = ("framework", *treatments_of(self.varied), self.scale, "batch_size")
        factors = [name for name in order if name in self.varied]
        if len(factors) < 2 or not self.full_design:
            return []
        x = self.scale if self.scale in factors else factors[-1]
        return [{"name": "interaction", "x": x, "colour": next(name for name in factors if name != x)}]

    @property
    def heat_maps(self) -> list[dict[str, Any]]:
        """Return the heat map of a study with many cells."""
        n_factors = len([name for name in self.varied if name != "framework"])
        if n_factors < 2 or self.n_cells < MIN_HEAT_MAP_CELLS:
            return []
        return [{"name": "heat_map", "x": self.fullest_factor}]
