"""Whether what was made again is what was made before: the figures, tables and records of a study against a manifest."""

import argparse
import csv
import math
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError, exit_status
from common.files import digest_file
from common.notes import Note
from declared.configuration import check_name, read_config
from provenance.manifest import read

DESIGN = "design.csv"  # which lies with the records themselves
WHICH = "the manifest.json of a study or an archive"
IDENTICAL, GONE, DIFFERS = "identical", "not there", "differs"


@dataclass(frozen=True)
class Verdict:
    """Of one file: identical, not there, or differs, and by how much as far as the old file is at hand."""

    file: str
    verdict: str
    detail: str = ""  # how they differ: a Note, or nothing


def verdicts(against: Path, results: Path) -> list[Verdict]:
    """A verdict for every product, every table of runs and every record that the manifest `against` names. `results`: results/<study>.

    In an archive the manifest lies beside what was made before, which has to be as it says, too.
    """
    said, before = read(against), against.parent
    products = {
        name.removeprefix(f"results/{said['study']}/"): sha256
        for one in said["products"].values()
        for name, sha256 in one["files"].items()
    }
    tables = said["sources"]["tables"]
    folder = results if said["records"] == "records" else Path(said["records"])
    found = [_verdict(results / name, sha256, before) for name, sha256 in sorted(products.items())]
    found += [_verdict(folder / name, sha256, before) for name, sha256 in sorted(tables.items())]
    found += [_verdict(Path(name), sha256) for name, sha256 in sorted(said["sources"]["records"].items())]
    if before.resolve() == results.resolve():
        return found
    copies = {f"records/{name}": sha256 for name, sha256 in tables.items() if name != DESIGN} | products
    there = [name for name in copies if (before / name.partition("/")[0]).exists()]
    return found + [_verdict(before / name, copies[name]) for name in sorted(there)]


def _verdict(file: Path, sha256: str, before: Path | None = None) -> Verdict:
    if not file.is_file():
        return Verdict(str(file), GONE)
    if digest_file(file) == sha256:
        return Verdict(str(file), IDENTICAL)
    places = [before / file.parent.name / file.name, before / "records" / file.name] if before else []
    old = next((place for place in places if place.is_file() and digest_file(place) == sha256), None)
    return Verdict(str(file), DIFFERS, (how_far(old, file) if old else None) or "")


def how_far(old: Path, new: Path) -> Note | None:
    """Return by how much two files of the same kind differ; None where that cannot be said."""
    from PIL import Image

    try:
        match new.suffix:
            case ".csv":
                return _numbers(old, new)
            case ".png":
                return _pixels(old, new)
    except (OSError, ValueError, SyntaxError, csv.Error, Image.DecompressionBombError):
        pass  # a file that cannot be read has no numbers or pixels to compare; that it differs is known
    return None


def _numbers(old: Path, new: Path) -> Note:
    rows = [list(csv.reader(path.open(encoding="utf-8", newline=""))) for path in (old, new)]
    if [len(row) for row in rows[0]] != [len(row) for row in rows[1]]:
        return Note("other-shape", "rows or columns")
    largest = 0.0
    for a, b in zip(*([cell for row in table for cell in row] for table in rows), strict=True):
        if a != b:
            try:
                x, y = float(a), float(b)
            except ValueError:
                return Note("other-text", f"{a[:40]!r} became {b[:40]!r}", before=a, after=b)
            largest = max(largest, abs(x - y) / max(abs(x), abs(y)) if math.isfinite(x - y) else math.inf)
    return Note("other-numbers", f"numbers, by up to {largest:.1e} (relative)", relative=largest)


def _pixels(old: Path, new: Path) -> Note:
    from PIL import Image, ImageChops

    with Image.open(old) as a, Image.open(new) as b:
        if a.size != b.size:
            text = f"{a.size[0]} x {a.size[1]} pixels became {b.size[0]} x {b.size[1]}"
            return Note("other-size", text, before=a.size, after=b.size)
        apart = ImageChops.difference(a.convert("L"), b.convert("L"))
        share = 1 - apart.histogram()[0] / (apart.size[0] * apart.size[1])
    return Note("other-pixels", f"{100 * share:.2g} % of the pixels", share=share)


def main(argv: list[str] | None = None) -> None:
    """Compare a study's figures, tables and records with those that a manifest tells of; status 1 where one is not the same."""
    parser = argparse.ArgumentParser(prog="make verify", description=main.__doc__)
    parser.add_argument("--study", help="whose results: results/<study>; that of config/config.yaml by default")
    parser.add_argument("--against", type=Path, metavar="JSON", help="the manifest; that of the results by default")
    options = parser.parse_args(argv)
    study = options.study or str(read_config(Path("config/config.yaml"))["study"])
    check_name("study", study)
    results = Path("results") / study
    against = options.against or results / "manifest.json"
    said = read(against, WHICH if options.against else "")
    if said["study"] != study:
        raise InputError(
            "other-study",
            f"is of study {said['study']}, not {study}",
            file=against,
            got=said["study"],
            hint="name it with STUDY=",
        )
    found = verdicts(against, results)
    if not found:
        raise InputError("empty-manifest", "names no file, so there is nothing to compare", file=against)
    for one in found:
        if one.verdict != IDENTICAL:
            print(f"{one.file}: {one.verdict}{f': {one.detail}' if one.detail else ''}")
    counts = Counter(one.verdict for one in found)
    print(f"{len(found)} files of {against}: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}")
    if set(counts) - {IDENTICAL}:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(exit_status(main))
