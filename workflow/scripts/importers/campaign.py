"""Import measurements as a campaign (``./ringside import``): read files, check them, and write tables."""

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from common.errors import InputError, InputErrors, system_faults
from common.files import CHECKOUT, create_text, digest_file, display_path, dump_line, dump_yaml, written_whole
from common.keys import parse
from common.notes import Note
from common.run_status import RunStatus
from common.schemas import schema
from common.tables import write_table
from common.text import number_of
from declared.configuration import Name
from declared.imported import IMPORT_FILE
from importers.cells import ImportedRun, complete_run, to_rows
from importers.checks import REPEATED, run_checks, without_repetitions
from importers.collective_tests import network_rows, read_collective_table, read_nccl_tests, read_osu
from importers.files import COLLECTIVES, NCCL, OSU, TABLE, Source, find_sources, values_of_name
from importers.log_runs import read_log_run, system_file
from importers.measurement import CollectiveTest, Finding, Measurement
from importers.run_table import read_run_table
from importers.statement import Options, ResolvedStatement, resolve_statement

STUDIES = CHECKOUT / "config" / "studies"
TABLES = ("runs", "epochs", "network")
# Readers of collective benchmarks; the second argument selects rows of a table.
COLLECTIVE_READERS: Mapping[str, Callable[[Path, Mapping[str, str]], list[CollectiveTest]]] = {
    NCCL: lambda path, _: read_nccl_tests(path),
    OSU: lambda path, _: read_osu(path),
    COLLECTIVES: read_collective_table,
}


@dataclass
class Import:
    """An import before anything is written: the content of files and statement.

    Attributes:
        name: Name of the study.
        stated: The statement.
        sources: The files.
        rows: Rows by table: runs, epochs and, if there are collective benchmarks, network.
        counts: Number of runs or collective tables by file.
        findings: Problems that the checks have found.
        notes: Remarks for the user.
    """

    name: str
    stated: ResolvedStatement
    sources: list[Source] = field(default_factory=list)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The folder for the tables."""
        return CHECKOUT / "results" / self.name / "imported"

    @property
    def study_file(self) -> Path:
        """The file of the study."""
        return STUDIES / f"{self.name}.yaml"


def import_measurements(
    names: Sequence[str],
    study: str,
    options: Options,
    statement: Path | None = None,
    dry_run: bool = False,
    overwrite: bool = False,
    as_json: bool = False,
) -> None:
    """Import files as the campaign of a new study, and print what was read and written.

    Args:
        names: Files, folders and glob patterns.
        study: Name of the study.
        options: What is stated for all measurements.
        statement: A YAML file with further statements, such as an import.yaml.
        dry_run: Whether to write nothing.
        overwrite: Whether to replace an earlier import with this name.
        as_json: Whether to print JSON.

    Raises:
        InputError: If a file cannot be read, a value is missing, or a finding is not accepted; then nothing
            is written.
    """
    parse(Name, study, Path("--as"))
    stated = resolve_statement(options, statement)
    result = Import(study, stated)
    check_target(result, overwrite)
    with system_faults(Path(names[0])):
        read_sources(result, names)
    refused = [finding for finding in result.findings if finding.code not in stated.accepted]
    if is_written := not refused and not dry_run:
        write_campaign(result)
    print(
        json.dumps(to_json(result, is_written), indent=2) if as_json else describe(result, refused, dry_run)
    )
    if refused:
        raise InputErrors(
            [
                InputError(
                    finding.code,
                    finding.text,
                    file=finding.place,
                    hint=f"{finding.hint} (--accept {finding.code})",
                )
                for finding in refused
            ]
        )


def check_target(result: Import, overwrite: bool) -> None:
    """Raise InputError if the study or its tables exist and must not be replaced.

    A study of runs that were not imported is never replaced.
    """
    for path in (result.study_file, result.folder / IMPORT_FILE):
        if path.exists() and not overwrite:
            hint = "name another study with --as, or replace it with --replace"
            raise InputError("already-there", "already exists", file=path, hint=hint)
    if (
        result.study_file.exists()
        and f"imported: results/{result.name}/imported" not in result.study_file.read_text(encoding="utf-8")
    ):
        hint = "name another study with --as"
        problem = "is a study whose runs were not imported"
        raise InputError("already-there", problem, file=result.study_file, hint=hint)


def read_sources(result: Import, names: Sequence[str]) -> None:
    """Read files, check them, and add their rows, findings and notes to the import."""
    reading, statement = result.stated.reading, result.stated.statement
    result.sources, notes = find_sources(names, reading.format, reading.columns)
    result.notes += notes
    check_copies(result.sources)
    runs: list[ImportedRun] = []
    tests: list[CollectiveTest] = []
    notes_of_logs: dict[str, list[tuple[str, Note]]] = {}
    for source in result.sources:
        if source.format in COLLECTIVE_READERS:
            tables = COLLECTIVE_READERS[source.format](source.path, reading.rows)
            result.counts[source.name] = len(tables)
            tests += tables
            continue
        measurements = _read_measurements(result, source, notes_of_logs)
        result.counts[source.name] = len(measurements)
        runs += [complete_run(measurement, statement, reading.time) for measurement in measurements]
    for entries in notes_of_logs.values():
        name, note = entries[0]
        others_text = f" (and {number_of(len(entries) - 1, 'other log')})" if len(entries) > 1 else ""
        result.notes.append(f"{name}{others_text}: {note}")
    _check_changes(result)
    if not runs:
        hint = "add a table of runs or a log: ./ringside import RUNS.csv all_reduce.txt --as NAME"
        raise InputError("missing-value", "has no runs", file=" ".join(names), hint=hint)
    if failed := [run for run in runs if run.status != RunStatus.OK]:
        result.notes.append(f"{number_of(len(failed), 'run')} did not succeed: {failed[0].reason}")
    result.findings += run_checks(runs, reading.time)
    if REPEATED in result.stated.accepted:
        runs = without_repetitions(runs)
    result.rows["runs"], result.rows["epochs"] = to_rows(runs, result.name, statement)
    if not any("precision" in run.measurement.values for run in runs) and "precision" not in statement.levels:
        level = result.rows["runs"][0]["precision"]
        result.notes.append(f"no file states the precision; {level} is assumed: state it with --precision")
    if len(devices := sorted({test.device for test in tests if test.device})) > 1:
        text = f"collective benchmarks of several devices count as one: {', '.join(devices)}"
        result.findings.append(Finding("mixed-cell", tests[0].place, text, "choose: --rows COLUMN=TEXT"))
    if tests:
        defaults = {"nodes": statement.nodes, "devices_per_node": statement.devices_per_node}
        frameworks = dict.fromkeys(str(run.levels["framework"]) for run in runs)
        link_rates = (statement.bandwidth_bytes_s, statement.inside_bandwidth_bytes_s)
        result.rows["network"] = [
            row
            for framework in frameworks
            for row in network_rows(tests, result.name, framework, defaults, link_rates)
        ]


def check_copies(sources: Sequence[Source]) -> None:
    """Raise InputError if two tables of runs have the same contents."""
    names: dict[str, str] = {}
    for source in sources:
        if source.format == TABLE and names.setdefault(source.sha256, source.name) != source.name:
            problem = f"has the same contents as {names[source.sha256]}"
            raise InputError("duplicate", problem, file=source.path, hint="import one of them")


def _read_measurements(
    result: Import, source: Source, notes_of_logs: dict[str, list[tuple[str, Note]]]
) -> list[Measurement]:
    """Return the runs in a table or a log, with values from the file's name.

    Findings and notes are added to `result`; notes on logs to `notes_of_logs`, by code.
    """
    reading = result.stated.reading
    values, levels = values_of_name(source.name, reading.names) if reading.names else ({}, {})
    if source.format == TABLE:
        measurements, unused = read_run_table(
            source.path, reading.columns, reading.factors, reading.rows, reading.unit
        )
        if unused:
            result.notes.append(f"{source.name}: columns that are not used: {', '.join(unused)}")
    else:
        log = read_log_run(source.path, source.format, reading)
        result.findings += log.findings
        for note in log.notes:
            notes_of_logs.setdefault(note.code, []).append((source.name, note))
        facts = {**log.run.values, **values}
        for name, fact in reading.factors.items():
            if fact not in facts:
                raise InputError(
                    "missing-value", f"does not state the factor {name}", file=log.run.place, key=fact
                )
            levels[name] = facts[fact]
        measurements = [log.run]
    return [
        replace(run, values={**run.values, **values}, custom={**run.custom, **levels}) for run in measurements
    ]


def _check_changes(result: Import) -> None:
    """Add a finding if a file differs from the one of the earlier import that the statement comes from."""
    digests = {file.name: file.sha256 for file in result.stated.earlier}
    changed = [
        source.name for source in result.sources if digests.get(source.name, source.sha256) != source.sha256
    ]
    if changed:
        text = "has changed since the earlier import"
        result.findings.append(Finding("changed-file", changed[0], text, "check the statement"))


def write_campaign(result: Import) -> None:
    """Write the tables, import.yaml and the study.

    All tables are written to temporary files first. While they replace an earlier import's tables, there is
    no import.yaml, so an interruption does not leave a mixed campaign.
    """
    description = result.folder / IMPORT_FILE
    with ExitStack() as files:  # Contexts end in reverse order, so import.yaml comes last.
        partial = files.enter_context(written_whole(description))
        partial.write_text(dump_yaml(import_content(result)), encoding="utf-8")
        for name in filter(result.rows.__contains__, TABLES):
            rows = pd.DataFrame(result.rows[name])
            required = schema(name)["required"]
            for column in required:
                rows[column] = rows.get(column)
            filled = rows[[c for c in rows if c in required or rows[c].notna().any()]]
            write_table(filled, name, files.enter_context(written_whole(result.folder / f"{name}.csv")))
        description.unlink(missing_ok=True)
        for name in TABLES:
            if name not in result.rows:
                (result.folder / f"{name}.csv").unlink(missing_ok=True)
    if not result.study_file.exists():
        create_text(result.study_file, study_text(result))


def import_content(result: Import) -> dict[str, Any]:
    """Return the content of import.yaml."""
    contents = [
        (source.name, source.sha256, source.format, result.counts[source.name]) for source in result.sources
    ]
    systems = {system_file(source.path) for source in result.sources if source.format == "mllog"}
    for file in sorted(filter(None, systems)):
        contents.append((f"systems/{file.name}", digest_file(file), "mlperf-system", 0))
    files = [dict(zip(("name", "sha256", "format", "rows"), content, strict=True)) for content in contents]
    accepted = [
        {"code": finding.code, "finding": f"{finding.place}: {finding.text}"} for finding in result.findings
    ]
    content = {
        "stated": _without_unset(vars(result.stated.statement)),
        "reading": _without_unset(vars(result.stated.reading)),
        "files": files,
        "ringside": _version(),
    }
    return content | ({"accepted": accepted} if accepted else {})


def study_text(result: Import) -> str:
    """Return the text of the study."""
    frameworks = list(dict.fromkeys(row["framework"] for row in result.rows["runs"]))
    models = list(dict.fromkeys(row["model"] for row in result.rows["runs"]))
    title = f"{', '.join(frameworks[:3])}{' and others' * (len(frameworks) > 3)}, measured elsewhere"
    question = f"How long does an epoch of {', '.join(models[:3])}{' and others' * (len(models) > 3)} take?"
    lines = [
        f"# Measurements made elsewhere. Draw them: ./ringside run {result.name}. "
        "Every key: docs/reference/configuration.md.",
        dump_line("title", title),
        dump_line("question", question) + "   # write what you want to know",
        f"imported: results/{result.name}/imported",
    ]
    return "\n".join(lines) + "\n"


def to_json(result: Import, is_written: bool) -> dict[str, Any]:
    """Return files, findings, notes and written paths, for programs."""
    return {
        "study": result.name,
        "files": [
            {"name": source.name, "format": source.format, "rows": result.counts[source.name]}
            for source in result.sources
        ],
        "runs": len(result.rows["runs"]),
        "cells": len({row["cell"] for row in result.rows["runs"]}),
        "findings": [
            {**vars(finding), "accepted": finding.code in result.stated.accepted}
            for finding in result.findings
        ],
        "notes": result.notes,
        "written": [display_path(path) for path in _targets(result)] if is_written else [],
    }


def describe(result: Import, refused: Sequence[Finding], dry_run: bool) -> str:
    """Return files, findings, notes and written paths, for people."""
    by_format: dict[str, list[Source]] = {}
    for source in result.sources:
        by_format.setdefault(source.format, []).append(source)
    lines = []
    for name, sources in by_format.items():
        title = sources[0].name if len(sources) == 1 else f"{len(sources)} files"
        count = sum(result.counts[source.name] for source in sources)
        noun = "table" if name in COLLECTIVE_READERS else "run"
        lines.append(f"{title}: {name}, {number_of(count, noun)}")
    rows = result.rows["runs"]
    replicates = Counter(row["cell"] for row in rows)
    fewest, largest = min(replicates.values()), max(replicates.values())
    n_devices = ", ".join(map(str, sorted({row["ranks"] for row in rows})))
    lines.append(
        f"{number_of(len(replicates), 'cell')} with {fewest} to {largest} runs each, on {n_devices} devices"
    )
    lines += [f"note: {note}" for note in result.notes]
    lines += [f"accepted: {f.place}: {f.text} [{f.code}]" for f in result.findings if f not in refused]
    if refused:
        lines.append("nothing was written; correct the errors below, or accept them with --accept CODE")
    elif dry_run:
        lines += [f"would write {display_path(path)}" for path in _targets(result)]
    else:
        lines += [f"wrote {display_path(path)}" for path in _targets(result)]
        lines.append(f"to draw it: ./ringside run {result.name}")
    return "\n".join(lines)


def _targets(result: Import) -> list[Path]:
    tables = [result.folder / f"{name}.csv" for name in TABLES if name in result.rows]
    return [*tables, result.folder / IMPORT_FILE, result.study_file]


def _without_unset(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that have a value, with nested dataclasses as mappings, for YAML."""
    plain = {
        name: _without_unset(value if isinstance(value, dict) else vars(value))
        if isinstance(value, dict) or hasattr(value, "__dict__")
        else value
        for name, value in values.items()
    }
    return {name: value for name, value in plain.items() if value not in (None, {}, ())}


def _version() -> str:
    """Return Ringside's version."""
    content = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    return str(content["project"]["version"])
