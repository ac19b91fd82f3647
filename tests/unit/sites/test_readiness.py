"""Runs that cannot be started, and environments that cannot be built, are refused before anything starts."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from common.files import digest_file, display_path
from common.python import python_abi
from declared.environments import read
from declared.site import Archives, Site, load_site
from declared.virtual import Settings
from environments.identity import digest
from plan.campaign import Campaign, load_campaign
from sites import readiness, virtual
from sites.readiness import check_builds, check_bundle, check_launch, check_virtual

CONFIG = {"study": "quickstart", "site": "local", "records": "campaign"}


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("folder", ["/a b", "/a$(b)", "/a'b", "/a;b"])
def test_a_path_that_breaks_the_schedulers_scripts_is_refused(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "CHECKOUT", Path(folder))
    with pytest.raises(InputError) as refused:
        check_launch(load_campaign({**CONFIG, "site": "slurm-example"}), "slurm")
    assert (refused.value.code, refused.value.file) == ("bad-pattern", folder)


@pytest.mark.parametrize(
    ("runs", "way"),
    [
        (True, (
            "use snakemake --profile slurm, or ./ringside submit; for figures of the available records add "
            "--config records=available"
        )),
        (False, 'use --profile slurm'),
    ],
)  # fmt: skip
def test_launch_outside_of_a_job_is_refused_with_a_hint(
    runs: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(InputError) as refused:
        check_launch(load_campaign({**CONFIG, "site": "slurm-example"}), "local", runs)
    error = refused.value
    assert (error.code, error.file, error.key) == (
        "outside-of-job",
        "config/sites/slurm-example.yaml",
        "launcher",
    )
    assert error.hint == way


GPU_SITE = replace(load_site("virtual"), device="cuda", devices_per_node=4)


@pytest.mark.parametrize(
    ("site", "running", "code", "key", "options"),
    [
        (load_site("virtual-oar"), None, "not-running", "placement", "--cpu 0.6 --scheduler oar"),
        (load_site("virtual-oar"), {}, "other-cluster", "launcher", "--cpu 0.6 --scheduler oar"),
        (
            load_site("virtual-oar"),
            {"nodes": 2, "scheduler": "oar"},
            "other-cluster",
            "nodes",
            "--scheduler oar",
        ),
        (load_site("virtual-oar"), {"nodes": 4, "scheduler": "oar"}, None, "", ""),
        (GPU_SITE, {"gpus_per_node": 2}, "other-cluster", "devices_per_node", "--cpu 0.6 --gpus 4"),
        (GPU_SITE, {"gpus_per_node": 8}, None, "", ""),
        (load_site("virtual-heterogeneous"), {}, "other-cluster", "cpu_share", "--cpu 0.9,0.6,0.3"),
        (
            load_site("virtual-heterogeneous"),
            {"nodes": 4, "cpu_share": None, "cpu_shares": (0.9, 0.6, 0.3, 0.3)},
            None,
            "",
            "",
        ),
    ],
)
def test_virtual_cluster_must_be_the_one_of_the_site(
    site: Site,
    running: dict[str, Any] | None,
    code: str | None,
    key: str,
    options: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = None if running is None else replace(Settings(3, 125e6, 0.6, None), **running)
    monkeypatch.setattr(virtual, "running_cluster", lambda: settings)
    if code is None:
        check_virtual(site)
        return
    with pytest.raises(InputError) as refused:
        check_virtual(site)
    assert (refused.value.code, refused.value.key) == (code, key)
    assert refused.value.hint.endswith(options)


class TestImages:
    @pytest.fixture
    def imaged(self, monkeypatch: pytest.MonkeyPatch) -> Campaign:
        """The campaign at a site with images, on a machine without Apptainer."""
        monkeypatch.setenv("PATH", "/nowhere")
        loaded = load_campaign(CONFIG)
        return replace(loaded, site=replace(loaded.site, deployment="apptainer"))

    def test_image_deployment_changes_all_environments_and_keys(self, imaged: Campaign) -> None:
        loaded = load_campaign(CONFIG)
        assert loaded.images == [] and imaged.images == list(imaged.environments) == list(loaded.environments)
        assert set(loaded.record_paths.values()).isdisjoint(imaged.record_paths.values())

    def test_without_apptainer_it_says_so_before_anything_starts(self, imaged: Campaign) -> None:
        for start in (lambda: check_launch(imaged, "local"), lambda: check_builds(imaged.site, ["pytorch"])):
            with pytest.raises(InputError) as refused:
                start()
            assert "apptainer" in str(refused.value) and "\n" not in str(refused.value)

    def test_what_setup_lines_bring_is_there_behind_them(
        self, imaged: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        (tmp_path / "apptainer").write_text("#!/bin/sh\necho apptainer version 1.3\n")
        (tmp_path / "apptainer").chmod(0o755)
        site = replace(imaged.site, setup=(f"export PATH={tmp_path}:$PATH",), cache=tmp_path / "cache")
        module = replace(imaged, site=site)
        check_launch(module, "local")
        monkeypatch.setenv("PATH", "/nowhere")
        check_builds(module.site, ["pytorch"])
        in_job = replace(imaged.site, scheduler=replace(imaged.site.scheduler, build_on="job"))
        check_builds(in_job, ["pytorch"])


class TestABundle:
    """A file that the unpacked bundles lack is reported before pip or a download looks for it."""

    @pytest.fixture
    def site(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
        """A site whose bundle has everything for Horovod for PyTorch, and the archive of CIFAR-10."""
        monkeypatch.setenv("RINGSIDE_CACHE", str(tmp_path))
        for name in ("bundle/wheels/a.whl", "downloads/cifar-10/cifar-10-binary.tar.gz"):
            (tmp_path / name).parent.mkdir(parents=True)
            (tmp_path / name).touch()
        described = [read(name) for name in ("pytorch", "horovod-pytorch")]
        locks = [*(environment.lock for environment in described), described[1].build_lock]
        sums = [described[0].wheels[0].sha256[python_abi()], described[1].sources[0].sha256]
        config = {"study": "small", "site": "local", "python_abi": python_abi()}
        config["locks"] = {display_path(lock): digest_file(lock) for lock in locks}
        config["files"] = {str(number): {"sha256": sha256} for number, sha256 in enumerate(sums)}
        (tmp_path / "bundle" / "small-local.json").write_text(json.dumps(config))
        return load_site("local")

    def edit(self, site: Site, **keys: object) -> None:
        file = site.cache / "bundle" / "small-local.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | keys))

    def refusal(self, site: Site, environments: list[str], datasets: list[str] = []) -> str:  # noqa: B006
        with pytest.raises(InputError) as refused:
            check_bundle(site, environments, datasets)
        return str(refused.value)

    def test_what_it_has_is_accepted(self, site: Site) -> None:
        check_bundle(site, ["pytorch", "horovod-pytorch"], ["cifar-10", "digits", "synthetic-8x8x1-10"])

    def test_another_study_variant_python_or_lock(self, site: Site) -> None:
        message = self.refusal(site, ["pytorch", "tensorflow"])
        assert "containers/tensorflow/requirements.cpu.txt" in message and "small at local" in message
        assert "requirements.cuda.txt" in self.refusal(replace(site, device="cuda"), ["pytorch"])
        assert "requirements.cpu.txt" in self.refusal(site, ["extrap"])
        self.edit(site, files={})
        assert " torch 2" in self.refusal(site, ["pytorch"])
        assert " horovod 0" in self.refusal(site, ["horovod-pytorch"])
        self.edit(site, python_abi="cp399-linux_x86_64")
        assert "small at local for cp399-linux_x86_64" in self.refusal(site, ["pytorch"])

    def test_another_data_set(self, site: Site) -> None:
        message = self.refusal(site, [], ["cifar-10", "fashion-mnist"])
        assert "train-images-idx3-ubyte.gz" in message and "fashion-mnist" in message
        own = replace(site, datasets=Archives(Path("/data"), None))
        check_bundle(own, [], ["fashion-mnist"])

    def test_an_image(self, site: Site, tmp_path: Path) -> None:
        imaged = replace(site, deployment="apptainer")
        assert {"image", "pytorch"} <= set(self.refusal(imaged, ["pytorch"]).split())
        (tmp_path / "bundle" / "images").mkdir()
        expected = digest(read("pytorch"), imaged.realization)
        (tmp_path / "bundle" / "images" / f"pytorch-{expected[:12]}.sif").touch()
        check_bundle(imaged, ["pytorch"], [])
        self.refusal(imaged, ["horovod-pytorch"])
        brought = replace(imaged, images=replace(imaged.images, brought=(("horovod-pytorch", "/own.sif"),)))
        check_bundle(brought, ["pytorch", "horovod-pytorch"], [])

    def test_a_manifest_that_cannot_be_read(self, site: Site) -> None:
        (site.cache / "bundle" / "small-local.json").write_text("{")
        assert "./ringside unbundle" in self.refusal(site, ["pytorch"])

    def test_without_a_bundle_everything_can_be_had(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RINGSIDE_CACHE", "/nowhere")
        check_bundle(site, ["tensorflow"], ["fashion-mnist"])


@pytest.mark.parametrize(
    ("changes", "code", "key"),
    [
        ({}, None, ""),
        ({"setup": ("export A=1", "no-such-module load cuda")}, "setup-fails", "setup"),
        ({"scratch": Path("/proc/nowhere")}, "not-writable", "scratch"),
        ({"interface": "nosuch0"}, "no-interface", "interface"),
        ({"cache": Path("/proc/nowhere")}, "not-writable", "cache"),
        ({"cores": 10_000}, "too-few-processors", "processors of the machine"),
    ],
)
def test_what_the_doctor_refuses_starts_no_campaign(
    tmp_path: Path, changes: dict[str, object], code: str | None, key: str
) -> None:
    campaign = load_campaign(CONFIG)
    site = replace(campaign.site, **{"cache": tmp_path / "cache", **changes})  # type: ignore[arg-type]
    began = time.monotonic()
    if code is None:
        check_launch(replace(campaign, site=site), "local")
    else:
        with pytest.raises(InputError) as refused:
            check_launch(replace(campaign, site=site), "local")
        assert (refused.value.code, refused.value.key) == (code, key)
    assert time.monotonic() - began < 60


def test_a_node_knows_this_machines_cache_by_its_mark(tmp_path: Path) -> None:
    campaign = load_campaign({**CONFIG, "site": "slurm-example"})
    campaign = replace(campaign, site=replace(campaign.site, cache=tmp_path / "cache"))
    *_, mark = readiness.node_paths(campaign)
    assert Path(mark).parent == tmp_path / "cache" and Path(mark).name.startswith(".seen-by-")
    assert readiness.node_paths(campaign)[-1] == mark, "the same for all campaigns of this machine"
    read_only = replace(campaign, site=replace(campaign.site, cache=Path("/proc/sys")))
    assert readiness.node_paths(read_only)[-1] == "/proc/sys"
