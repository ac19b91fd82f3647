"""Whether what was made again is what was made before: the figures, tables and records of a study against a manifest."""

import csv
import json
import math
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from common.errors import InputError
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


def verify(study: str = "", against: Path | None = None, as_json: bool = False) -> bool:
    """Compare a study's figures, tables and records with those that a manifest lists, and return whether all are the same.

    Args:
        study: The study of results/<study>; default: that of config/config.yaml.
        against: The manifest; default: that of the results.
        as_json: Print every verdict as JSON, for programs, instead of what differs.
    """
    study = study or str(read_config(Path("config/config.yaml"))["study"])
    check_name("study", study)
    results = Path("results") / study
    manifest = against or results / "manifest.json"
    said = read(manifest, WHICH if against else "")
    if said["study"] != study:
        raise InputError(
            "other-study",
            f"is of study {said['study']}, not {study}",
            file=manifest,
            got=said["study"],
            hint=f"compare it with that study: ./ringside verify {said['study']} --against {manifest}",
        )
    found = verdicts(manifest, results)
    if not found:
        raise InputError("empty-manifest", "names no file, so there is nothing to compare", file=manifest)
    counts = Counter(one.verdict for one in found)
    if as_json:
        print(json.dumps({"manifest": str(manifest), "files": [asdict(one) for one in found]}, indent=2))
        return not set(counts) - {IDENTICAL}
    for one in found:
        if one.verdict != IDENTICAL:
            print(f"{one.file}: {one.verdict}{f': {one.detail}' if one.detail else ''}")
    print(f"{len(found)} files of {manifest}: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}")
    return not set(counts) - {IDENTICAL}
