"""Read measurements made elsewhere: `import.yaml` of their folder, and the cells of its `runs.csv`.

`./ringside import` writes such a folder (package `importers`), and a study names it by its key `imported`.
The folder has the same tables as a campaign of Ringside; columns that only runs of Ringside can fill are
empty. Cells and their numbers of runs are read from `runs.csv`, since nothing was planned here.
"""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from common.errors import InputError
from common.files import CHECKOUT, digest_file, display_path, load_yaml, require_regular
from common.keys import Keys, Line, Maybe, Rules, key, load, optional
from common.renamed import rename_columns
from declared.costs import Costs
from declared.devices import Precision, Tflops
from declared.factors import CUSTOM, Levels, as_list, factor_names, factor_rules, is_custom

IMPORT_FILE = "import.yaml"
IMPORTED_FOLDER = "imported"  # below results/NAME, where `ringside import` writes
CAMPAIGN = f"{CUSTOM}campaign"  # the factor whose levels are the campaigns that a study combines
UNSTATED = "unstated"  # level of a custom factor that another campaign has
SHA256 = r"^[0-9a-f]{64}\Z"
Positive = Annotated[float, Rules(gt=0, exact=True)]


@dataclass(frozen=True, kw_only=True)
class ModelSize(Keys):
    """The size of a model that is not registered, an entry of `stated.models`."""

    parameters: Maybe[Positive] = optional("number of its parameters", gt=0)
    gradient_bytes: Maybe[Positive] = optional(
        "bytes of its gradients in one all-reduce, on each device; default: 4 x parameters", gt=0
    )
    sample_flops: Maybe[Positive] = optional(
        "floating point operations of forward and backward pass of a sample; default: 6 x parameters x "
        "tokens",
        gt=0,
    )


@dataclass(frozen=True, kw_only=True)
class Statement(Keys):
    """The key `stated` of import.yaml: a statement about all measurements."""

    source: Line = key(
        "who measured and where the measurements are published, such as a repository with commit and date"
    )
    licence: Line = key("licence of the measurements, an SPDX identifier such as Apache-2.0, or a text")
    url: Maybe[Line] = optional("address of the source")
    citation: Maybe[Line] = optional("publication to cite")
    measured: Maybe[Line] = optional("when the measurements were made, as far as the source says")
    device: Maybe[Line] = optional(
        "model of the devices that trained, if the files do not state it, such as NVIDIA V100-SXM2-16GB"
    )
    nodes: Maybe[int] = optional("number of nodes, if the files do not state it", ge=1)
    devices_per_node: Maybe[int] = optional(
        "devices of each node that train, if the files do not state it", ge=1
    )
    bandwidth_bytes_s: Maybe[Positive] = optional(
        "link rate of a node to the others in one direction, bytes/s"
    )
    inside_bandwidth_bytes_s: Maybe[Positive] = optional(
        "link rate of a device to the others of its node in one direction, bytes/s"
    )
    peak_tflops: dict[Precision, Tflops] = key(
        "dense peak of a device by precision, TFLOP/s, for devices that are not in the table of devices",
        default_factory=dict,
    )
    costs: Annotated[Costs, Rules(filled=True)] = key(
        "price, grid and stated power of a node", default_factory=Costs
    )
    levels: dict[str, Any] = key(
        "levels that all runs share and the files do not state, by factor, such as precision: amp",
        default_factory=dict,
    )
    models: dict[str, Annotated[ModelSize, Rules(filled=True)]] = key(
        "sizes of models that are not registered, by name", default_factory=dict
    )
    samples_per_epoch: Maybe[int] = optional(
        "samples of an epoch; default: the largest global batch of the campaign, so that epoch times are "
        "times for that number of samples",
        ge=1,
    )


@dataclass(frozen=True, kw_only=True)
class ImportedFile(Keys):
    """An imported file, an entry of `files`."""

    name: Line = key("file name, or path below the imported folder")
    sha256: str = key("SHA-256 of the file", pattern=SHA256)
    format: Line = key("format that the file was read in, such as csv or mllog")
    rows: Maybe[int] = optional("number of runs in the file", ge=0)


@dataclass(frozen=True, kw_only=True)
class Reading(Keys):
    """The key `reading` of import.yaml: the options that files were read with."""

    format: Maybe[Line] = optional("format of all files, if it was not recognized by their contents")
    columns: dict[str, str] = key(
        "column of a value that has an unusual name, such as seconds: t_step; empty text: the value is not "
        "read",
        default_factory=dict,
    )
    unit: Literal["s", "ms", "us", "min", "h"] = key(
        "unit of times if their column does not state it", default="s"
    )
    rows: dict[str, str] = key("text that columns have in rows that count", default_factory=dict)
    factors: dict[str, str] = key("column of each custom factor", default_factory=dict)
    names: Maybe[Line] = optional("pattern of file names with values, such as n{nodes}/b{local_batch}.log")
    time: Literal["step", "run"] = key(
        "time that is measured: of an optimizer step, or of the run until its target (time to train)",
        default="step",
    )
    warmup_steps: Maybe[int] = optional(
        "optimizer steps at the start of each log that do not count; default: those that the log shows", ge=0
    )


@dataclass(frozen=True, kw_only=True)
class AcceptedFinding(Keys):
    """A finding of the checks that was accepted, an entry of `accepted`."""

    code: str = key(
        "code of the finding, as ./ringside import prints it", pattern=r"^[a-z0-9]+(-[a-z0-9]+)*\Z"
    )
    finding: Line = key("text of the finding")


@dataclass(frozen=True, kw_only=True)
class ImportKeys(Keys):
    """The keys of import.yaml, which `./ringside import` writes."""

    stated: Statement = key("statement about all measurements")
    files: tuple[ImportedFile, ...] = key("imported files", min_length=1)
    reading: Reading = key("options that they were read with", default_factory=Reading)
    accepted: tuple[AcceptedFinding, ...] = key(
        "findings of the checks that were accepted; reports and papers repeat them", default=()
    )
    ringside: Line = key("version of Ringside that imported them")


@dataclass(frozen=True)
class Imported:
    """Measurements made elsewhere, or in the campaigns that a study combines.

    Attributes:
        folder: The folder as the study names it, relative to the checkout.
        description: Its import.yaml.
        cells: The levels of each cell of runs.csv, in the order of the table.
        n_runs: The smallest and the largest number of runs of a cell.
        n_rows: The number of all runs.
        filled: The columns of runs.csv that have a value in at least one run.
        campaigns: Folders of the campaigns that are combined, by level of CAMPAIGN; empty for one import.
    """

    folder: Path
    description: ImportKeys
    cells: tuple[Levels, ...]
    n_runs: tuple[int, int]
    n_rows: int
    filled: frozenset[str]
    campaigns: Mapping[str, Path] = field(default_factory=dict)

    @property
    def source_files(self) -> list[Path]:
        """The files that state where the runs come from, relative to the checkout."""
        if not self.campaigns:
            return [self.folder / IMPORT_FILE]
        names = ("runs.csv", "epochs.csv", IMPORT_FILE)
        files = [folder / name for folder in self.campaigns.values() for name in names]
        return [file for file in files if (CHECKOUT / file).is_file()]

    @property
    def factors(self) -> dict[str, list[Any]]:
        """The levels of every factor, words and numbers each in ascending order."""
        return {
            name: sorted(dict.fromkeys(cell[name] for cell in self.cells), key=lambda x: (str(type(x)), x))
            for name in factor_names(self.cells[0])
        }


def campaign_folder(name: str) -> Path:
    """Return the folder with runs.csv of a campaign, which is named by this folder or by its study."""
    folders = [Path(name), Path("results", name), Path("results", name, IMPORTED_FOLDER)]
    if (study := CHECKOUT / "config" / "studies" / f"{name}.yaml").is_file():
        folders += [Path(folder) for folder in [load_yaml(study).get("imported")] if folder]
    return next((folder for folder in folders if (CHECKOUT / folder / "runs.csv").is_file()), folders[0])


def campaign_name(folder: str | Path) -> str:
    """Return the name of a campaign's folder: its last part, or NAME of `results/NAME/imported`."""
    path = Path(folder).resolve()
    return path.parent.name if path.name == IMPORTED_FOLDER else path.name


def load_campaigns(names: Sequence[str], study: str, file: Path) -> Imported:
    """Read the cells of the campaigns that the study `file` combines, each a level of the factor CAMPAIGN.

    Tables of all runs are made when they are needed (`records.combine`), below results/STUDY.

    Raises:
        InputError: If a campaign has no tables, is the study itself, or two of them have the same name.
    """
    folders: dict[str, Path] = {}
    for place, name in enumerate(names):
        folder = campaign_folder(name)
        fields: dict[str, Any] = {"file": file, "key": f"campaigns.{place}", "got": name}
        if not all((CHECKOUT / folder / table).is_file() for table in ("runs.csv", "epochs.csv")):
            expected = "a study with results, or a folder with runs.csv and epochs.csv"
            raise InputError("missing-file", f"{folder} has no tables", expected=expected, **fields)
        if (CHECKOUT / folder).resolve().is_relative_to((CHECKOUT / "results" / study).resolve()):
            hint = "name the campaigns that it combines"
            raise InputError("conflicting-keys", "is this study itself", hint=hint, **fields)
        if campaign_name(folder) in folders:
            raise InputError("duplicate", f"another one is called {campaign_name(folder)}, too", **fields)
        folders[campaign_name(folder)] = folder
    rows = [
        (level, CHECKOUT / folder / "runs.csv", line, row)
        for level, folder in folders.items()
        for line, row in _read_rows(CHECKOUT / folder / "runs.csv")
    ]
    unstated = {name: UNSTATED for *_, row in rows for name in row if is_custom(name)}
    counts = Counter(combined_name(row.get("cell", ""), level) for level, _, _, row in rows)
    cells: dict[str, Levels] = {}
    for level, table, line, row in rows:
        if (cell := combined_name(row.get("cell", ""), level)) not in cells:
            stated = {name: text for name, text in row.items() if text}
            cells[cell] = _levels({**unstated, **stated, CAMPAIGN: level}, table, line)
    return Imported(
        Path("results", study, "campaigns"),
        _describe_campaigns(folders),
        tuple(cells.values()),
        (min(counts.values()), max(counts.values())),
        len(rows),
        frozenset({CAMPAIGN} | {name for *_, row in rows for name, text in row.items() if text}),
        folders,
    )


def combined_name(name: str, campaign: str) -> str:
    """Return the name of a campaign's cell, or the id of its run, in a study that combines campaigns."""
    return f"{name}.campaign={campaign}"


def _describe_campaigns(folders: Mapping[str, Path]) -> ImportKeys:
    """Return an import.yaml, in memory, with the sources and licences that campaigns state."""
    sources, licences, files = [], [], []
    for level, folder in folders.items():
        source, licence = f"runs in {folder}", UNSTATED
        if (file := CHECKOUT / folder / IMPORT_FILE).is_file():
            stated = load(ImportKeys, file).stated
            source, licence = stated.source, stated.licence
        sources.append(f"{level} ({source})")
        licences.append(licence)
        digest = digest_file(CHECKOUT / folder / "runs.csv")
        files.append(ImportedFile(name=f"{folder}/runs.csv", sha256=digest, format="campaign"))
    stated = Statement(source=" and ".join(sources), licence=" and ".join(dict.fromkeys(licences)))
    return ImportKeys(stated=stated, files=tuple(files), ringside="")


def load_imported(folder: str, file: Path) -> Imported:
    """Read import.yaml and the cells of runs.csv of the folder that the study `file` names.

    Raises:
        InputError: If one of the two is missing or wrong. Columns that are not factors are checked where
            tables are made.
    """
    for name in (IMPORT_FILE, "runs.csv", "epochs.csv"):
        if not (CHECKOUT / folder / name).is_file():
            problem, hint = f"there is no {folder}/{name}", "./ringside import writes one"
            place: dict[str, Any] = {"file": file, "key": "imported", "got": folder}
            raise InputError("missing-file", problem, hint=hint, **place)
    description = load(ImportKeys, CHECKOUT / folder / IMPORT_FILE)
    rows = _read_rows(CHECKOUT / folder / "runs.csv")
    cells: dict[str, Levels] = {}
    for line, row in rows:
        cells.setdefault(row.get("cell", ""), _levels(row, CHECKOUT / folder / "runs.csv", line))
    counts = Counter(row.get("cell", "") for _, row in rows)
    filled = frozenset(name for _, row in rows for name, text in row.items() if text)
    n_runs = min(counts.values()), max(counts.values())
    return Imported(Path(folder), description, tuple(cells.values()), n_runs, len(rows), filled)


def _read_rows(file: Path) -> list[tuple[int, dict[str, str]]]:
    """Return line number and fields of each row of a table.

    Raises:
        InputError: If it cannot be read, or has none.
    """
    try:
        with open(require_regular(file), encoding="utf-8-sig", newline="") as table:
            reader = csv.reader(table)
            header = rename_columns(next(reader, []))
            rows = [(reader.line_num, dict(zip(header, fields, strict=False))) for fields in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError("broken-file", f"cannot be read as CSV: {error}", file=file) from None
    if not rows:
        raise InputError("missing-value", "has no runs", file=file)
    return rows


def _levels(row: Mapping[str, str], file: Path, line: int) -> Levels:
    """Return the levels of all factors in a row of runs.csv."""
    return {
        name: _level(name, factor_rules(name), row.get(name, ""), file, line) for name in factor_names(row)
    }


def _level(name: str, rules: Mapping[str, Any], text: str, file: Path, line: int) -> Any:
    """Return a level of a factor from its text; for an empty text, the default."""
    if not text:
        if "default" in rules:
            return rules["default"]
        place = f"{display_path(file)}, line {line}"
        expected = rules.get("description", "a level")
        raise InputError("missing-value", "is empty", file=place, key=name, expected=expected)
    return parse_level(rules, text)


def parse_level(rules: Mapping[str, Any], text: str) -> Any:
    """Return a level as a number if `rules` allow numbers for its factor and the text is one."""
    for kind, convert in (("integer", int), ("number", float)):
        if kind in as_list(rules.get("type")):
            try:
                return convert(text)
            except ValueError:  # a word, or a mistake that the check of levels reports
                return text
    return text
