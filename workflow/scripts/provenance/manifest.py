"""The manifest of a study: the SHA-256 of every figure and table, and of everything that stands behind it.

It is made anew whenever one of these changes, after all figures and tables: what it says of sources is what the figures
beside it were made of, since Snakemake has made whatever stands on a changed one again.
"""

import argparse
import csv
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common.errors import InputError, exit_status
from common.files import digest_file, read_json, shown, write_json
from common.schemas import check
from plan.campaign import Campaign, add_campaign_arguments, measured_campaign
from plan.sweeps import Sweeps
from provenance import sources
from report.checkout import state

ANEW = "remove it and run snakemake figures"
LIBRARIES = (
    "matplotlib",
    "numpy",
    "pandas",
    "scipy",
    "snakemake",
    "statsmodels",
)  # that decide about last digits and pixels


def manifest(campaign: Campaign, products: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, Any]:
    """What manifest.json says. `products`: name -> its files, and the files that it is made of; paths from the checkout."""
    code = sorted({file for one in products.values() for file in one["made_of"] if file.endswith(sources.CODE)})
    with open(campaign.runs_csv, encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    sweeps = Sweeps(campaign).available() if campaign.published is None else []
    checkout = state()
    return {
        "study": campaign.study.name,
        "sites": sorted({row["site"] for row in rows if row.get("site")}),
        "records": _place(campaign.published) if campaign.published else "records",
        "commit": checkout.commit,
        "changed": list(checkout.changed),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "sources": sources.sources(campaign, code) | sources.records(campaign, sweeps),
        "measured_with": sources.measured_with(rows),
        "products": {
            name: {
                "files": {file: digest_file(Path(file)) for file in one["files"]},
                "made_of": sorted(one["made_of"]),
            }
            for name, one in sorted(products.items())
        },
    }


def read(file: Path) -> dict[str, Any]:
    """The manifest in a file. InputError in one line where it is none."""
    try:
        said = read_json(file)
    except FileNotFoundError:
        raise InputError(f"{shown(file)}: no such file; make it: snakemake figures") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{shown(file)}: cannot be read: {error}; {ANEW}") from None
    try:
        check(said, "manifest", file)
        if outside := [name for name in _files(said) if not name.startswith(f"results/{said['study']}/")]:
            raise InputError(f"{shown(file)}: products: {outside[0]} is no product of {said['study']}")
    except InputError as error:
        raise InputError(f"{error}; {ANEW}") from None
    return dict(said)


def _files(said: Mapping[str, Any]) -> list[str]:
    return [name for one in said["products"].values() for name in one["files"]]


def _place(folder: Path) -> str:
    """Where published tables lie, as far as another machine has it, too: in the checkout, else by the folder's name."""
    said = shown(folder)
    return Path(said).name if Path(said).is_absolute() or said.startswith("..") else said


def main(argv: list[str] | None = None) -> None:
    """Write the manifest of a study whose figures and tables are there."""
    parser = argparse.ArgumentParser(prog="provenance.manifest", description=main.__doc__)
    add_campaign_arguments(parser)
    parser.add_argument("--products", required=True, help="JSON: name -> files, made_of")
    parser.add_argument("--out", required=True, type=Path, metavar="JSON", help="manifest.json")
    options = parser.parse_args(argv)
    campaign = measured_campaign(options)
    said = manifest(campaign, json.loads(options.products))
    check(said, "manifest", options.out)
    write_json(options.out, said)


if __name__ == "__main__":
    sys.exit(exit_status(main))
