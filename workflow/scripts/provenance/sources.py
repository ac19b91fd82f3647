"""List the sources of a campaign's figures, file by file: study, site, locks, code, data, records.

Snakemake calls this while it parses, so it does not import pandas and reads no tables.
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
from declared.frameworks import RANKS, load_framework
from declared.records import RECORD_TABLES
from plan.batch_sizes import batch_size_file
from plan.campaign import Campaign
from plan.identity import rank_code
from plan.site_resources import common_site_fields
from plan.strategies import strategy_file

Group = dict[str, str]  # file -> SHA-256, or key -> value
WORKFLOW_LOCK = CHECKOUT / "requirements.txt"
CODE_SUFFIXES = (".py", ".yaml", ".jinja")  # of inputs that are code


def source_paths(campaign: Campaign, code: Iterable[str]) -> dict[str, list[Path]]:
    """Return the source files of figures, by group.

    Published tables have columns with the digests of what measured them (`measured_with`), so for them only
    the study, this workflow's lock and its code count.

    Args:
        campaign: The campaign.
        code: The files of the programs that make the figures.
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
    """Return the current digests of files and data sets, and the site's keys that affect runs, by group."""
    groups = {
        group: {display_path(file): digest_source(file) for file in paths}
        for group, paths in source_paths(campaign, code).items()
    }
    if campaign.published_folder is None:
        groups["site"] = {
            name: json.dumps(value, sort_keys=True)
            for name, value in common_site_fields(campaign.site).items()
        }
        groups["data"] |= {name: data_digest(name) for name in campaign.datasets}
    return {group: dict(sorted(entries.items())) for group, entries in groups.items()}


def digest(groups: Mapping[str, Group]) -> str:
    """Return one SHA-256 over all groups."""
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
    """Return the files of the code that ranks execute, including models."""
    source_paths = set(source_files(RANKS.parent / "models" / "families"))
    for framework in campaign.study.factors["framework"]:
        for path in [*rank_code(framework), load_framework(framework).file]:
            source_paths |= set(source_files(path) if path.is_dir() else [path])
    return source_paths


def data_code() -> list[Path]:
    """Return the files that prepare data sets, and the tables of data sets."""
    code = [file for file in sorted(DATASETS.parent.glob("*.py")) if file.name not in NON_PREPARING_MODULES]
    return [*code, DATASETS, *([OWN_DATASETS] if OWN_DATASETS.is_file() else [])]


def record_digests(campaign: Campaign, other_records: Sequence[str]) -> dict[str, Group]:
    """Return the SHA-256 of the tables behind figures (`tables`), and of records and epochs (`records`).

    Args:
        campaign: The campaign.
        other_records: Records of collective benchmarks, timings and decisions; missing ones are skipped.
    """
    files = [campaign.table_file(name) for name in ("design", *RECORD_TABLES)]
    tables = {file.name: digest_file(file) for file in files if file.is_file()}
    digests: Group = {}
    for file in [
        *campaign.existing_record_paths(),
        *(record for record in other_records if Path(record).is_file()),
    ]:
        digests[file] = digest_file(Path(file))
        for epochs in sorted(Path(file).parent.glob("attempt-*/epochs.csv")):
            digests[str(epochs)] = digest_file(epochs)
    return {"tables": tables, "records": digests}


def measured_with(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """Return the digests in rows of runs.csv.

    Those of environments are by framework, of code by framework, model and data set, of data by data set.
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
