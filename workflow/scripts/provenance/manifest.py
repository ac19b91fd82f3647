"""Write a study's manifest: the SHA-256 of every figure and table, and of everything that they depend on.

It is written after all figures and tables, whenever one of them changes. Each product has a record of the
files that it was made from (common.content_digests). If they differ from the current files, no manifest is
written.
"""

import csv
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common.content_digests import ProductRecord, digest_files, read_record
from common.errors import InputError
from common.files import display_path, read_json, write_json
from common.options import run_program
from common.schemas import check
from plan.campaign import Campaign, measured_campaign
from plan.collective_benchmarks import CollectiveBenchmarks
from plan.decisions import decision_file
from plan.timings import Timings
from provenance import sources
from report.checkout import checkout_state

OLD_FOLDER = "old"
REBUILD_HINT = "rerun snakemake figures"
REMOVE_HINT = "remove it and run snakemake figures"
# Libraries on which last digits and pixels depend.
LIBRARIES = ("matplotlib", "numpy", "pandas", "scipy", "snakemake", "statsmodels")


def build_manifest(
    campaign: Campaign, products: Mapping[str, Mapping[str, Any]], sources_digest: str
) -> dict[str, Any]:
    """Return the content of manifest.json.

    Args:
        campaign: The campaign.
        products: Name -> its `files`, and `made_of`, the path of their record.
        sources_digest: Digest of all sources at the time when Snakemake planned.

    Raises:
        InputError: If a product was not made from the current files, or a source has changed since.
    """
    certified = {
        name: certify_files(product["files"], Path(product["made_of"])) for name, product in products.items()
    }
    code = sorted(
        {
            file
            for product in certified.values()
            for file in product.inputs
            if file.endswith(sources.CODE_SUFFIXES)
        }
    )
    current_sources = sources.collect_sources(campaign, code)
    if sources.digest(current_sources) != sources_digest:
        raise InputError(
            "changed-since",
            "inputs of its figures changed while they were made",
            file=campaign.study.name,
            hint=REBUILD_HINT,
        )
    with open(campaign.runs_csv, encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    other_records = (
        [*CollectiveBenchmarks(campaign).existing_record_paths(), *Timings(campaign).existing_record_paths()]
        if campaign.published_folder is None
        else []
    )
    other_records += [str(decision_file(campaign.results, decision.block)) for decision in campaign.decisions]
    checkout = checkout_state()
    return {
        "study": campaign.study.name,
        "sites": sorted({row["site"] for row in rows if row.get("site")}),
        "records": records_location(campaign.published_folder) if campaign.published_folder else "records",
        "commit": checkout.commit,
        "changed": list(checkout.changed),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "sources": current_sources | sources.record_digests(campaign, other_records),
        "measured_with": sources.measured_with(rows),
        "products": {
            name: {
                "files": {file: certified[name].outputs[file] for file in product["files"]},
                "made_of": dict(certified[name].inputs),
            }
            for name, product in sorted(products.items())
        },
    }


def certify_files(files: Sequence[str], origin_file: Path) -> ProductRecord:
    """Return the record of `files` after checking that they and all of their inputs are unchanged.

    Raises:
        InputError: If a file has changed, or is not in the record.
    """
    origin = read_record(origin_file)
    if origin is None:
        raise InputError("unknown-origin", "its inputs are unknown", file=files[0], hint=REBUILD_HINT)
    if absent := [file for file in files if file not in origin.outputs]:
        raise InputError("unknown-origin", f"was not made with {files[0]}", file=absent[0], hint=REBUILD_HINT)
    for digests, problem in (
        (origin.outputs, "has changed since it was made"),
        (origin.inputs, f"has changed since {files[0]} was made from it"),
    ):
        current = digest_files(digests)
        if changed := [file for file in digests if digests[file] != current[file]]:
            raise InputError("changed-since", problem, file=changed[0], hint=REBUILD_HINT)
    return origin


def retire(
    results: Path, products: Mapping[str, Mapping[str, Any]], other_files: Sequence[str] = ()
) -> list[str]:
    """Move files that are no longer products into OLD_FOLDER next to them, and return their names.

    Only folders with products are searched, except results/<study> itself, which has other files, too.

    Args:
        results: results/<study>.
        products: Name -> its `files`.
        other_files: Further files that stay, such as those made on request.

    Returns:
        Folder and name without suffixes, such as figures/overview, each once.
    """
    current = {
        Path(file)
        for files in (*(product["files"] for product in products.values()), other_files)
        for file in files
    }
    moved = []
    for folder in sorted({file.parent for file in current} - {results}):
        for file in sorted(path for path in folder.iterdir() if path.is_file() and path not in current):
            (folder / OLD_FOLDER).mkdir(exist_ok=True)
            file.replace(folder / OLD_FOLDER / file.name)
            moved.append(str(folder.relative_to(results) / file.name.split(".")[0]))
    return list(dict.fromkeys(moved))


def read_manifest(file: Path, expected: str = "") -> dict[str, Any]:
    """Return the manifest in a file.

    Args:
        file: manifest.json of a study or an archive.
        expected: For errors: what the file should be. "" for a study's own manifest, which can be rebuilt.

    Raises:
        InputError: If the file is missing or is not a manifest, or a product lies outside results/<study>.
    """
    hint = "" if expected else REMOVE_HINT
    try:
        content = read_json(file)
    except FileNotFoundError:
        raise InputError("missing-file", "no such file", file=file, hint="make it: ./ringside run") from None
    except (OSError, ValueError) as error:
        raise InputError(
            "broken-file", f"cannot be read: {error}", file=file, expected=expected, hint=hint
        ) from None
    try:
        check(content, "manifest", file)
    except InputError as error:
        raise InputError("broken-file", str(error), expected=expected, hint=hint) from None
    if outside := [
        name for name in listed_files(content) if not name.startswith(f"results/{content['study']}/")
    ]:
        raise InputError(
            "foreign-product",
            f"{outside[0]} is not a product of {content['study']}",
            file=file,
            key="products",
            got=outside[0],
            expected=expected,
            hint=hint,
        )
    return dict(content)


def listed_files(content: Mapping[str, Any]) -> list[str]:
    """Return the files of products and records in a manifest."""
    return [
        *(name for product in content["products"].values() for name in product["files"]),
        *content["sources"]["records"],
    ]


def records_location(folder: Path) -> str:
    """Return the folder of published tables: its path in the checkout, or its name if it is outside."""
    path = display_path(folder)
    return Path(path).name if Path(path).is_absolute() or path.startswith("..") else path


def main(
    *,
    study: str,
    site: str,
    records: str,
    products: str,
    sources_digest: str,
    keep: Sequence[str] = (),
    out: Path,
) -> None:
    """Write the manifest of a study whose figures and tables exist.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        records: campaign, available, or the folder with published tables
        products: JSON: name -> files, and the record of their inputs
        sources_digest: SHA-256 of everything that the products depend on
        keep: other files that stay
        out: manifest.json
    """
    campaign = measured_campaign(study, site, records)
    content = build_manifest(campaign, json.loads(products), sources_digest)
    check(content, "manifest", out)
    write_json(out, content)
    if retired := retire(campaign.results, content["products"], keep):
        print(f"no longer declared by the study, moved to {OLD_FOLDER}/: {', '.join(retired)}")


if __name__ == "__main__":
    sys.exit(run_program(main))
