"""Content of a bundle. Unpacking: tests/unit/environments/test_unbundle.py; end to end: make bundle-test."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from common.errors import InputError, exit_status
from common.files import digest_file, load_yaml
from declared import datasets
from declared.site import Archives, load_site
from declared.study import load_study
from environments.unbundle import unbundle
from plan.campaign import Campaign, plan_campaign
from provenance import bundle


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    """Yield the quickstart on a data set whose archive is a file, with an empty cache."""
    monkeypatch.setenv("RINGSIDE_CACHE", str(tmp_path / "cache"))
    archive = tmp_path / "published.tar.gz"
    archive.write_bytes(b"pictures" * 1000)
    entry = dict(load_yaml(datasets.DATASETS)["cifar-10"])
    entry["files"] = [
        {
            "name": "mine.tar.gz",
            "url": archive.as_uri(),
            "bytes": 8000,
            "unpacked_bytes": 9000,
            "sha256": digest_file(archive),
        }
    ]
    (tmp_path / "datasets.yaml").write_text(yaml.safe_dump({"mine": entry}))
    monkeypatch.setattr(datasets, "OWN_DATASETS", tmp_path / "datasets.yaml")
    for function in (datasets.datasets, datasets.table_of, datasets.load_dataset):
        function.cache_clear()
    yield plan_campaign(load_study("quickstart"), load_site("local"))
    for function in (datasets.datasets, datasets.table_of, datasets.load_dataset):
        function.cache_clear()


def test_archives_are_fetched_once_and_found_again(
    campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        content = bundle.Content()
        bundle.add_dataset(content, "mine", campaign)
        (tmp_path / "published.tar.gz").unlink(missing_ok=True)
    described = bundle.build_manifest(content, campaign)
    bundle.pack(described, content.files, tmp_path / "small.tar")
    monkeypatch.setenv("RINGSIDE_CACHE", str(tmp_path / "there"))
    unbundle(tmp_path / "small.tar", {"study": "quickstart", "site": "local"})
    elsewhere = replace(campaign, site=load_site("local"))
    again = bundle.Content()
    bundle.add_dataset(again, "mine", elsewhere)
    assert {name: path.read_bytes() for name, path in again.files.items()} == {
        name: path.read_bytes() for name, path in content.files.items()
    }
    assert set(again.files) == {"downloads/mine/mine.tar.gz", "downloads/mine/mine.tar.gz.origin.json"}
    assert json.loads((tmp_path / "there/downloads/mine/mine.tar.gz.origin.json").read_text())[
        "from"
    ].startswith("file:")


def test_data_of_the_site_is_not_bundled(
    campaign: Campaign, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bundle.Content()
    bundle.add_dataset(content, "digits", campaign)
    own = replace(campaign, site=replace(campaign.site, datasets=Archives(Path("/data"), None)))
    bundle.add_dataset(content, "mine", own)
    monkeypatch.setattr(bundle, "load_dataset", {"shards": {"folder": "/data/shards"}}.get)
    bundle.add_dataset(content, "shards", campaign)
    assert content.files == {}
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and "digits" in lines[0] and "/data/shards" in lines[2]
    assert "mine" in lines[1] and "config/sites/local.yaml: datasets.folder" in lines[1]


def test_built_wheel_comes_before_its_record(campaign: Campaign, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    names = ["wheels/0123456789ab/wheel.json", "wheels/0123456789ab/zebra.whl", "downloads/z/z"]
    described = bundle.build_manifest(bundle.Content(dict.fromkeys(names, tmp_path / "x")), campaign)
    assert list(described["files"])[-1] == "wheels/0123456789ab/wheel.json"
    assert described["glibc"] == "2.0" and described["cache"] == "~/.cache/ringside"


@pytest.mark.parametrize(
    ("tags", "oldest"),
    [
        ("cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64", (2, 17)),
        ("cp311-cp311-manylinux_2_28_x86_64", (2, 28)),
        ("cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64", (2, 27)),
        ("py2.py3-none-manylinux1_x86_64", (2, 5)),
        ("py3-none-any", (2, 0)),
        ("cp311-cp311-linux_x86_64", (2, 0)),
    ],
)
def test_oldest_glibc_is_read_from_wheel_names(tags: str, oldest: tuple[int, int]) -> None:
    assert bundle.glibc_of(f"one-1.0-{tags}.whl") == oldest


def test_environments_include_tools_of_the_study(campaign: Campaign) -> None:
    names = [environment.name for environment in bundle.list_environments(campaign)]
    assert "extrap" not in names and {"pytorch", "horovod-pytorch"} <= set(names)
    predicted = replace(campaign, study=replace(campaign.study, extra_p=True))
    assert [environment.name for environment in bundle.list_environments(predicted)] == [*names, "extrap"]
    searched = plan_campaign(load_study("found-strategies-virtual"), load_site("virtual-four"))
    assert [environment.name for environment in bundle.list_environments(searched)] == ["pytorch", "planner"]


def test_missing_parts_are_refused_before_fetching(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bundle, "python_abi", lambda: "cp399-linux_x86_64")
    with pytest.raises(InputError, match=r"\btorch\b.*\bcp399-linux_x86_64\b"):
        bundle.check_available(campaign)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError, match=r"\bapptainer\b"):
        bundle.check_available(replace(campaign, site=replace(campaign.site, deployment="apptainer")))
    assert exit_status(lambda: bundle.make_bundle("quickstart", "nowhere")) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1 and not campaign.site.cache.exists()
