"""A user's own data sets, fetched from a site's mirror and prepared once for two checkouts."""

import hashlib
import json

import pytest
import yaml

from datasets.made_up import write_archives
from declared.datasets import load_dataset
from support.file_server import file_server, status

STUDY = """\
title: data sets of three formats
question: are they all there?
seed: 7
design: full
replicates: 1
factors:
  framework: [pytorch-single]
  model: small-cnn
  dataset: [our-cifar, our-fashion, our-tiny, digits, synthetic-8x8x1-10-640]
  nodes: 1
  batch_size: [32]
  sync_every: 1
  epochs: 2
"""
OWN_DATASETS = {
    "our-cifar": "cifar-10-small",
    "our-fashion": "fashion-mnist-small",
    "our-tiny": "tiny-imagenet-200-small",
}


@pytest.fixture
def published(tmp_path):
    """Archives of a user: data set -> its entry and the contents of its files."""
    datasets = {}
    for dataset, like in OWN_DATASETS.items():
        (tmp_path / dataset).mkdir()
        files = {
            path: a.path.read_bytes()
            for path, a in write_archives(load_dataset(like), tmp_path / dataset).items()
        }
        declared = [
            {
                "name": name,
                "bytes": len(content),
                "unpacked_bytes": 50_000_000,
                "md5": hashlib.md5(content, usedforsecurity=False).hexdigest(),
            }
            for name, content in files.items()
        ]
        entry = {key: value for key, value in load_dataset(like).items() if key != "made_up"}
        datasets[dataset] = {**entry, "files": declared}, files
    return datasets


def test_a_study_gets_its_data_from_the_sites_mirror(fresh, published, tmp_path, monkeypatch):
    monkeypatch.setenv("RINGSIDE_CACHE", str(tmp_path / "cache"))
    own = yaml.safe_dump({name: entry for name, (entry, _) in published.items()}, sort_keys=False)
    with file_server() as server:
        for name, (_, files) in published.items():
            for file, content in files.items():
                server.serve(f"/{name}/{file}", content, status(503))
        checkouts = [fresh(STUDY, name) for name in ("one", "two")]
        for checkout in checkouts:
            checkout.write("config/datasets.yaml", own)
            checkout.edit(
                "config/sites/local.yaml", "cache:", f"datasets: {{mirror: '{server.url()}'}}\ncache:"
            )
        first, second = (checkout.snakemake("datasets") for checkout in checkouts)
        assert first.status == 0, first.output
        assert first.jobs == {"dataset": 5} and "503 Service Unavailable; retrying in" in first.output
        assert second.status == 0 and second.jobs == {}, "two checkouts share what is in the cache"
        assert len(server.requests) == 2 * 6
    manifests = {
        path.parent.parent.name: json.loads(path.read_text())
        for path in tmp_path.glob("cache/datasets/*/*/manifest.json")
    }
    assert set(manifests) == {*OWN_DATASETS, "digits", "synthetic-8x8x1-10-640"}
    assert manifests["our-fashion"]["source"]["files"][0]["from"].startswith("http://127.0.0.1:")
    locked = yaml.safe_load(checkouts[0].path("config/datasets.lock.yaml").read_text())
    assert {name: set(files) for name, files in locked.items()} == {
        name: set(files) for name, (_, files) in published.items()
    }


def test_without_internet_one_line_says_what_to_do(fresh, published, tmp_path, monkeypatch):
    monkeypatch.setenv("RINGSIDE_CACHE", str(tmp_path / "cache"))
    entry, _ = published["our-cifar"]
    checkout = fresh(
        STUDY.replace("[our-cifar, our-fashion, our-tiny, digits, synthetic-8x8x1-10-640]", "our-cifar")
    )
    checkout.write("config/datasets.yaml", yaml.safe_dump({"our-cifar": entry}))
    done = checkout.snakemake("datasets")
    assert done.status != 0
    (line,) = [
        line for line in done.output.splitlines() if line.startswith("ringside: our-cifar: cifar-10-binary")
    ]
    assert all(
        word in line
        for word in ("snakemake datasets", "config/sites/local.yaml", "datasets: {folder: /PATH}")
    )
    checkout.edit("config/sites/local.yaml", "cache:", f"datasets: {{folder: {tmp_path}}}\ncache:")
    assert checkout.snakemake("datasets").status == 0, "the folder has it as FOLDER/DATA SET/FILE"
