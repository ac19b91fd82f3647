"""What reads files that others write, and valid files to begin with: `make fuzz` mutates these.

A reader may return, or raise InputError or one of the target's own errors. Anything else is a finding: another exception, more than
5 s, or more memory than MAX_MEMORY_MB.
"""

import csv
import gzip
import io
import json
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError
from common.files import CHECKOUT, load_yaml, read_json
from common.schemas import check
from common.tables import read_table
from datasets.archives import Archive, read_tar, read_zip, zip_files
from datasets.formats import READERS
from declared.site import host_names, load_site
from declared.study import load_study
from environments.unbundle import unbundle
from plan.design import design
from plan.recorded import record_of
from plan.strategies import found as read_strategies
from provenance.manifest import read as read_manifest
from runs.epochs import read_epochs
from support.recorded import content as record_content

CAMPAIGNS = CHECKOUT / "docs" / "campaigns"
UNPACKED_BYTES = 1 << 20
ROWS = 4


@dataclass(frozen=True)
class Target:
    """One reader of files.

    `read` gets the file, which has `name`; `seeds` are contents that it accepts; `errors` are what it may raise beside InputError.
    """

    name: str
    read: Callable[[Path], object]
    seeds: Callable[[], Sequence[bytes]]
    errors: tuple[type[Exception], ...] = ()


def call(target: Target, content: bytes, folder: Path) -> None:
    """Let a target read a file with this content."""
    file = folder / target.name
    file.write_bytes(content)
    try:
        target.read(file)
    except (InputError, *target.errors) as error:
        assert str(error) and "\n" not in str(error), f"no single line: {error}"


def _files(pattern: str) -> Callable[[], list[bytes]]:
    return lambda: [file.read_bytes() for file in sorted(CHECKOUT.glob(pattern))]


def _first_rows(name: str) -> Callable[[], list[bytes]]:
    """Return a maker of the first rows of a table of each kept campaign."""

    def make() -> list[bytes]:
        tables = []
        for file in sorted(CAMPAIGNS.glob(f"*/{name}.csv"))[:3]:
            with open(file, newline="") as table:
                rows = [row for row, _ in zip(csv.reader(table), range(ROWS), strict=False)]
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(rows)
            tables.append(text.getvalue().encode())
        return tables

    return make


def _archive(file: Path) -> Archive:
    return Archive(file, UNPACKED_BYTES, "fuzz")


def _read_tar(file: Path) -> object:
    """Pack what was mutated: a fuzzer would hardly find a valid gzip stream by itself."""
    file.write_bytes(gzip.compress(file.read_bytes(), compresslevel=0))
    return read_tar(_archive(file))


def _read_zip(file: Path) -> object:
    archive = _archive(file)
    return list(read_zip(archive, zip_files(archive)))


def _read_idx(file: Path) -> object:
    file.write_bytes(gzip.compress(file.read_bytes(), compresslevel=0))
    shape = {"shape": [2, 2, 1], "train_samples": 2, "validation_samples": 2, "title": "t", "format": "idx"}
    labels = file.with_name("labels.gz")
    labels.write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 2, 0, 1])))
    names = {"train-images-idx3-ubyte.gz": file, "t10k-images-idx3-ubyte.gz": file}
    names |= {"train-labels-idx1-ubyte.gz": labels, "t10k-labels-idx1-ubyte.gz": labels}
    content = READERS["idx"]({**shape, "classes": ["a", "b"]}, {name: _archive(path) for name, path in names.items()})
    return [list(content.train), list(content.validation)]


def _read_wikitext(file: Path) -> object:
    packed = file.with_suffix(".zip")
    with zipfile.ZipFile(packed, "w") as archive:
        for name in ("wiki.train.tokens", "wiki.valid.tokens"):
            archive.write(file, name)
    entry = {"title": "t", "format": "wikitext", "shape": [2], "vocabulary": 1000}
    content = READERS["wikitext"](entry, {"t.zip": _archive(packed)})
    return [list(content.train), list(content.validation)]


def _tar() -> list[bytes]:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in ("a", "b/" + "c" * 120):
            info = tarfile.TarInfo(name)
            info.size = 3
            archive.addfile(info, io.BytesIO(b"123"))
    return [packed.getvalue()]


def _zip() -> list[bytes]:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b", b"123" * 50)
    return [packed.getvalue()]


def _unbundle(file: Path) -> object:
    with tempfile.TemporaryDirectory() as folder:
        return unbundle(file, {}, Path(folder))


def _read_study(file: Path) -> object:
    return design(load_study(file.stem, file.parent), load_site("local"))


TARGETS = {
    "study": Target("fuzzed.yaml", _read_study, _files("config/studies/*small.yaml")),
    "site": Target("fuzzed.yaml", lambda file: load_site(file.stem, file.parent), _files("config/sites/*.yaml")),
    "yaml": Target("fuzzed.yaml", load_yaml, lambda: [b"a: [1, 2.5, yes, &x {b: 'c'}, *x]\n"]),
    "json": Target("fuzzed.json", read_json, lambda: [b'{"a": [1, -2.5e3, null, "\\u00e9"]}'], (ValueError, OSError)),
    "record": Target("record.json", record_of, lambda: [json.dumps(record_content()).encode()]),
    "manifest": Target("manifest.json", read_manifest, lambda: [b'{"study": "a", "products": {}, "sources": {}}']),
    "runs": Target("runs.csv", lambda file: read_table(file, "runs"), _first_rows("runs")),
    "epochs": Target("epochs.csv", lambda file: read_table(file, "epochs"), _first_rows("epochs")),
    "network": Target("network.csv", lambda file: read_table(file, "network"), _first_rows("network")),
    "attempt": Target("epochs.csv", read_epochs, _first_rows("epochs"), (ValueError, KeyError)),
    "decision": Target(
        "block-3.json",
        lambda file: check(read_json(file), "decision", file),
        lambda: [b'{"block": 3, "rule": {}, "cells": {}}'],
        (ValueError,),
    ),
    "strategies": Target("found.json", read_strategies, lambda: [b'{"strategies": {}}']),
    "bundle": Target("a.tar", _unbundle, _tar),
    "tar": Target("a.tar", _read_tar, _tar),
    "zip": Target("a.zip", _read_zip, _zip),
    "idx": Target("a.gz", _read_idx, lambda: [bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, *range(8)])]),
    "wikitext": Target("a.txt", _read_wikitext, lambda: ["größe a b\r\n a <unk> \n".encode() * 4]),
    "hosts": Target("hosts", lambda file: host_names(file.read_text(errors="replace")), lambda: [b"node[01-03,7],login"], (ValueError,)),
}  # fmt: skip
