"""The manifest of a study: the SHA-256 of every figure and table, and of everything that stands behind it.

It is made anew whenever one of these changes, after all figures and tables. It certifies no product that was made of something
else than it names: each has kept what it was really made of (common.content_digests), and that is what is there now, or there is no
manifest.
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
from common.files import read_json, shown, write_json
from common.options import run_program
from common.schemas import check
from plan.campaign import Campaign, measured_campaign
from plan.decisions import place
from plan.sweeps import Sweeps
from plan.timings import Timings
from provenance import sources
from report.checkout import state

OLD = "old"
AGAIN = "run snakemake figures again"
ANEW = "remove it and run snakemake figures"
LIBRARIES = (
    "matplotlib",
    "numpy",
    "pandas",
    "scipy",
    "snakemake",
    "statsmodels",
)  # that decide about last digits and pixels


def manifest(campaign: Campaign, products: Mapping[str, Mapping[str, Any]], of: str) -> dict[str, Any]:
    """What manifest.json says. InputError where a product was made of something else than is there now.

    `products`: name -> its `files`, and the file in which it stands what they were `made_of`; paths from the checkout. `of`: the
    digest of all sources, as they were when it was decided what has to be made.
    """
    made = {name: certified(one["files"], Path(one["made_of"])) for name, one in products.items()}
    code = sorted({file for one in made.values() for file in one.inputs if file.endswith(sources.CODE)})
    behind = sources.sources(campaign, code)
    if sources.digest(behind) != of:
        raise InputError(
            "changed-since",
            "what its figures are made of has changed while they were made",
            file=campaign.study.name,
            hint=AGAIN,
        )
    with open(campaign.runs_csv, encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    others = [*Sweeps(campaign).available(), *Timings(campaign).available()] if campaign.published is None else []
    others += [str(place(campaign.results, decision.block)) for decision in campaign.decisions]
    checkout = state()
    return {
        "study": campaign.study.name,
        "sites": sorted({row["site"] for row in rows if row.get("site")}),
        "records": _place(campaign.published) if campaign.published else "records",
        "commit": checkout.commit,
        "changed": list(checkout.changed),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "sources": behind | sources.records(campaign, others),
        "measured_with": sources.measured_with(rows),
        "products": {
            name: {
                "files": {file: made[name].outputs[file] for file in one["files"]},
                "made_of": dict(made[name].inputs),
            }
            for name, one in sorted(products.items())
        },
    }


def certified(files: Sequence[str], said: Path) -> ProductRecord:
    """What `files` were made of, as it stands in the file `said`. InputError unless all of it, and they, are what is there now."""
    made = read_record(said)
    if made is None:
        raise InputError("unknown-origin", "it is not known what it was made of", file=files[0], hint=AGAIN)
    if absent := [file for file in files if file not in made.outputs]:
        raise InputError("unknown-origin", f"was not made with {files[0]}", file=absent[0], hint=AGAIN)
    for kept, problem in (
        (made.outputs, "has changed since it was made"),
        (made.inputs, f"has changed since {files[0]} was made of it"),
    ):
        now = digest_files(kept)
        if changed := [file for file in kept if kept[file] != now[file]]:
            raise InputError("changed-since", problem, file=changed[0], hint=AGAIN)
    return made


def retire(results: Path, products: Mapping[str, Mapping[str, Any]], kept: Sequence[str] = ()) -> list[str]:
    """Move the files of figures and tables that are no product any more, as of a figure that the study no longer declares, into the
    folder OLD beside those that are. `kept`: files that are made when somebody asks for them. What was moved, without the files' endings."""
    current = {Path(file) for files in (*(one["files"] for one in products.values()), kept) for file in files}
    moved = []
    for folder in sorted({file.parent for file in current} - {results}):  # in which other files are, too
        for file in sorted(path for path in folder.iterdir() if path.is_file() and path not in current):
            (folder / OLD).mkdir(exist_ok=True)
            file.replace(folder / OLD / file.name)
            moved.append(str(folder.relative_to(results) / file.name.split(".")[0]))
    return list(dict.fromkeys(moved))


def read(file: Path, expected: str = "") -> dict[str, Any]:
    """Return the manifest in a file.

    Args:
        file: manifest.json of a study, or of an archive.
        expected: What else could have been named, where a person has named the file.

    Raises:
        InputError: If it is none.
    """
    hint = "" if expected else ANEW
    try:
        said = read_json(file)
    except FileNotFoundError:
        raise InputError("missing-file", "no such file", file=shown(file), hint="make it: ./ringside run") from None
    except (OSError, ValueError) as error:
        raise InputError(
            "broken-file", f"cannot be read: {error}", file=shown(file), expected=expected, hint=hint
        ) from None
    try:
        check(said, "manifest", file)
    except InputError as error:
        raise InputError("broken-file", str(error), expected=expected, hint=hint) from None
    if outside := [name for name in _files(said) if not name.startswith(f"results/{said['study']}/")]:
        raise InputError(
            "foreign-product",
            f"{outside[0]} is no product of {said['study']}",
            file=shown(file),
            key="products",
            got=outside[0],
            expected=expected,
            hint=hint,
        )
    return dict(said)


def _files(said: Mapping[str, Any]) -> list[str]:
    return [*(name for one in said["products"].values() for name in one["files"]), *said["sources"]["records"]]


def _place(folder: Path) -> str:
    """Where published tables lie, as far as another machine has it, too: in the checkout, else by the folder's name."""
    said = shown(folder)
    return Path(said).name if Path(said).is_absolute() or said.startswith("..") else said


def main(
    *, study: str, site: str, records: str, products: str, made_of: str, keep: Sequence[str] = (), out: Path
) -> None:
    """Write the manifest of a study whose figures and tables exist.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        records: campaign, available, or the folder with published tables
        products: JSON: name -> files, and the file that says what they were made of
        made_of: SHA-256 of all that stands behind the products
        keep: files beside the products that stay
        out: manifest.json
    """
    campaign = measured_campaign(study, site, records)
    content = manifest(campaign, json.loads(products), made_of)
    check(content, "manifest", out)
    write_json(out, content)
    if moved := retire(campaign.results, content["products"], keep):
        print(f"not made by this study any more, and moved into the folder {OLD} beside the others: {', '.join(moved)}")


if __name__ == "__main__":
    sys.exit(run_program(main))
