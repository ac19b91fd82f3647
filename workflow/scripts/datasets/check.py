"""Whether a prepared data set is what runs may train on: asked before every run."""

from pathlib import Path

from common.caches import check_trusted
from common.errors import InputError
from common.files import node_name, read_json
from datasets.identity import data_files
from datasets.lock import lock_of, objection, remedy
from datasets.verified import changed
from declared.datasets import load_dataset, table_of


def check_data(folder: Path, dataset: str) -> None:
    """InputError when a prepared data set is not here, when a file of it is gone or is another than was prepared, or when an
    archive that it was made of is another than those that are declared and locked, or when another user could have made them: no run can
    help that. `folder`: <cache>/datasets/<name>/<digest>."""
    if not folder.is_dir():
        raise InputError(
            "missing-folder",
            f"is not on {node_name()}",
            file=folder,
            hint="start again if it was removed, else let all nodes see the site's cache",
        )
    for part in (folder, *data_files(folder, dataset)):
        check_trusted(part, folder.parents[2])
    if (file := changed(folder, data_files(folder, dataset))) is not None:
        hint = f"remove {folder} and start again"
        raise InputError("changed-file", "is gone, or is not what was prepared", file=file, hint=hint)
    if declared := {archive["name"]: archive for archive in load_dataset(dataset).get("files", [])}:
        table = table_of(dataset)
        for used in read_json(folder / "manifest.json")["source"]["files"]:  # which is as it was prepared
            name = used["name"]
            if said := objection(dataset, declared[name], used["sha256"], lock_of(table)):
                why, key = said
                advice = f"if it was the right file, {remedy(key, dataset, name, table)}"
                raise InputError(
                    "checksum-mismatch",
                    f"was prepared from another {name}: {why}",
                    file=folder,
                    got=used["sha256"],
                    hint=f"remove {folder} and start again; {advice}",
                )
