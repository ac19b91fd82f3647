"""Every figure and table is declared once, and everything it is declared to need exists."""

import re

import pytest

from common.files import CHECKOUT
from common.program_sources import program_sources
from declared.products.figure_kinds import DEFAULT_FIGURES, KINDS
from declared.products.tables import PROGRAM_OF, PROGRAMS, TABLES, is_available
from declared.products.traits import Traits
from declared.records import RECORD_TABLES

TRAITS = Traits(varied=())
READ = re.compile(r"""\.table\(["'](\w+)["']\)""")


def conditions() -> list[tuple[str, str]]:
    """Return every trait that an entry names, with the entry's name."""
    of_tables = [(table.name, name) for table in TABLES.values() for name in table.when]
    of_programs = [(program.name, name) for program in PROGRAMS.values() for name in program.when]
    of_figures = [(kind.name, name) for kind in KINDS.values() for name in kind.when]
    entries = [
        (kind.name, entry)
        for kind in KINDS.values()
        if not isinstance(kind.default_figures, str)
        for entry in kind.default_figures
    ]
    of_entries = [(kind, name) for kind, entry in entries for name in entry.get("when", ())]
    of_records = [(record, name) for record, table in RECORD_TABLES.items() for name in table.when]
    return [*of_tables, *of_programs, *of_figures, *of_entries, *of_records]


def test_every_condition_is_a_trait() -> None:
    assert len(conditions()) > 30
    assert [(entry, name) for entry, name in conditions() if not hasattr(TRAITS, name)] == []


def test_every_name_of_default_figures_is_a_function() -> None:
    names = {kind.default_figures for kind in KINDS.values() if isinstance(kind.default_figures, str)}
    assert names == set(DEFAULT_FIGURES)


def test_every_input_is_a_record_or_a_table() -> None:
    entries = [*KINDS.values(), *PROGRAMS.values()]
    inputs = {name.removesuffix(".md") for entry in entries for name in entry.inputs}
    assert inputs <= {*RECORD_TABLES, *TABLES} and {"network", "crossover", "projection"} <= inputs


@pytest.mark.parametrize("name", KINDS)
def test_figure_reads_what_it_declares(name: str) -> None:
    kind = KINDS[name]
    text = (CHECKOUT / "workflow" / "scripts" / "figures" / "kinds" / f"{name}.py").read_text()
    assert program_sources(kind.module) and set(READ.findall(text)) <= set(kind.inputs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_of_tables_is_a_module(name: str) -> None:
    assert program_sources(*PROGRAMS[name].modules)


def test_table_of_a_trait_is_available_with_it() -> None:
    assert is_available("runs", TRAITS) and is_available("cells", TRAITS)
    traits = Traits(varied=("nodes", "parallelism"), has_collective_benchmark=True)
    assert is_available("crossover", traits) and not is_available("crossover", TRAITS)
    assert not is_available("network", Traits(varied=("nodes",), has_collective_benchmark=False))
    assert is_available("drift", TRAITS) and not is_available(
        "drift", Traits(varied=(), reference_timed=False)
    )
    assert is_available("settings", Traits(varied=("framework",)))
    assert not is_available("settings", Traits(varied=("framework",), settings_recorded=False))
    assert not is_available("efficiency", Traits(varied=(), peak_known=False))
    assert not is_available("settings", traits), "it compares frameworks"
    assert not is_available("pilot", traits), "somebody has to ask for it"


def test_rules_of_programs_have_names_of_their_own() -> None:
    rules = [program.rule for program in PROGRAMS.values()]
    assert len(set(rules)) == len(rules) and PROGRAM_OF["residuals"].rule == "analysis"


def test_rules_of_tables_have_names_of_their_own() -> None:
    """Some rules exist only where a study asks for them, so that plans of shipped studies do not tell."""
    texts = [file.read_text() for file in (CHECKOUT / "rules").glob("*.smk")]
    written = {name for text in texts for name in re.findall(r"^ *rule (\w+):", text, re.MULTILINE)}
    assert len(written) > 20
    assert not written & {program.rule for program in PROGRAMS.values() if not program.on_request}
