"""Check a prepared data set before each run that trains on it."""

from pathlib import Path

from common.caches import check_trusted
from common.errors import InputError
from common.files import node_name, read_json
from datasets.identity import data_files
from datasets.lock import checksum_conflict, lock_path, mismatch_hint
from datasets.verified import first_changed_file
from declared.datasets import load_dataset, table_of


def check_data(folder: Path, dataset: str) -> None:
    """Check that a prepared data set is complete, unchanged, trusted, and made of the declared archives.

    Args:
        folder: The prepared data set, <cache>/datasets/<name>/<digest>.
        dataset: Name of the data set.

    Raises:
        InputError: If the folder or a file is missing, a file has changed, another user could have written
            a file, or it was made of other archives than the declared and locked ones.
    """
    if not folder.is_dir():
        problem = f"is not on {node_name()}"
        hint = "rerun the command if it was removed; otherwise make the site's cache accessible on all nodes"
        raise InputError("missing-folder", problem, file=folder, hint=hint)
    for part in (folder, *data_files(folder, dataset)):
        check_trusted(part, folder.parents[2])
    if (file := first_changed_file(folder, data_files(folder, dataset))) is not None:
        hint = f"remove {folder} and rerun the command"
        raise InputError(
            "changed-file", "is missing, or differs from the prepared file", file=file, hint=hint
        )
    if declared := {archive["name"]: archive for archive in load_dataset(dataset).get("files", [])}:
        table = table_of(dataset)
        for used in read_json(folder / "manifest.json")["source"]["files"]:
            name = used["name"]
            if conflict := checksum_conflict(dataset, declared[name], used["sha256"], lock_path(table)):
                reason, key = conflict
                advice = f"if it was the right file, {mismatch_hint(key, dataset, name, table)}"
                problem = f"was prepared from another {name}: {reason}"
                hint = f"remove {folder} and rerun the command; {advice}"
                raise InputError("checksum-mismatch", problem, file=folder, got=used["sha256"], hint=hint)
