"""Read the tables of results and the programs that make them, from tables.yaml."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.files import load_yaml
from declared.products.traits import Traits
from declared.records import RECORD_TABLES

FILE = Path(__file__).with_name("tables.yaml")


@dataclass(frozen=True)
class TableKind:
    """A table of results; the head of tables.yaml explains the attributes."""

    name: str
    answers: str
    method: str
    columns: Mapping[str, Sequence[str]]
    when: Sequence[str] = ()
    csv_only: bool = False
    in_supplement: bool = False

    @property
    def files(self) -> list[str]:
        """The names of its files."""
        return [f"{self.name}.{suffix}" for suffix in (["csv"] if self.csv_only else ["csv", "md", "tex"])]


@dataclass(frozen=True)
class TableProgram:
    """A program that makes tables; the head of tables.yaml explains the attributes."""

    name: str
    tables: Sequence[TableKind]
    rule: str
    inputs: Sequence[str] = ()
    options: Sequence[str] = ()
    depends: Sequence[str] = ()
    code: Sequence[str] = ()
    environment: str = ""
    out: str = "stem"
    other_files: Sequence[str] = ()
    when: Sequence[str] = ()
    reads_models: bool = False
    submitted: bool = False
    on_request: bool = False

    @property
    def modules(self) -> list[str]:
        """The modules that it runs, as arguments of `common.program_sources.program_sources`."""
        return [self.name, *self.code, *(["models.families.*"] if self.reads_models else [])]

    def has_tables(self, traits: Traits) -> bool:
        """Return whether a study with these traits has its tables without a request."""
        return not self.on_request and traits.has_all(self.when)

    def tables_of(self, traits: Traits) -> list[TableKind]:
        """Return the tables of the program that a study with these traits has."""
        return [table for table in self.tables if traits.has_all(table.when)]


def read_program(name: str, entry: Mapping[str, Any]) -> TableProgram:
    """Return the program of an entry of tables.yaml."""
    tables = [TableKind(name=table, **described) for table, described in entry["tables"].items()]
    return TableProgram(**{"name": name, "rule": tables[0].name, **entry, "tables": tables})


PROGRAMS = {name: read_program(name, entry) for name, entry in load_yaml(FILE).items()}
TABLES = {table.name: table for program in PROGRAMS.values() for table in program.tables}
PROGRAM_OF = {table.name: program for program in PROGRAMS.values() for table in program.tables}


def is_available(name: str, traits: Traits) -> bool:
    """Return whether a study with these traits has an input: a table of records or of results."""
    if name in RECORD_TABLES:
        return traits.has_all(RECORD_TABLES[name].when)
    table = name.removesuffix(".md")
    return PROGRAM_OF[table].has_tables(traits) and traits.has_all(TABLES[table].when)
