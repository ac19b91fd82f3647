"""What stands behind a campaign's figures, file by file: study, site, locks, code, data, records.

Called while Snakemake parses, too: the standard library alone, and nothing that reads tables.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.files import CHECKOUT, digest_file, digest_text, shown, source_files
from common.normal_form import digest_source
from datasets.identity import NOT_PREPARING, data_digest
from declared.datasets import DATASETS, OWN_DATASETS
from declared.environments import Environment, read
from declared.frameworks import load_framework
from declared.records import RECORDS
from plan.campaign import Campaign
from plan.identity import MODEL_CODE, rank_code, site_part
from plan.strategies import file_of

Group = dict[str, str]  # name of a file or a key -> SHA-256 of its content, or its value
WORKFLOW_LOCK = CHECKOUT / "requirements.txt"
CODE = (".py", ".yaml", ".jinja")  # how what makes figures ends, of all that they are made of
TABLES = ("design.csv", *(f"{name}.csv" for name in RECORDS))


def files(campaign: Campaign, code: Iterable[str]) -> dict[str, list[Path]]:
    """The files of each group that stand behind figures, which are made by the files `code`.

    Of published tables only what this checkout adds to them: how they were measured is in their own columns (`measured_with`).
    """
    strategies = [file for file in [file_of(campaign.study.name, campaign.site.name)] if file.is_file()]
    found = {
        "study": [campaign.study.file, *strategies],
        "locks": [WORKFLOW_LOCK],
        "code": [CHECKOUT / file for file in code],
    }
    if campaign.published is None:
        found["locks"] += [file for name in campaign.environments for file in described_by(campaign, name)]
        found["code"] += _that_trains(campaign)
        found["data"] = _of_data()
    return found


def sources(campaign: Campaign, code: Iterable[str]) -> dict[str, Group]:
    """Return the groups as they are now: files by what they do, what of the site is measured, what a data set is."""
    found = {
        group: {shown(file): digest_source(file) for file in some} for group, some in files(campaign, code).items()
    }
    if campaign.published is None:
        found["site"] = {name: json.dumps(value, sort_keys=True) for name, value in site_part(campaign.site).items()}
        found["data"] |= {name: data_digest(name) for name in campaign.datasets}
    return {group: dict(sorted(entries.items())) for group, entries in found.items()}


def digest(groups: Mapping[str, Group]) -> str:
    """One SHA-256 of all groups."""
    return digest_text(json.dumps(groups, sort_keys=True))


def described_by(campaign: Campaign, environment: str) -> list[Path]:
    """The files that decide what an environment of the campaign is."""
    of = read(environment, campaign.site.variant)
    wanted = campaign.site.realization
    files = [of.description, of.selftest]
    if of.deployment(wanted) == "venv":
        files += [of.lock, *([of.build_lock] if of.sources else [])]
    elif of.deployment(wanted) == "apptainer" and not of.brought(wanted):
        files += _of_image(of)
    return [file for file in files if file.is_file()]


def _of_image(environment: Environment) -> list[Path]:
    from environments.recipe import copied_files

    return copied_files(environment)


def _that_trains(campaign: Campaign) -> set[Path]:
    """The code of ranks, and of the models that they build."""
    files: set[Path] = set()
    for framework in campaign.study.factors["framework"]:
        for path in [*rank_code(framework), load_framework(framework).file]:
            files |= set(source_files(path) if path.is_dir() else [path])
    return files | set(MODEL_CODE) | set(source_files(MODEL_CODE[0].parent / "families"))


def _of_data() -> list[Path]:
    """The code that prepares data sets, and the tables that describe them."""
    code = [file for file in sorted(DATASETS.parent.glob("*.py")) if file.name not in NOT_PREPARING]
    return [*code, DATASETS, *([OWN_DATASETS] if OWN_DATASETS.is_file() else [])]


def records(campaign: Campaign, sweeps: Sequence[str]) -> dict[str, Group]:
    """SHA-256 of the tables that figures are made from; of the records behind them, with those of their epochs. `sweeps`: and timings."""
    folder = campaign.runs_csv.parent
    tables = {name: digest_file(folder / name) for name in TABLES if (folder / name).is_file()}
    behind: Group = {}
    for file in [*campaign.available(), *(sweep for sweep in sweeps if Path(sweep).is_file())]:
        behind[file] = digest_file(Path(file))
        for epochs in sorted(Path(file).parent.glob("attempt-*/epochs.csv")):
            behind[str(epochs)] = digest_file(epochs)
    return {"tables": tables, "records": behind}


def measured_with(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """The digests in rows of runs.csv, by what has them: environment by framework, code by framework, model and data, data by set."""
    found: dict[str, dict[str, set[str]]] = {"environment": {}, "code": {}, "data": {}}
    for row in rows:
        names = {
            "environment": row["framework"],
            "code": " ".join(str(row[name]) for name in ("framework", "model", "dataset")),
            "data": row["dataset"],
        }
        for kind, name in names.items():
            if digest := row.get(f"{kind}_digest"):
                found[kind].setdefault(str(name), set()).add(str(digest))
    return {kind: {name: sorted(some) for name, some in sorted(own.items())} for kind, own in found.items()}
