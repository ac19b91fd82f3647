"""Describe the figures and tables of a campaign for the rules: files, inputs and command lines."""

import json
from collections.abc import Callable, Sequence

from common.files import display_path
from declared.figure_specs import FigureSpec
from declared.frameworks import is_registered, load_framework
from declared.products.figure_kinds import KINDS
from declared.products.tables import PROGRAMS, TableProgram, is_available
from declared.products.traits import Traits
from declared.records import RECORD_TABLES
from declared.responses import EPOCH_TIME
from environments.identity import environment_stamp
from plan.campaign import Campaign
from plan.collective_benchmarks import CollectiveBenchmarks
from plan.decisions import rule_fields
from plan.strategies import strategy_file
from plan.timings import Timings

# Inputs of every figure. Captions say which cells reached the interval target, by the table `replication`.
FIGURE_INPUTS = ("runs", "epochs", "replication")
FIGURE_SUFFIXES = ("pdf", "svg", "png", "caption.md")

# Command-line options that programs take from the campaign; an empty list omits the option.
OPTIONS: dict[str, Callable[[Campaign], list[str]]] = {
    "study": lambda campaign: ["--study", campaign.study.name],
    "site": lambda campaign: ["--site", campaign.site.name],
    "margin": lambda campaign: _option("--margin", campaign.study.margin),
    "target_accuracy": lambda campaign: _option("--target-accuracy", campaign.study.target_accuracy),
    "replicates": lambda campaign: _option(
        "--replicates", campaign.study.replicates.words if campaign.study.replicates.adaptive else None
    ),
    "interval_target": lambda campaign: ["--rule", json.dumps(rule_fields(campaign.study.replicates))],
    "response": lambda campaign: _option(
        "--response", None if campaign.study.response == EPOCH_TIME.name else campaign.study.response
    ),
    "omitted_tables": lambda campaign: ["--omit", *names] if (names := omitted_tables(campaign)) else [],
}


def omitted_tables(campaign: Campaign) -> list[str]:
    """Return the tables of `analysis.study` that the study cannot have."""
    traits = campaign.study.traits(**campaign.recorded_traits)
    return [table.name for table in PROGRAMS["analysis.study"].tables if not traits.has_all(table.when)]


def _option(name: str, value: object) -> list[str]:
    return [] if value is None else [name, str(value)]


class Products:
    """The figures and tables of a campaign.

    Attributes:
        traits: Traits of the study and its campaign.
        figures: Figures by name, in order.
        programs: Programs that make its tables, without those made on request only.
    """

    def __init__(self, campaign: Campaign, benchmarks: CollectiveBenchmarks, timings: Timings) -> None:
        self._campaign = campaign
        self.traits = campaign_traits(campaign, benchmarks, timings)
        self.figures: dict[str, FigureSpec] = {
            spec.name: spec for spec in campaign.study.figure_specs(self.traits)
        }
        self.programs = [program for program in PROGRAMS.values() if program.has_tables(self.traits)]

    @property
    def figure_files(self) -> dict[str, list[str]]:
        """The files of each figure."""
        stem = f"{self._campaign.results}/figures"
        return {name: [f"{stem}/{name}.{suffix}" for suffix in FIGURE_SUFFIXES] for name in self.figures}

    @property
    def all_figure_files(self) -> list[str]:
        """The files of all figures."""
        return [file for files in self.figure_files.values() for file in files]

    def files_of_kind(self, kind: str) -> list[str]:
        """Return the files of the figures of a kind."""
        return [
            file
            for name, files in self.figure_files.items()
            if self.figures[name].kind == kind
            for file in files
        ]

    @property
    def printed_tables(self) -> list[str]:
        """The names of the tables that reports and papers print."""
        tables = [table for program in self.programs for table in program.tables_of(self.traits)]
        return [table.name for table in tables if not table.csv_only]

    @property
    def table_files(self) -> list[str]:
        """The files of all tables."""
        return [file for program in self.programs for file in self.files_of_program(program)]

    def files_of_program(self, program: TableProgram | str) -> list[str]:
        """Return the files that a program of tables writes."""
        program = PROGRAMS[program] if isinstance(program, str) else program
        names = [file for table in program.tables_of(self.traits) for file in table.files]
        return [f"{self._campaign.results}/tables/{name}" for name in [*names, *program.other_files]]

    def figure_module(self, figure: str) -> str:
        """Return the module that draws a figure."""
        return KINDS[self.figures[figure].kind].module

    def figure_inputs(self, figure: str) -> dict[str, str]:
        """Return the input files of a figure by name, without tables that the campaign does not have."""
        return self._inputs([*FIGURE_INPUTS, *KINDS[self.figures[figure].kind].inputs])

    def program_inputs(self, program: TableProgram) -> list[str]:
        """Return the files that the tables of a program are made from."""
        strategies = strategy_file(self._campaign.study.name, self._campaign.site.name)
        needed = "strategies" in program.depends and strategies.exists()
        return [*self._inputs(program.inputs).values(), *([display_path(strategies)] if needed else [])]

    def arguments(self, program: TableProgram) -> list[str]:
        """Return the command line of a program of tables."""
        inputs = [part for name, file in self._inputs(program.inputs).items() for part in (_flag(name), file)]
        options = [part for name in program.options for part in OPTIONS[name](self._campaign)]
        environment = [
            part for stamp in self.environments(program) for part in (_flag(program.environment), stamp)
        ]
        out = f"{self._campaign.results}/tables"
        if program.out == "stem":
            out += f"/{program.tables[0].name}"
        return [*inputs, *options, *environment, "--out", out]

    def environments(self, program: TableProgram) -> list[str]:
        """Return the stamp of the environment of a program that this one calls, if the study uses it."""
        is_needed = program.environment and self._campaign.study.extra_p
        return [str(environment_stamp(self._campaign.site.cache, program.environment))] if is_needed else []

    def framework_files(self, program: TableProgram) -> list[str]:
        """Return the descriptions of the study's frameworks if a program reads them."""
        names = self._campaign.study.factors["framework"] if program.reads_models else []
        return [display_path(load_framework(name).file) for name in names if is_registered(name)]

    def record_files(self, *names: str) -> list[str]:
        """Return the files of those tables of records that the campaign has."""
        return list(self._inputs(names).values())

    def _inputs(self, names: Sequence[str]) -> dict[str, str]:
        return {name: self._input_file(name) for name in names if is_available(name, self.traits)}

    def _input_file(self, name: str) -> str:
        if name in RECORD_TABLES:
            return str(self._campaign.table_file(name))
        return f"{self._campaign.results}/tables/{name if name.endswith('.md') else f'{name}.csv'}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def campaign_traits(campaign: Campaign, benchmarks: CollectiveBenchmarks, timings: Timings) -> Traits:
    """Return the traits of a study and its campaign. Published tables have those that their files show."""

    def is_recorded(name: str) -> bool:
        return campaign.published_folder is None or campaign.table_file(name).exists()

    costs = (campaign.is_measuring and timings.record_paths) or campaign.table_file("costs").exists()
    return campaign.study.traits(
        heterogeneous=campaign.study.is_heterogeneous or campaign.site.is_heterogeneous,
        has_collective_benchmark=benchmarks.has_results,
        nodes_have_network=bool(campaign.study.imported) or campaign.site.placement != "emulated",
        traced=campaign.traced,
        **campaign.recorded_traits,
        power_recorded=is_recorded("power"),
        nodes_checked=campaign.nodes_checked,
        ranks_compared=campaign.ranks_compared,
        costs_timed=bool(campaign.study.searches_strategies and benchmarks.has_results and costs),
        trace_steps_recorded=campaign.traced and is_recorded("trace_steps"),
        replay_steps_recorded=campaign.traced and is_recorded("replay_steps"),
    )
