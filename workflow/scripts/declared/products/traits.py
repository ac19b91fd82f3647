"""Describe what is known about a study and its campaign before anything runs.

`when` in figures.yaml and tables.yaml names these traits: a product is made if the study has all of them. A
study has a trait unless its value is False, None, 0 or empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from declared.factors import N_DEVICES, size_factor_of, treatments_of


@dataclass(frozen=True)
class Traits:
    """Traits of a study at a site.

    Attributes:
        varied: The factors that vary. `trace` is one of them only if all runs are traced.
        full_design: All combinations of levels are measured.
        target_accuracy: The validation accuracy that the study names, a share.
        n_cells: Number of cells.
        fullest_factor: The factor whose levels give a grid of the cells the fewest gaps.
        token_sequences: The samples of a data set are sequences of tokens.
        step_times: Runs record the quantiles of their step times.
        next_tokens: The labels of a data set are its next tokens, so that a perplexity exists.
        residuals_testable: Cells have replicates, and there are enough runs to test residuals.
        regression_predicts: There are more cells than coefficients, so that cells predict each other.
        has_baseline: A cell can train on one device, so that speed-ups over it exist.
        fit_can_be_checked: Cells on several nodes can be left out of a fit.
        strategies_searched: The study needs strategies of layers from a search.
        heterogeneous: Ranks or nodes can differ in speed.
        nodes_have_network: Nodes are not emulated on one machine, where they communicate over loopback.
        has_interval_target: The study has an interval target instead of a number of replicates.
        has_collective_benchmark: There is a collective benchmark of the network, or will be.
        traced: There are phases of traced runs, or will be.
        reference_timed: A reference benchmark is timed before and after every run.
        settings_recorded: Runs record the settings of their trainers, or will.
        memory_estimated: The memory of runs is estimated, or was before they ran.
        power_recorded: power.csv is available.
        nodes_checked: The campaign's first job tests its nodes, or has done so.
        ranks_compared: Runs on several nodes have phases, or each rank's time of the reference benchmark.
        costs_timed: The parts of layers were timed, or will be, and links were benchmarked.
        trace_steps_recorded: trace_steps.csv is available.
        replay_steps_recorded: replay_steps.csv is available.
        planned_here: Runs were planned here, in random order, not measured elsewhere.
        accuracy_recorded: Runs have accuracies; those of user-supplied commands do not.
        startup_recorded: Runs record when training started; those of user-supplied commands do not.
        energy_recorded: Runs can have energy.
        peak_known: The peak of devices can be known: they are accelerators, or the site states it.
        priced: The price of a node is stated.
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
    has_interval_target: bool = False
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

    def has_all(self, names: Sequence[str]) -> bool:
        """Return whether all traits with these names have a value that is true."""
        return all(getattr(self, name) for name in names)

    @property
    def size_factor(self) -> str:
        """The factor that makes cells larger: devices, nodes or devices per node (`size_factor_of`)."""
        return size_factor_of(self.varied)

    @property
    def size_varies(self) -> bool:
        """Cells differ in their number of nodes or devices."""
        return self.size_factor in self.varied

    @property
    def nodes_vary(self) -> bool:
        """Cells differ in their number of nodes, whether or not it is merged with devices per node."""
        return "nodes" in self.varied or N_DEVICES in self.varied

    @property
    def has_factor_nodes(self) -> bool:
        """`nodes` varies, and is not merged with devices per node into `n_devices`."""
        return "nodes" in self.varied

    @property
    def has_factor_n_devices(self) -> bool:
        """Nodes and devices per node grow in turn (1x1, 1x8, 2x8, 4x8), and are merged into `n_devices`."""
        return N_DEVICES in self.varied

    @property
    def only_devices_per_node_vary(self) -> bool:
        """Cells differ in devices per node, but not in nodes."""
        return self.size_factor == "devices_per_node"

    @property
    def has_speedups(self) -> bool:
        """Cells have a baseline: one device, or in measurements made elsewhere a series' fewest devices."""
        return self.has_baseline or (not self.planned_here and self.size_varies)

    @property
    def imported_with_baseline(self) -> bool:
        """Runs were imported, and some cell has a baseline, whose epochs tell computation from the rest."""
        return not self.planned_here and self.has_baseline

    @property
    def costs_stated(self) -> bool:
        """The price of a node or the carbon dioxide of a kWh is stated."""
        return self.priced or self.grid_stated

    @property
    def has_accumulation_table(self) -> bool:
        """The table has rows, or runs were planned here: then it says why there is nothing to compare."""
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
    def treatments_are_series(self) -> bool:
        """Series of figures are treatments, which may differ in updates per epoch, instead of frameworks."""
        return not self.framework_varies and bool(treatments_of(self.varied))

    @property
    def device_kind_varies(self) -> bool:
        """Cells train on different kinds of devices."""
        return "device" in self.varied

    @property
    def parallelism_varies(self) -> bool:
        """Cells differ in how ranks partition the training."""
        return "parallelism" in self.varied
