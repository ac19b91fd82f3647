"""List what a campaign's figures depend on, file by file: study, site, locks, code, data, records.

Snakemake calls this while it parses, so it uses the standard library only, and reads no tables.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.files import CHECKOUT, digest_file, digest_text, display_path, source_files
from common.normal_form import digest_source
from datasets.identity import NON_PREPARING_MODULES, data_digest
from declared.datasets import DATASETS, OWN_DATASETS
from declared.environments import read
from declared.frameworks import load_framework
from declared.records import RECORD_TABLES
from plan.batch_sizes import batch_size_file
from plan.campaign import Campaign
from plan.identity import MODEL_CODE, rank_code, site_part
from plan.strategies import strategy_file

Group = dict[str, str]  # file -> SHA-256, or key -> value
WORKFLOW_LOCK = CHECKOUT / "requirements.txt"
CODE_SUFFIXES = (".py", ".yaml", ".jinja")  # of the files among inputs that are code


def source_paths(campaign: Campaign, code: Iterable[str]) -> dict[str, list[Path]]:
    """Return the files of each group that figures depend on, if they are made by the files `code`.

    For published tables only what this checkout adds: their own columns say how they were measured
    (`measured_with`).
    """
    names = campaign.study.name, campaign.site.name
    imported = campaign.study.imported
    imported_files = [CHECKOUT / file for file in imported.source_files] if imported else []
    searched_files = [file for file in (strategy_file(*names), batch_size_file(*names)) if file.is_file()]
    paths = {
        "study": [campaign.study.file, *searched_files, *imported_files],
        "locks": [WORKFLOW_LOCK],
        "code": [CHECKOUT / file for file in code],
    }
    if campaign.published_folder is None:
        paths["locks"] += [
            file for name in campaign.environments for file in environment_files(campaign, name)
        ]
        paths["code"] += training_code(campaign)
        paths["data"] = data_code()
    return paths


def collect_sources(campaign: Campaign, code: Iterable[str]) -> dict[str, Group]:
    """Return the current groups: digests of files, measured keys of the site, digests of data sets."""
    groups = {
        group: {display_path(file): digest_source(file) for file in paths}
        for group, paths in source_paths(campaign, code).items()
    }
    if campaign.published_folder is None:
        groups["site"] = {
            name: json.dumps(value, sort_keys=True) for name, value in site_part(campaign.site).items()
        }
        groups["data"] |= {name: data_digest(name) for name in campaign.datasets}
    return {group: dict(sorted(entries.items())) for group, entries in groups.items()}


def digest(groups: Mapping[str, Group]) -> str:
    """Return one SHA-256 of all groups."""
    return digest_text(json.dumps(groups, sort_keys=True))


def environment_files(campaign: Campaign, environment: str) -> list[Path]:
    """Return the files that determine an environment of the campaign."""
    description = read(environment, campaign.site.variant)
    realization = campaign.site.realization
    source_paths = [description.description, description.selftest]
    if description.deployment(realization) == "venv":
        source_paths += [description.lock, *([description.build_lock] if description.sources else [])]
    elif description.deployment(realization) == "apptainer" and not description.brought(realization):
        from environments.recipe import copied_files  # spython would slow every start

        source_paths += copied_files(description)
    return [file for file in source_paths if file.is_file()]


def training_code(campaign: Campaign) -> set[Path]:
    """Return the code of ranks, and of the models that they build."""
    source_paths: set[Path] = set()
    for framework in campaign.study.factors["framework"]:
        for path in [*rank_code(framework), load_framework(framework).file]:
            source_paths |= set(source_files(path) if path.is_dir() else [path])
    return source_paths | set(MODEL_CODE) | set(source_files(MODEL_CODE[0].parent / "families"))


def data_code() -> list[Path]:
    """Return the code that prepares data sets, and the tables that describe them."""
    code = [file for file in sorted(DATASETS.parent.glob("*.py")) if file.name not in NON_PREPARING_MODULES]
    return [*code, DATASETS, *([OWN_DATASETS] if OWN_DATASETS.is_file() else [])]


def record_digests(campaign: Campaign, other_records: Sequence[str]) -> dict[str, Group]:
    """Return the SHA-256 of the tables that figures are made from, and of their records and epochs.

    `other_records` are those of collective benchmarks, timings and decisions.
    """
    files = [campaign.table_file(name) for name in ("design", *RECORD_TABLES)]
    tables = {file.name: digest_file(file) for file in files if file.is_file()}
    digests: Group = {}
    for file in [*campaign.available(), *(record for record in other_records if Path(record).is_file())]:
        digests[file] = digest_file(Path(file))
        for epochs in sorted(Path(file).parent.glob("attempt-*/epochs.csv")):
            digests[str(epochs)] = digest_file(epochs)
    return {"tables": tables, "records": digests}


def measured_with(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """Return digests in rows of runs.csv, by what has them.

    Environments by framework; code by framework, model and data set; data by data set.
    """
    digests: dict[str, dict[str, set[str]]] = {"environment": {}, "code": {}, "data": {}}
    for row in rows:
        names = {
            "environment": row["framework"],
            "code": " ".join(str(row[name]) for name in ("framework", "model", "dataset")),
            "data": row["dataset"],
        }
        for kind, name in names.items():
            if digest := row.get(f"{kind}_digest"):
                digests[kind].setdefault(str(name), set()).add(str(digest))
    return {
        kind: {name: sorted(values) for name, values in sorted(by_name.items())}
        for kind, by_name in digests.items()
    }
