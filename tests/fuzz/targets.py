"""What reads files that others write, and valid files to begin with: `make fuzz` mutates these.

A reader may return, or raise InputError or one of the target's own errors. Anything else is a finding:
another exception, more than 5 s, or more memory than MAX_MEMORY_MB.
"""

import csv
import gzip
import io
import json
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from unittest.mock import patch

from PIL import Image

from common.errors import InputError
from common.files import CHECKOUT, load_yaml, read_json
from common.schemas import check, schema
from common.tables import read_table
from datasets.archives import Archive, read_tar, read_zip, zip_files
from datasets.formats import READERS, decode_jpeg
from datasets.lock import read_lock
from datasets.made_up import write_archives
from datasets.pack import pack_text
from datasets.pictures import crop_picture, read_picture
from datasets.verified import first_changed_file
from declared import commands, environments, frameworks, user_models
from declared.configuration import load_config, read_config
from declared.datasets import read_datasets
from declared.environments import read as read_environment
from declared.imported import Reading, Statement
from declared.site import host_names, load_site
from declared.study import load_study
from declared.topologies import load_topology
from environments.built import read_built
from environments.packages import entries, running_pythons
from environments.unbundle import unbundle
from environments.wheels import read_cached_wheel as read_wheel
from importers.campaign import Import, read_sources
from importers.collective_tests import read_collective_table, read_nccl_tests, read_osu
from importers.statement import ResolvedStatement
from plan.batch_sizes import read_batch_sizes
from plan.binding import read_binding
from plan.campaign import published_tables
from plan.design import plan_design
from plan.strategies import read_strategies
from provenance.manifest import read_manifest
from provenance.verify import describe_difference
from ranks.frameworks.lbann.output import LastWords, Output, UnreadableError, row
from records.aggregate import epoch_lines
from records.record_checks import load_record
from runs.epochs import read_epochs
from support.bundles import Bundle
from support.recorded import content as record_content
from traces import otf2_read
from training_logs.formats import read_log
from training_logs.log import LogError

CAMPAIGNS = CHECKOUT / "docs" / "campaigns"
UNPACKED_BYTES = 1 << 20
ROWS = 4
MAX_COMBINATIONS = 2000  # of a study that is planned


@dataclass(frozen=True)
class Target:
    """One reader of files.

    `read` gets the file, which has `name`; `seeds` are contents that it accepts; `errors` are what it may
    raise beside InputError.
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
    content = READERS["idx"](
        {**shape, "classes": ["a", "b"]}, {name: _archive(path) for name, path in names.items()}
    )
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
    """Unpack into a cache of its own, whatever place the manifest names."""
    with tempfile.TemporaryDirectory() as folder, patch.dict("os.environ", RINGSIDE_CACHE=folder):
        return unbundle(file, {}, Path(folder))


def _bundle() -> list[bytes]:
    """Return a bundle that can be unpacked, and one that is none."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder) / "a.whl"
        wheel.write_bytes(b"wheel")
        bundle = Bundle(Path(folder), {"bundle/wheels/a.whl": wheel}, {"locks": {}})
        bundle.checkout.mkdir()
        (bundle.checkout / "requirements.txt").touch()
        return [bundle.pack().read_bytes(), *_tar()]


SAMPLES = {"train_samples": 5, "validation_samples": 2, "title": "t"}
ENTRIES = {
    "cifar-10-binary": {**SAMPLES, "shape": [32, 32, 3], "classes": ["a", "b"], "format": "cifar-10-binary"},
    "tiny-imagenet": {**SAMPLES, "shape": [8, 8, 3], "classes": 2, "format": "tiny-imagenet"},
}


def _samples(form: str, pack: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Return a reader of all samples of an archive of this format, which is packed after it was mutated."""

    def read(file: Path) -> object:
        file.write_bytes(pack(file.read_bytes()))
        content = READERS[form](ENTRIES[form], {file.name: _archive(file)})
        return [list(content.train), list(content.validation)]

    return read


def _samples_seed(form: str, unpack: Callable[[bytes], bytes]) -> Callable[[], list[bytes]]:
    def make() -> list[bytes]:
        with tempfile.TemporaryDirectory() as folder:
            (archive,) = write_archives(ENTRIES[form], Path(folder)).values()
            return [unpack(archive.path.read_bytes())]

    return make


def _read_text8(file: Path) -> object:
    packed = file.with_suffix(".zip")
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(file, "text8")
    content = READERS["text8"]({"title": "t", "format": "text8", "shape": [2]}, {"t.zip": _archive(packed)})
    return [list(content.train), list(content.validation)]


def _pictures(*kinds: str) -> Callable[[], list[bytes]]:
    """Return a maker of pictures of 4 x 4 pixels of these kinds."""

    def make() -> list[bytes]:
        pictures = []
        for mode in ("L", "RGB", "1", "P"):
            for kind in kinds:
                if kind == "JPEG" and mode in ("1", "P"):
                    continue
                content = io.BytesIO()
                Image.new(mode, (4, 4)).save(content, kind)
                pictures.append(content.getvalue())
        return pictures

    return make


def _read_jpeg(file: Path) -> object:
    return decode_jpeg(_archive(file), "a.JPEG", file.read_bytes(), [4, 4, 3])


def _compare(seed: bytes) -> Callable[[Path], object]:
    """Return a comparison of a product with what it was."""

    def read(file: Path) -> object:
        before = file.with_name(f"before{file.suffix}")
        before.write_bytes(seed)
        return describe_difference(before, file)

    return read


def _in_folder(read: Callable[[Path], object], place: str) -> Callable[[Path], object]:
    """Return a reader of the file at `place`, which is below a folder that `read` gets."""

    def move(file: Path) -> object:
        target = file.parent / "below" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        return read(file.parent / "below")

    return move


def _read_published(folder: Path) -> object:
    (folder / "epochs.csv").touch()
    return published_tables(str(folder), load_study("quickstart"))


def _read_framework(folder: Path) -> object:
    frameworks.load_framework.cache_clear()
    with patch.object(frameworks, "FRAMEWORKS", folder):
        return frameworks.load_framework("fuzzed")


def _read_command(folder: Path) -> object:
    for cached in (commands.command_names, commands.load_command, environments.command_environments):
        cached.cache_clear()
    with patch.object(commands, "COMMANDS", folder), patch.object(environments, "COMMANDS", folder):
        command = commands.load_command("fuzzed")
        command.check_placeholders(["tp"])
        return environments.command_environments()


def _read_user_model(folder: Path) -> object:
    user_models.load_user_model.cache_clear()
    with patch.object(user_models, "USER_MODELS", folder):
        return user_models.load_user_model("fuzzed")


def _read_requirements(file: Path) -> object:
    text = file.read_text(encoding="utf-8", errors="replace")
    return [entries(text, target) for target in running_pythons(text)]


SCORE_P = CHECKOUT / "tests" / "unit" / "traces" / "score_p"


def _score_p() -> list[Path]:
    """Return the files of an archive that Score-P wrote: its anchor first."""
    return [
        SCORE_P / name
        for name in ("traces.otf2", "traces.def", "traces/0.def", "traces/0.evt", "traces/4294967296.evt")
    ]


def _read_otf2(file: Path) -> object:
    """Read an archive of which one file is what was mutated; its first byte says which."""
    content = file.read_bytes()
    folder = file.parent / "archive"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(SCORE_P, folder)
    if content:
        files = _score_p()
        (folder / files[content[0] % len(files)].relative_to(SCORE_P)).write_bytes(content[1:])
    with patch.object(otf2_read, "STALL_S", 1.0):
        return otf2_read.read(folder / "traces.otf2")


def _otf2() -> list[bytes]:
    return [bytes([number]) + file.read_bytes() for number, file in enumerate(_score_p())]


MANIFEST = {
    "study": "x", "sites": ["local"], "records": "records", "commit": None, "changed": [], "python": "3.11",
    "libraries": {},
    "sources": {"study": {"a": "0" * 64}, "locks": {}, "code": {}, "tables": {}, "records": {}},
    "measured_with": {"environment": {}, "code": {}, "data": {}},
    "products": {"figures/a": {"files": {"results/x/figures/a.pdf": "0" * 64}, "made_of": ["b"]}},
}  # fmt: skip
EPOCHS = (
    b"epoch,warm_up,epoch_time_s,closed_time_s,imbalance_s,validation_time_s,learning_rate,steps,n_allreduces,"
    b"samples_trained,train_loss,train_accuracy,validation_loss,validation_accuracy,throttled_s,sent_bytes,"
    b"energy_device_j,energy_package_j,energy_node_j,opened_at\n"
    b"1,true,1.5,1.6,0.1,0.2,0.05,24,24,1536,0.9,0.7,0.8,0.75,0.0,123,,5.5,,1.5\n"
    b"2,false,1.4,1.5,0.1,0.2,0.05,24,24,1536,0.5,0.8,0.4,0.85,0.0,123,,5.5,,3.5\n"
)


def _read_log_of_lbann(file: Path) -> object:
    output, words = Output(), LastWords()
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        words.read_line(line)
        output.read_line(line)
    return [row(epoch, 1536) for number, epoch in enumerate(output.epochs) if output.has_epoch(number)]


def _header_of(table: str) -> Callable[[], list[bytes]]:
    """Return a maker of the first line of a table."""
    return lambda: [(",".join(schema(table)["properties"]) + "\n").encode()]


def _read_study(file: Path) -> object:
    study = load_study(file.stem, file.parent)
    if len(list(islice(study.combinations(), MAX_COMBINATIONS))) < MAX_COMBINATIONS:
        plan_design(study, load_site("local"))
    return study


LOGS = "tests/unit/training_logs/logs/"


def _log(format_name: str, pattern: str) -> Target:
    """Return the reader of a format of logs of trainings."""
    return Target("log.txt", lambda file: read_log(file, format_name), _files(LOGS + pattern), (LogError,))


def _read_imported(file: Path) -> object:
    """Read a file as ./ringside import does, up to its rows and the findings of its checks."""
    statement = Statement(
        source="s", licence="l", nodes=1, devices_per_node=8, levels={"framework": "f", "model": "m"}
    )
    reading = Reading(columns={"dataset": ""})
    result = Import("fuzzed", ResolvedStatement(statement, reading, frozenset()))
    read_sources(result, [str(file)])
    return result.rows


TARGETS = {
    "study": Target("fuzzed.yaml", _read_study, _files("config/studies/*small.yaml")),
    "site": Target("fuzzed.yaml", lambda file: load_site(file.stem, file.parent), _files("config/sites/*.yaml")),
    "yaml": Target("fuzzed.yaml", load_yaml, lambda: [b"a: [1, 2.5, yes, &x {b: 'c'}, *x]\n"]),
    "json": Target("fuzzed.json", read_json, lambda: [b'{"a": [1, -2.5e3, null, "\\u00e9"]}'], (ValueError, OSError)),
    "record": Target("record.json", load_record, lambda: [json.dumps(record_content()).encode()]),
    "manifest": Target("manifest.json", read_manifest, lambda: [json.dumps(MANIFEST).encode()]),
    "runs": Target("runs.csv", lambda file: read_table(file, "runs"), _first_rows("runs")),
    "epochs": Target("epochs.csv", lambda file: read_table(file, "epochs"), _first_rows("epochs")),
    "network": Target("network.csv", lambda file: read_table(file, "network"), _first_rows("network")),
    "attempt": Target("epochs.csv", read_epochs, _first_rows("epochs"), (ValueError, KeyError)),
    "epoch-lines": Target("epochs.csv", _in_folder(lambda folder: epoch_lines(folder, record_content(), 2, 1), "attempt-1/epochs.csv"), lambda: [EPOCHS]),
    "lbann": Target("log.txt", _read_log_of_lbann, _files("tests/unit/ranks/lbann_output/validation.log"), (UnreadableError,)),
    "decision": Target(
        "block-3.json",
        lambda file: check(read_json(file), "decision", file),
        lambda: [b'{"block": 3, "rule": {}, "cells": {}}'],
        (ValueError,),
    ),
    "batch_sizes": Target("found.json", read_batch_sizes, lambda: [b'{"searches": {}}']),
    "strategies": Target("found.json", read_strategies, lambda: [b'{"strategies": {}}']),
    "bundle": Target("a.tar", _unbundle, _bundle),
    "cifar": Target("a.tar.gz", _samples("cifar-10-binary", lambda tar: gzip.compress(tar, 0)), _samples_seed("cifar-10-binary", gzip.decompress)),
    "tiny-imagenet": Target("a.zip", _samples("tiny-imagenet", bytes), _samples_seed("tiny-imagenet", bytes)),
    "text8": Target("text8", _read_text8, lambda: [b"the quick brown fox " * 8]),
    "jpeg": Target("a.jpeg", _read_jpeg, _pictures("JPEG")),
    "picture": Target("a.png", lambda file: crop_picture(read_picture(file, file.name), (4, 4, 3)), _pictures("PNG", "BMP", "GIF", "JPEG", "TIFF")),
    "text": Target("a.txt", lambda file: pack_text(file, file.with_name("a.zip"), 2, 0.5), lambda: [(
        "größe a b\r\n"
        " a <unk> \n"
    ).encode() * 4]),
    "config": Target("config.yaml", lambda file: load_config(read_config(file)), _files("config/config.yaml")),
    "datasets": Target("table.yaml", lambda file: read_datasets(file, file.with_name("none")), _files("workflow/scripts/datasets/table.yaml")),
    "lock": Target("table.lock.yaml", read_lock, lambda: [b"digits:\n  a.gz: " + b"0" * 64 + b"\n"]),
    "topology": Target("fuzzed.yaml", lambda file: load_topology.__wrapped__(file.stem, file.parent), _files("config/topologies/*.yaml")),
    "environment": Target("environment.yaml", _in_folder(lambda folder: read_environment("fuzzed", containers=folder), "fuzzed/environment.yaml"), _files("containers/*/environment.yaml")),
    "framework": Target("framework.yaml", _in_folder(_read_framework, "fuzzed/framework.yaml"), _files("workflow/scripts/ranks/frameworks/*/framework.yaml")),
    "command": Target("fuzzed.yaml", _in_folder(_read_command, "fuzzed.yaml"), _files("config/commands/*.yaml")),
    "own-model": Target("fuzzed.yaml", _in_folder(_read_user_model, "fuzzed.yaml"), _files("config/models/*.yaml")),
    "requirements": Target("requirements.txt", _read_requirements, lambda: [b"numpy==1.0 ; python_full_version < '3.12.1' \\\n    --hash=sha256:" + b"0" * 64 + b"\n"], (ValueError,)),
    "binding": Target("campaign.json", _in_folder(read_binding, "campaign.json"), lambda: [b'{"site": "local", "machine": "a", "cores": 2, "python_abi": "cp311", "installed": {}}']),
    "made": Target("environment.json", _in_folder(lambda folder: read_built(folder / "environments/a/0/environment.json"), "environments/a/0/environment.json"), lambda: [b'{"deployment": "venv", "python": {"executable": "/bin/sh"}, "image": null, "prefixes": ["/"]}']),
    "wheel": Target("wheel.json", _in_folder(lambda folder: read_wheel(folder / "wheels/0"), "wheels/0/wheel.json"), lambda: [b'{"file": "wheel.json", "sha256": "0"}']),
    "verified": Target("verified.json", lambda file: first_changed_file(file.parent, [file]), lambda: [b'{"verified.json": {"written": [1, 2], "sha256": "0"}}']),
    "published": Target("runs.csv", _in_folder(_read_published, "runs.csv"), _first_rows("runs")),
    "product": Target("product.csv", _compare(b"a,b\n1,2\nx,nan\n"), lambda: [b"a,b\n1,3\ny,inf\n"]),
    "figure": Target("figure.png", _compare(_pictures("PNG")()[0]), _pictures("PNG")),
    "otf2": Target("otf2", _read_otf2, _otf2),
    "log-megatron": _log("megatron", "megatron.log"),
    "log-torchtitan": _log("torchtitan", "torchtitan.log"),
    "log-mllog": _log("mllog", "mllog*.txt"),
    "log-trainer": _log("trainer", "trainer_state.json"),
    "log-lightning": _log("lightning", "lightning.csv"),
    "log-steps": _log("steps", "steps.*"),
    "import": Target("any.txt", _read_imported, _files("tests/unit/importers/files/*.csv")),
    "nccl-tests": Target("all_reduce.txt", read_nccl_tests, _files("tests/unit/importers/files/all_reduce.txt")),
    "collectives": Target("nccl.csv", lambda file: read_collective_table(file, {}), lambda: [b"collective,nodes,devices,bytes,seconds\nall_reduce,1,8,1024,5e-5\n"]),
    "osu": Target("osu.txt", read_osu, _files("tests/unit/importers/files/osu_*.txt")),
    "costs": Target("costs.csv", lambda file: read_table(file, "costs"), _header_of("costs")),
    "messages": Target("messages.csv", lambda file: read_table(file, "messages"), _header_of("messages")),
    "replay": Target("replay_steps.csv", lambda file: read_table(file, "replay_steps"), _header_of("replay_steps")),
    "tar": Target("a.tar", _read_tar, _tar), "zip": Target("a.zip", _read_zip, _zip),
    "idx": Target("a.gz", _read_idx, lambda: [bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, *range(8)])]),
    "wikitext": Target("a.txt", _read_wikitext, lambda: ["größe a b\r\n a <unk> \n".encode() * 4]),
    "hosts": Target("hosts", lambda file: host_names(file.read_text(errors="replace")), lambda: [b"node[01-03,7],login"], (ValueError,)),
}  # fmt: skip
