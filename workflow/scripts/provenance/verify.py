"""Compare the figures, tables and records of a study with a manifest."""

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
from provenance.manifest import read_manifest

DESIGN = "design.csv"  # is in the folder of records, not in the archive's
EXPECTED_MANIFEST = "the manifest.json of a study or an archive"
IDENTICAL, MISSING, DIFFERS = "identical", "not there", "differs"


@dataclass(frozen=True)
class Verdict:
    """The result of comparing one file with a manifest.

    Attributes:
        file: Path of the file.
        verdict: IDENTICAL, MISSING or DIFFERS.
        detail: A Note on how it differs, if the original file is available.
    """

    file: str
    verdict: str
    detail: str = ""


def compare_all(against: Path, results: Path) -> list[Verdict]:
    """Return a verdict for every product, table of runs and record in a manifest.

    In an archive, the products next to the manifest are compared with it, too.
    """
    content, old_folder = read_manifest(against), against.parent
    products = {
        name.removeprefix(f"results/{content['study']}/"): sha256
        for product in content["products"].values()
        for name, sha256 in product["files"].items()
    }
    tables = content["sources"]["tables"]
    folder = results if content["records"] == "records" else Path(content["records"])
    verdicts = [compare_file(results / name, sha256, old_folder) for name, sha256 in sorted(products.items())]
    verdicts += [compare_file(folder / name, sha256, old_folder) for name, sha256 in sorted(tables.items())]
    verdicts += [
        compare_file(Path(name), sha256) for name, sha256 in sorted(content["sources"]["records"].items())
    ]
    if old_folder.resolve() == results.resolve():
        return verdicts
    copies = {f"records/{name}": sha256 for name, sha256 in tables.items() if name != DESIGN} | products
    existing = [name for name in copies if (old_folder / name.partition("/")[0]).exists()]
    return verdicts + [compare_file(old_folder / name, copies[name]) for name in sorted(existing)]


def compare_file(file: Path, sha256: str, old_folder: Path | None = None) -> Verdict:
    """Return the verdict on a file.

    If it differs, and `old_folder` has a file with this SHA-256, the verdict says how they differ.
    """
    if not file.is_file():
        return Verdict(str(file), MISSING)
    if digest_file(file) == sha256:
        return Verdict(str(file), IDENTICAL)
    places = (
        [old_folder / file.parent.name / file.name, old_folder / "records" / file.name] if old_folder else []
    )
    old = next((place for place in places if place.is_file() and digest_file(place) == sha256), None)
    return Verdict(str(file), DIFFERS, (describe_difference(old, file) if old else None) or "")


def describe_difference(old: Path, new: Path) -> Note | None:
    """Return how much two CSV or PNG files differ; None for other files and for unreadable ones."""
    from PIL import Image

    try:
        match new.suffix:
            case ".csv":
                return compare_numbers(old, new)
            case ".png":
                return compare_pixels(old, new)
    except (OSError, ValueError, SyntaxError, csv.Error, Image.DecompressionBombError):
        pass  # The SHA-256 already shows that an unreadable file differs.
    return None


def compare_numbers(old: Path, new: Path) -> Note:
    """Return how two CSV files differ: in shape, in text, or in numbers and by how much."""
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


def compare_pixels(old: Path, new: Path) -> Note:
    """Return how two pictures differ: in size, or in which share of the pixels."""
    from PIL import Image, ImageChops

    with Image.open(old) as a, Image.open(new) as b:
        if a.size != b.size:
            text = f"{a.size[0]} x {a.size[1]} pixels became {b.size[0]} x {b.size[1]}"
            return Note("other-size", text, before=a.size, after=b.size)
        difference = ImageChops.difference(a.convert("L"), b.convert("L"))
        share = 1 - difference.histogram()[0] / (difference.size[0] * difference.size[1])
    return Note("other-pixels", f"{100 * share:.2g} % of the pixels", share=share)


def verify(study: str = "", against: Path | None = None, as_json: bool = False) -> bool:
    """Compare a study's figures, tables and records with a manifest, and return whether all are identical.

    The files that differ are printed.

    Args:
        study: Name of the study; default: the one in config/config.yaml.
        against: The manifest; default: the one in results/<study>.
        as_json: Whether to print all verdicts as JSON instead.

    Raises:
        InputError: If the manifest is invalid, empty, or of another study.
    """
    study = study or str(read_config(Path("config/config.yaml"))["study"])
    check_name("study", study)
    results = Path("results") / study
    manifest = against or results / "manifest.json"
    content = read_manifest(manifest, EXPECTED_MANIFEST if against else "")
    if content["study"] != study:
        raise InputError(
            "other-study",
            f"is of study {content['study']}, not {study}",
            file=manifest,
            got=content["study"],
            hint=f"compare it with that study: ./ringside verify {content['study']} --against {manifest}",
        )
    verdicts = compare_all(manifest, results)
    if not verdicts:
        raise InputError("empty-manifest", "names no file, so there is nothing to compare", file=manifest)
    counts = Counter(verdict.verdict for verdict in verdicts)
    if as_json:
        print(
            json.dumps(
                {"manifest": str(manifest), "files": [asdict(verdict) for verdict in verdicts]}, indent=2
            )
        )
        return not set(counts) - {IDENTICAL}
    for verdict in verdicts:
        if verdict.verdict != IDENTICAL:
            print(f"{verdict.file}: {verdict.verdict}{f': {verdict.detail}' if verdict.detail else ''}")
    print(
        f"{len(verdicts)} files of {manifest}: "
        f"{', '.join(f'{count} {verdict}' for verdict, count in counts.items())}"
    )
    return not set(counts) - {IDENTICAL}
