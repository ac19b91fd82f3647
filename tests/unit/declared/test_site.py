"""Shipped sites are valid; mistakes in a site are refused with one line that names file and key."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.errors import InputError
from common.files import CHECKOUT, load_yaml
from common.keys import json_schema
from declared.site import SiteKeys, host_names, load_site
from plan.campaign import load_campaign
from plan.site_resources import common_site_fields
from support.refusals import assert_refusal

SHIPPED = sorted(path.stem for path in (CHECKOUT / "config" / "sites").glob("*.yaml"))
LOCAL = {
    "description": "this machine", "launcher": "local", "placement": "emulated", "device": "cpu",
    "deployment": "venv",
    "cores": "auto", "nodes": 2, "ranks_per_node": 1, "interface": "lo", "cache": "/cache",
}  # fmt: skip
SLURM = {**LOCAL, "launcher": "slurm", "placement": "distinct-nodes", "cores": 8, "interface": "eth0"}
VIRTUAL = {**SLURM, "placement": "virtual"}
CUDA = {**SLURM, "device": "cuda", "devices_per_node": 2, "ranks_per_node": 2}


@pytest.fixture(autouse=True)
def no_cache_and_no_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGSIDE_CACHE", raising=False)
    monkeypatch.chdir(tmp_path)


def written(folder: Path, site: dict[str, object], **changes: object) -> Path:
    values = {key: value for key, value in {**site, **changes}.items() if value is not None}
    (folder / "here.yaml").write_text(yaml.safe_dump(values))
    return folder


def test_what_is_not_said_has_its_default(tmp_path: Path) -> None:
    site = load_site("here", written(tmp_path, SLURM))
    assert (site.fabric, site.devices_per_node, site.time_limit_s, site.setup) == ("ethernet", 0, 600, ())
    assert (site.scheduler.concurrent_runs, site.scheduler.build_on, site.scheduler.partition) == (
        1,
        "login",
        None,
    )
    assert site.cache == Path("/cache") and site.scratch is None and site.can_run("anything")
    assert (site.datasets.folder, site.datasets.mirror) == (None, None)


def test_where_archives_are_is_no_part_of_a_measurement(tmp_path: Path) -> None:
    plain = load_site("here", written(tmp_path, LOCAL))
    with_folder = load_site("here", written(tmp_path, LOCAL, datasets={"folder": "~/archives"}))
    assert with_folder.datasets.folder == Path.home() / "archives"
    assert common_site_fields(with_folder) == common_site_fields(plain)


def test_several_interfaces_are_one_list(tmp_path: Path) -> None:
    single, listed = (
        load_site("here", written(tmp_path, LOCAL, interface=interface))
        for interface in ("lo", ["ib0", "ib1"])
    )
    assert (single.interface, single.interfaces) == ("lo", ["lo"])
    assert (listed.interface, listed.interfaces) == ("ib0,ib1", ["ib0", "ib1"])
    assert common_site_fields(listed)["interface"] == "ib0,ib1"


def test_gpu_binding_is_part_of_a_measurement() -> None:
    plain = load_site("slurm-example")
    bound = replace(plain, scheduler=replace(plain.scheduler, gpu_bind="closest"))
    assert common_site_fields(bound) == {**common_site_fields(plain), "gpu_bind": "closest"}
    assert "gpu_bind" not in common_site_fields(plain), "keys of older records stay"


def test_what_is_done_beside_a_run_is_no_part_of_a_measurement(tmp_path: Path) -> None:
    plain = load_site("here", written(tmp_path, LOCAL))
    assert (plain.reference, plain.wait_for_quiet, plain.longest_run_s) == (True, 0, 600)
    unreferenced = load_site("here", written(tmp_path, LOCAL, reference=False))
    waiting = load_site("here", written(tmp_path, LOCAL, wait_for_quiet=300))
    assert waiting.longest_run_s == 900
    assert common_site_fields(unreferenced) == common_site_fields(waiting) == common_site_fields(plain)


def test_stated_peak_is_no_part_of_a_measurement(tmp_path: Path) -> None:
    plain = load_site("here", written(tmp_path, LOCAL))
    stated = load_site("here", written(tmp_path, LOCAL, peak_tflops={"fp32": 1.2, "bf16": 2}))
    assert dict(stated.peak_tflops) == {"fp32": 1.2, "bf16": 2} and plain.peak_tflops == ()
    assert common_site_fields(stated) == common_site_fields(plain)


def test_auto_is_the_cores_that_this_process_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3, 5, 6})
    assert load_site("here", written(tmp_path, LOCAL)).cores == 3


@pytest.mark.parametrize(
    ("site", "changes", "code", "key", "facts"),
    [
        (LOCAL, {"launcher": "slrum"}, "not-one-of", "launcher",
         {"got": "slrum", "suggestion": "slurm", "expected": ["local", "slurm", "oar", "pbs", "flux"]}),
        (LOCAL, {"wait_for_quiet": 300, "reference": False}, "conflicting-keys", "wait_for_quiet",
         {"got": 300, "mentions": ["reference"]}),
        (LOCAL, {"interface": None}, "missing-key", "interface", {}),
        (LOCAL, {"images": {"base": "debian.sif"}}, "bad-pattern", "images.base", {"got": "debian.sif"}),
        (LOCAL, {"images": {"brought": {"pytorhc": "/a.sif"}}}, "unknown-name", "images.brought",
         {"got": "pytorhc", "suggestion": "pytorch"}),
        (LOCAL, {"images": {"brought": {"lbann": "a.sif"}}}, "bad-pattern", "images.brought.lbann",
         {"got": "a.sif"}),
        (LOCAL, {"images": {"brought": {"pytorch": "/a.sif"}}}, "conflicting-keys", "images.brought.pytorch",
         {"got": "/a.sif", "mentions": ["venv", "apptainer"]}),
        (LOCAL, {"installed": {"lban": {"executable": "/x"}}}, "unknown-name", "installed",
         {"got": "lban", "suggestion": "lbann"}),
        (LOCAL, {"installed": {"lbann": {}}}, "missing-key", "installed.lbann",
         {"mentions": ["executable", "prefix"]}),
        (LOCAL, {"installed": {"lbann": {"executable": "/x"}}, "images": {"brought": {"lbann": "/x.sif"}}},
         "conflicting-keys", "installed.lbann", {"mentions": ["images.brought"]}),
        (LOCAL, {"costs": {"price_per_node_hour": 3.2}}, "wrong-type", "costs.price_per_node_hour",
         {"got": 3.2}),
        (LOCAL, {"exclude_nodes": {"n1": "slow"}}, "not-possible-here", "exclude_nodes", {"got": "local"}),
        *((SLURM, {"exclude_nodes": {name: "slow"}}, "bad-pattern", "exclude_nodes", {"got": name})
          for name in ("", "n[1-3]", "-w")),
        (SLURM, {"exclude_nodes": {"n1": "slow"}, "scheduler": {"nodelist": "n[1-2]"}}, "too-few",
         "exclude_nodes", {"got": 1, "mentions": [2]}),
        (LOCAL, {"frameworks": ["pytorch-ddp", "mxnet"]}, "unknown-name", "frameworks.1", {"got": "mxnet"}),
        (LOCAL, {"placement": "virtual"}, "not-possible-here", "placement",
         {"got": "virtual", "mentions": ["emulated"]}),
        (SLURM, {"launcher": "pbs", "scheduler": {"exclude": "n1"}}, "not-possible-here", "scheduler.exclude",
         {"got": "n1"}),
        *((SLURM, {"launcher": launcher, "placement": "distinct-nodes", "scheduler": {"gpu_bind": "closest"}},
           "not-possible-here", "scheduler.gpu_bind", {"got": "closest"}) for launcher in ("oar", "pbs", "flux")),
        (SLURM, {"launcher": "pbs", "scheduler": {"options": ["--x=y"]}}, "bad-pattern",
         "scheduler.options.0", {"got": "--x=y"}),
        (SLURM, {"launcher": "pbs", "scheduler": {"options": ["-q long"]}}, "duplicate",
         "scheduler.options.0", {"got": "-q"}),
        (SLURM, {"launcher": "flux", "scheduler": {"memory_mb": 1000}}, "not-possible-here",
         "scheduler.memory_mb", {"got": 1000}),
        (SLURM, {"launcher": "flux", "scheduler": {"options": ["--queue=x"]}}, "duplicate",
         "scheduler.options.0", {"got": "--queue"}),
        (CUDA, {"memory": {"device": "H100 80GB"}}, "unknown-name", "memory.device", {"got": "H100 80GB"}),
        (SLURM, {"cores": "auto"}, "not-possible-here", "cores", {"got": "auto", "mentions": ["slurm"]}),
        (LOCAL, {"scheduler": {"partition": "x"}}, "not-possible-here", "scheduler",
         {"got": "local", "mentions": ["slurm"]}),
        (VIRTUAL, {"cpu_share": [0.9, 0.3, 0.3]}, "wrong-count", "cpu_share",
         {"got": 3, "mentions": ["nodes", 2]}),
        (VIRTUAL, {"cpu_share": [0.9, 0.3], "launcher": "oar"}, "not-possible-here", "cpu_share",
         {"got": "oar", "mentions": ["slurm"]}),
        (VIRTUAL, {"cpu_share": [0.9, 0.3], "scheduler": {"nodelist": "node[2,1]"}}, "conflicting-keys",
         "scheduler.nodelist", {"mentions": ["cpu_share"]}),
        (SLURM, {"cpu_share": [0.9, 0.3]}, "not-possible-here", "cpu_share",
         {"got": "distinct-nodes", "mentions": ["virtual"]}),
        (SLURM, {"rank_cores": [2, 1], "ranks_per_node": 2}, "not-possible-here", "rank_cores",
         {"got": "slurm", "mentions": ["local", "cpu"]}),
        (LOCAL, {"rank_cores": [2, 1], "cores": 5, "ranks_per_node": 2}, "out-of-range", "rank_cores",
         {"got": 6, "mentions": ["cores", 5]}),
        (SLURM, {"devices_per_node": 2}, "not-possible-here", "devices_per_node",
         {"got": 2, "mentions": ["cpu"]}),
        (CUDA, {"devices_per_node": 1}, "out-of-range", "devices_per_node",
         {"got": 1, "mentions": ["ranks_per_node"]}),
        (LOCAL, {"cache": "cache"}, "bad-pattern", "cache", {"got": "cache"}),
        (LOCAL, {"datasets": {"folder": "data"}}, "bad-pattern", "datasets.folder", {"got": "data"}),
        (LOCAL, {"datasets": {"folder": "/x", "mirror": "http://x"}}, "conflicting-keys", "datasets.folder",
         {"got": "/x", "mentions": ["mirror"]}),
        (SLURM, {"scheduler": {"options": ["--qos=x", "-q x"]}}, "bad-pattern", "scheduler.options.1",
         {"got": "-q x"}),
        (SLURM, {"scheduler": {"options": ["--mem=4G"]}}, "duplicate", "scheduler.options.0",
         {"got": "--mem"}),
        (CUDA, {"scheduler": {"options": ["--gres=gpu:2"]}}, "duplicate", "scheduler.options.0",
         {"got": "--gres"}),
        (SLURM, {"scheduler": {"nodelist": "node[4-1]"}}, "bad-pattern", "scheduler.nodelist",
         {"got": "node[4-1]", "mentions": ["4-1"]}),
        (SLURM, {"scheduler": {"nodelist": "node1"}}, "too-few", "scheduler.nodelist",
         {"got": 1, "mentions": ["nodes", 2]}),
    ],
)  # fmt: skip
def test_mistake_is_refused_with_file_and_key(
    tmp_path: Path,
    site: dict[str, object],
    changes: dict[str, object],
    code: str,
    key: str,
    facts: dict[str, Any],
) -> None:
    with pytest.raises(InputError) as refused:
        load_site("here", written(tmp_path, site, **changes))
    assert_refusal(refused.value, code, key, file=str(tmp_path / "here.yaml"), **facts)


def test_heterogeneous_nodes_keep_their_order(tmp_path: Path) -> None:
    site = load_site("here", written(tmp_path, VIRTUAL, cpu_share=[0.9, 0.3]))
    assert (site.cpu_share, site.cpu_shares, site.is_heterogeneous) == (None, (0.9, 0.3), True)
    assert site.scheduler.nodelist == "node1,node2"
    site = load_site("here", written(tmp_path, VIRTUAL, cpu_share=[0.6, 0.6]))
    assert (site.cpu_share, site.cpu_shares, site.is_heterogeneous, site.scheduler.nodelist) == (
        0.6,
        (),
        False,
        None,
    )
    site = load_site("here", written(tmp_path, LOCAL, rank_cores=[2, 1], ranks_per_node=2, cores=6))
    assert (site.rank_cores, site.is_heterogeneous) == ((2, 1), True)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_sites_can_run_the_shipped_study(name: str) -> None:
    site = load_site(name)
    assert site.name == name and site.cache.is_absolute()
    if site.launcher == "local":
        return  # this machine need not be the one
    campaign = load_campaign({"study": "quickstart", "site": name, "records": "campaign"})
    assert campaign.record_paths and campaign.environments


def test_a_template_says_that_it_is_one() -> None:
    sites = {name: load_yaml(CHECKOUT / "config" / "sites" / f"{name}.yaml") for name in SHIPPED}
    for name in ("pcad", "plafrim", "grid5000", "slurm-example"):
        assert "template" in sites[name]["description"] and "./ringside doctor" in sites[name]["description"]


def test_the_example_explains_every_key() -> None:
    file = CHECKOUT / "config" / "sites" / "slurm-example.yaml"
    properties = json_schema(SiteKeys)["properties"]
    raw = load_yaml(file)
    commented = {line.lstrip("# ").split(":")[0] for line in file.read_text().splitlines() if ":" in line}
    assert set(properties) <= set(raw) | commented
    assert set(properties["scheduler"]["properties"]) <= set(raw["scheduler"]) | commented


@pytest.mark.parametrize(
    ("written_as", "names"),
    [
        ("", []),
        ("login", ["login"]),
        ("node1,node2", ["node1", "node2"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("node[08-10,12],big", ["node08", "node09", "node10", "node12", "big"]),
        ("n[1-2].cluster.example", ["n1.cluster.example", "n2.cluster.example"]),
    ],
)
def test_a_list_of_hosts_is_read_as_slurm_reads_it(written_as: str, names: list[str]) -> None:
    assert host_names(written_as) == names
