"""Record by which command each product was made, and of which files, with the SHA-256 of each.

A product is current where its command, the content of everything that it was made of and its own content are
the same now, whatever the dates of files say: `cp -p`, `rsync -a`, an unpacked archive and a clock that was
set back all leave dates that mislead. `invocation.content_check` writes these records and compares them.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.files import digest_file, digest_text
from common.normal_form import digest_source

RUN_RECORD = "record.json"
ATTEMPT_TABLES = ("epochs.csv", "phases.csv", "clocks.csv")
FOLDER = "made_of"  # in results/<study>


@dataclass(frozen=True)
class ProductRecord:
    """Describe what a product is made of.

    Attributes:
        command: The rule's command, its white space normalized.
        params: The rule's parameters that do not follow from its files, as text.
        inputs: SHA-256 of data and code, by path.
        outputs: SHA-256 of the product's files, by path.
    """

    command: str
    params: Mapping[str, str]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def record_path(output: str) -> Path:
    """Return where the record of a product lies: results/<study>/made_of/<name>.json.

    Args:
        output: Its first file, results/<study>/<name>.
    """
    results, study, *rest = Path(output).parts
    return Path(results, study, FOLDER, *rest).with_name(f"{rest[-1]}.json")


def read_record(file: Path) -> ProductRecord | None:
    """Return the record in a file, None where there is none or it is broken, as of another version."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        return ProductRecord(
            record["command"], *(dict(record[name]) for name in ("params", "inputs", "outputs"))
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def digest_content(file: Path) -> str:
    """Return the SHA-256 of a file's content.

    Of a module its normal form counts, of a run's record also the tables beside it.
    """
    if file.name != RUN_RECORD:
        return digest_source(file)
    tables = (path for path in sorted(file.parent.glob("attempt-*/*.csv")) if path.name in ATTEMPT_TABLES)
    return digest_text(" ".join(map(digest_file, [file, *filter(Path.is_file, tables)])))


def digest_files(files: Iterable[str], digest: Callable[[Path], str] = digest_content) -> dict[str, str]:
    """Return the SHA-256 of each file by its path, "" where there is no such file."""
    return {file: digest(Path(file)) if Path(file).is_file() else "" for file in files}
