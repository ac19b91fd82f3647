"""A site that cannot be is refused in one line that names file and key; every shipped site can be."""

from pathlib import Path

import pytest
import yaml

from common.errors import InputError
from common.files import CHECKOUT, load_yaml
from common.schemas import schema
from declared.site import host_names, load_site
from plan.campaign import load_campaign
from plan.identity import site_part

SHIPPED = sorted(path.stem for path in (CHECKOUT / "config" / "sites").glob("*.yaml"))
LOCAL = {
    "description": "this machine", "launcher": "local", "placement": "emulated", "device": "cpu", "deployment": "venv",
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
    assert (site.scheduler.concurrent_runs, site.scheduler.build_on, site.scheduler.partition) == (1, "login", None)
    assert site.cache == Path("/cache") and site.scratch is None and site.has("anything")
    assert (site.datasets.folder, site.datasets.mirror) == (None, None)


def test_where_archives_are_is_no_part_of_a_measurement(tmp_path: Path) -> None:
    plain = load_site("here", written(tmp_path, LOCAL))
    told = load_site("here", written(tmp_path, LOCAL, datasets={"folder": "~/archives"}))
    assert told.datasets.folder == Path.home() / "archives"
    assert site_part(told) == site_part(plain)


def test_what_is_done_beside_a_run_is_no_part_of_a_measurement(tmp_path: Path) -> None:
    plain = load_site("here", written(tmp_path, LOCAL))
    assert (plain.reference, plain.wait_for_quiet, plain.longest_run_s) == (True, 0, 600)
    without = load_site("here", written(tmp_path, LOCAL, reference=False))
    waiting = load_site("here", written(tmp_path, LOCAL, wait_for_quiet=300))
    assert waiting.longest_run_s == 900
    assert site_part(without) == site_part(waiting) == site_part(plain)


def test_auto_is_the_cores_that_this_process_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3, 5, 6})
    assert load_site("here", written(tmp_path, LOCAL)).cores == 3


@pytest.mark.parametrize(
    ("site", "changes", "said"),
    [
        (LOCAL, {"interfaces": "lo"}, "interfaces: unknown key; did you mean 'interface'?"),
        (LOCAL, {"launcher": "slrum"}, "launcher: 'slrum' is not one of local, slurm, oar, pbs, flux; did you mean 'slurm'?"),
        (LOCAL, {"wait_for_quiet": 300, "reference": False}, "wait_for_quiet: goes by the reference, which this site does not want"),
        (SLURM, {"wait_for_quiet": 900, "scheduler": {"block_limit_s": 1200}}, "(time_limit_s + wait_for_quiet + 180 = 1680 s)"),
        (LOCAL, {"cores": "all"}, "cores: 'all' is not right; expected processor cores"),
        (LOCAL, {"interface": None}, "key 'interface' is missing; expected network interface"),
        (LOCAL, {"deployment": "docker"}, "deployment: 'docker' is not one of venv, apptainer"),
        (LOCAL, {"images": {"bases": "x"}}, "images.bases: unknown key; did you mean 'base'?"),
        (LOCAL, {"images": {"base": "debian.sif"}}, "images.base: 'debian.sif' does not look right; expected docker://..."),
        (LOCAL, {"images": {"brought": {"pytorhc": "/a.sif"}}}, "images.brought: 'pytorhc' is unknown; did you mean 'pytorch'?"),
        (LOCAL, {"images": {"brought": {"lbann": "a.sif"}}}, "images.brought.lbann: 'a.sif' is neither an absolute path nor"),
        (LOCAL, {"images": {"brought": {"pytorch": "/a.sif"}}}, "images.brought.pytorch: with deployment venv it is built from"),
        (LOCAL, {"installed": {"lban": {"executable": "/x"}}}, "installed: 'lban' is unknown; did you mean 'lbann'?"),
        (LOCAL, {"installed": {"extrap": {"executable": "/x"}}}, "installed: 'extrap' is unknown; expected one of"),
        (LOCAL, {"installed": {"lbann": {"executable": "bin/lbann"}}}, "installed.lbann.executable: 'bin/lbann' does not look right"),
        (LOCAL, {"installed": {"lbann": {}}}, "installed.lbann: has no executable; expected one: executable: /path/to/python, or"),
        (LOCAL, {"installed": {"pytorch": {"executable": "/x", "prefix": "/y"}}}, "installed.pytorch: has both executable and prefix"),
        (LOCAL, {"installed": {"pytorch": {"prefix": "env"}}}, "installed.pytorch.prefix: 'env' does not look right"),
        (
            LOCAL,
            {"installed": {"lbann": {"executable": "/x"}}, "images": {"brought": {"lbann": "/x.sif"}}},
            "installed.lbann: images.brought has it, too",
        ),
        (LOCAL, {"variables": {"lower": "x"}}, "variables"),
        (LOCAL, {"binds": ["data"]}, "binds: 'data' does not look right; expected"),
        (LOCAL, {"binds": ["/data:/data:rw"]}, "binds: '/data:/data:rw' does not look right; expected"),
        (LOCAL, {"frameworks": ["pytorch-ddp", "mxnet"]}, "frameworks.1: 'mxnet' is unknown; expected one of"),
        (LOCAL, {"placement": "virtual"}, "placement: 'virtual' is not possible with launcher local; expected emulated"),
        (SLURM, {"placement": "emulated"}, "'emulated' is not possible with launcher slurm; expected virtual or distinct-nodes"),
        (SLURM, {"launcher": "pbs", "placement": "virtual"}, "'virtual' is not possible with launcher pbs; expected distinct-nodes"),
        (SLURM, {"launcher": "pbs", "scheduler": {"exclude": "n1"}}, "scheduler.exclude: PBS cannot leave nodes out; take it out"),
        (SLURM, {"launcher": "pbs", "scheduler": {"constraint": "a100&ib"}}, "scheduler.constraint: 'a100&ib' is not of the form resource="),
        (SLURM, {"launcher": "pbs", "scheduler": {"options": ["--x=y"]}}, "scheduler.options.0: '--x=y' is not of the form -x value"),
        (SLURM, {"launcher": "pbs", "scheduler": {"options": ["-q long"]}}, "-q is said by scheduler.partition; take it out"),
        (SLURM, {"launcher": "pbs", "scheduler": {"options": ["-l place=free"]}}, "-l place is said by the workflow itself"),
        (SLURM, {"launcher": "flux", "scheduler": {"memory_mb": 1000}}, "scheduler.memory_mb: Flux's jobs take nodes whole"),
        (SLURM, {"launcher": "flux", "scheduler": {"options": ["--queue=x"]}}, "--queue is said by scheduler.partition"),
        (SLURM, {"launcher": "oar", "placement": "emulated"}, "'emulated' is not possible with launcher oar; expected virtual"),
        (SLURM, {"cores": "auto"}, "cores: auto is for this machine; with launcher slurm give the cores of one node"),
        (LOCAL, {"scheduler": {"partition": "x"}}, "scheduler: has no meaning with launcher local"),
        (VIRTUAL, {"cpu_share": [0.9, 0.3, 0.3]}, "cpu_share: is of 3 nodes, nodes is 2; give one number for each node"),
        (VIRTUAL, {"cpu_share": [0.9]}, "cpu_share: has 1 entry; expected at least 2"),
        (VIRTUAL, {"cpu_share": [0.9, 0.3], "launcher": "oar"}, "cpu_share: a list needs launcher slurm"),
        (VIRTUAL, {"cpu_share": [0.9, 0.3], "scheduler": {"nodelist": "node[2,1]"}}, "scheduler.nodelist: nodes of unlike cpu_share"),
        (SLURM, {"cpu_share": [0.9, 0.3]}, "cpu_share: only nodes of the virtual cluster have one"),
        (SLURM, {"rank_cores": [2, 1], "ranks_per_node": 2}, "rank_cores: is for launcher local and device cpu; take it out"),
        (LOCAL, {"rank_cores": [2, 1], "cores": 6}, "rank_cores: is of 2 ranks, ranks_per_node is 1; give one number for each rank"),
        (LOCAL, {"rank_cores": [2, 1], "cores": 5, "ranks_per_node": 2}, "rank_cores: are 6 cores on all nodes, cores is 5; give fewer"),
        (SLURM, {"cpu_share": 0.5}, "cpu_share: only nodes of the virtual cluster have one"),
        (SLURM, {"devices_per_node": 2}, "devices_per_node: has no meaning with device cpu"),
        (CUDA, {"devices_per_node": 1}, "devices_per_node: 1 is less than ranks_per_node"),
        (CUDA, {"devices_per_node": None}, "devices_per_node: 0 is less than ranks_per_node"),
        (LOCAL, {"cache": "cache"}, "cache: 'cache' is not an absolute folder or one that starts with ~"),
        (LOCAL, {"cache": "/a{b}"}, "cache: '/a{b}' is not an absolute folder"),
        (LOCAL, {"cache": "~nobody-of-this-name/cache"}, "cache: '~nobody-of-this-name/cache' is not an absolute folder"),
        (LOCAL, {"datasets": {}}, "datasets: is empty; expected at least 1"),
        (LOCAL, {"datasets": {"folders": "/x"}}, "datasets.folders: unknown key; did you mean 'folder'?"),
        (LOCAL, {"datasets": {"folder": "data"}}, "datasets.folder: 'data' is not right; expected an absolute folder"),
        (LOCAL, {"datasets": {"folder": "/x", "mirror": "http://x"}}, "expected one of folder and mirror"),
        (LOCAL, {"datasets": {"mirror": "ftp://x"}}, "datasets.mirror: 'ftp://x' does not look right; expected http://"),
        (LOCAL, {"scratch": "scratch"}, "scratch: 'scratch' does not look right"),
        (SLURM, {"scheduler": {"partitions": "x"}}, "scheduler.partitions: unknown key; did you mean 'partition'?"),
        (SLURM, {"scheduler": {"partition": "a b"}}, "scheduler.partition: 'a b' does not look right"),
        (SLURM, {"scheduler": {"options": ["qos=x"]}}, "scheduler.options: 'qos=x' does not look right"),
        (SLURM, {"scheduler": {"options": ["--qos=x", "-q x"]}}, "scheduler.options.1: '-q x' is not of the form --name=value"),
        (SLURM, {"scheduler": {"options": ["--mem=4G"]}}, "scheduler.options.0: --mem is said by scheduler.memory_mb"),
        (CUDA, {"scheduler": {"options": ["--gres=gpu:2"]}}, "scheduler.options.0: --gres is said by devices_per_node"),
        (SLURM, {"scheduler": {"nodelist": "node[1-"}}, "scheduler.nodelist: 'node[1-' does not look right: expected names"),
        (SLURM, {"scheduler": {"nodelist": "node[4-1]"}}, "scheduler.nodelist: 'node[4-1]' does not look right: '4-1' is no"),
        (SLURM, {"scheduler": {"nodelist": "node1"}}, "scheduler.nodelist: names 1 nodes, nodes is 2"),
        (SLURM, {"scheduler": {"nodelist": "node[1-3],node2"}}, "scheduler.nodelist: names node2 more than once"),
        (SLURM, {"scheduler": {"nodelist": "node[1-3]", "exclude": "node[3-4]"}}, "scheduler.nodelist: names node3, which exclude"),
        (SLURM, {"scheduler": {"exclude": "node[x]"}}, "scheduler.exclude: 'node[x]' does not look right"),
    ],
)  # fmt: skip
def test_a_mistake_is_refused_in_one_line(
    tmp_path: Path, site: dict[str, object], changes: dict[str, object], said: str
) -> None:
    with pytest.raises(InputError) as refused:
        load_site("here", written(tmp_path, site, **changes))
    (line,) = str(refused.value).splitlines()
    assert "here.yaml: " in line and said in line


def test_unlike_nodes_are_taken_in_their_order_and_alike_ones_are_no_list(tmp_path: Path) -> None:
    site = load_site("here", written(tmp_path, VIRTUAL, cpu_share=[0.9, 0.3]))
    assert (site.cpu_share, site.cpu_shares, site.unlike) == (None, (0.9, 0.3), True)
    assert site.scheduler.nodelist == "node1,node2"
    site = load_site("here", written(tmp_path, VIRTUAL, cpu_share=[0.6, 0.6]))
    assert (site.cpu_share, site.cpu_shares, site.unlike, site.scheduler.nodelist) == (0.6, (), False, None)
    site = load_site("here", written(tmp_path, LOCAL, rank_cores=[2, 1], ranks_per_node=2, cores=6))
    assert (site.rank_cores, site.unlike) == ((2, 1), True)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_site_is_read_and_can_run_the_shipped_study(name: str) -> None:
    site = load_site(name)
    assert site.name == name and site.cache.is_absolute()
    if site.launcher == "local":
        return  # this machine need not be the one
    campaign = load_campaign({"study": "quickstart", "site": name, "records": "campaign"})
    assert campaign.records and campaign.environments


def test_a_template_says_that_it_is_one() -> None:
    sites = {name: load_yaml(CHECKOUT / "config" / "sites" / f"{name}.yaml") for name in SHIPPED}
    for name in ("pcad", "plafrim", "grid5000", "slurm-example"):
        assert "template" in sites[name]["description"] and "make doctor" in sites[name]["description"]


def test_the_example_explains_every_key() -> None:
    file = CHECKOUT / "config" / "sites" / "slurm-example.yaml"
    properties = schema("site")["properties"]
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
