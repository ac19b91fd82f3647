"""Record the command that made each product, and the SHA-256 of its inputs and outputs.

A product is up to date if its command and the contents of its inputs and outputs are unchanged. File dates
do not matter: `cp -p`, `rsync -a`, unpacked archives and clocks that were set back leave misleading dates.
`invocation.content_check` writes these records and compares them.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.files import digest_file, digest_text
from common.normal_form import digest_source

RUN_RECORD = "record.json"
ATTEMPT_TABLES = ("epochs.csv", "phases.csv", "clocks.csv")
FOLDER = "made_of"  # folder of digests in results/<study>


@dataclass(frozen=True)
class ProductRecord:
    """What a product was made from.

    Attributes:
        command: The rule's command, with normalized white space.
        params: The rule's parameters that its files do not determine, as text.
        inputs: SHA-256 of data and code, by path.
        outputs: SHA-256 of the product's files, by path.
    """

    command: str
    params: Mapping[str, str]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def record_path(output: str) -> Path:
    """Return the path of a product's record, results/<study>/made_of/<name>.json.

    Args:
        output: The product's first file, results/<study>/<name>.
    """
    results, study, *rest = Path(output).parts
    return Path(results, study, FOLDER, *rest).with_name(f"{rest[-1]}.json")


def read_record(file: Path) -> ProductRecord | None:
    """Return the record in a file; None if it is missing, broken, or of another version."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        return ProductRecord(
            record["command"], *(dict(record[name]) for name in ("params", "inputs", "outputs"))
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def digest_content(file: Path) -> str:
    """Return the SHA-256 of a file's normal form; a run's record includes the tables of its attempts."""
    if file.name != RUN_RECORD:
        return digest_source(file)
    tables = (path for path in sorted(file.parent.glob("attempt-*/*.csv")) if path.name in ATTEMPT_TABLES)
    return digest_text(" ".join(map(digest_file, [file, *filter(Path.is_file, tables)])))


def digest_files(files: Iterable[str], digest: Callable[[Path], str] = digest_content) -> dict[str, str]:
    """Return the SHA-256 of each file by path, "" for a missing file."""
    return {file: digest(Path(file)) if Path(file).is_file() else "" for file in files}
