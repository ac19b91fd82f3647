"""The design is a pure function of study and site; additions do not change existing rows."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from common.notes import Note
from declared.replicates import Replicates
from declared.site import Site, load_site
from declared.study import Study, load_study
from plan.design import MAX_RUN_ID_BYTES, Run, check_names, plan_design, to_csv
from plan.geometry import INFEASIBLE_FOR_FRAMEWORK
from plan.identity import plan_run, run_spec
from plan.scheduling import run_resources, slurm_options
from plan.site_limits import unsupported_reason
from plan.site_resources import cores_per_rank, link_rate, link_settings

BLOCKS = (1, 2, 3, 4, 5)  # of the study quickstart


@pytest.fixture
def quickstart() -> Study:
    return load_study("quickstart")


@pytest.fixture
def local() -> Site:
    return replace(load_site("local"), cores=2)


def code_of(note: Note | None) -> str | None:
    return note and note.code


def rows(study: Study, site: Site) -> dict[str, dict[str, str]]:
    return {row["run_id"]: row for row in csv.DictReader(io.StringIO(to_csv(plan_design(study, site))))}


def test_a_replicate_or_a_level_more_changes_no_other_row(quickstart: Study, local: Site) -> None:
    before = rows(quickstart, local)
    more_replicates = rows(replace(quickstart, replicates=Replicates(6, 6)), local)
    assert {run_id: more_replicates[run_id] for run_id in before} == before
    factors = {**quickstart.factors, "batch_size": [16, 32, 64, 48]}
    more_levels = rows(replace(quickstart, factors=factors), local)
    assert {run_id: more_levels[run_id] for run_id in before} == before


def test_block_has_every_cell_once_and_blocks_are_consecutive(quickstart: Study, local: Site) -> None:
    runs = plan_design(quickstart, local)
    assert [run.block for run in runs] == sorted(run.block for run in runs)
    for block in BLOCKS:
        cells = [run.cell for run in runs if run.block == block]
        assert len(cells) == len(set(cells)) == len(runs) / len(BLOCKS)
    orders = {tuple(run.cell for run in runs if run.block == block) for block in BLOCKS}
    assert len(orders) == len(BLOCKS), "each block has an order of its own"


def test_seeds_are_common_to_all_cells_of_a_replicate(quickstart: Study, local: Site) -> None:
    seeds = {(run.replicate, run.seed) for run in plan_design(quickstart, local)}
    assert len(seeds) == len({seed for _, seed in seeds}) == len(BLOCKS)


def test_the_study_seed_decides_order_and_seeds(quickstart: Study, local: Site) -> None:
    second = plan_design(replace(quickstart, seed=quickstart.seed + 1), local)
    assert [run.run_id for run in second] != [run.run_id for run in plan_design(quickstart, local)]


def test_batch_scope_global_shares_the_batch_out(quickstart: Study, local: Site) -> None:
    factors = {**quickstart.factors, "batch_scope": ["global"], "sync_every": [1]}
    runs = plan_design(replace(quickstart, factors=factors, exclude=quickstart.exclude[:1]), local)
    two = next(run for run in runs if run.cell == "pytorch-ddp.small-cnn.digits.b64.n2.s1.batch_scope=global")
    assert (two.geometry.local_batch, two.geometry.effective_batch, two.geometry.steps) == (32, 64, 24)


def test_the_key_follows_what_is_measured_and_nothing_else(quickstart: Study, local: Site) -> None:
    run = next(run for run in plan_design(quickstart, local) if run.geometry.nodes == 2)
    key = plan_run(quickstart, local, run).key
    assert len(key) == 12 and set(key) <= set("0123456789abcdef")
    for change in (
        {"time_limit_s": 1.0},
        {"cache": Path("/elsewhere")},
        {"max_other_cpu_share": 0.5},
        {"name": "x"},
    ):
        assert plan_run(quickstart, replace(local, **change), run).key == key  # type: ignore[arg-type]
    for change in ({"cores": 8}, {"interface": "eth0"}, {"ranks_per_node": 2}, {"bandwidth_bytes_s": 1.25e8}):
        second = replace(local, **change)  # type: ignore[arg-type]
        again = next(entry for entry in plan_design(quickstart, second) if entry.run_id == run.run_id)
        assert plan_run(quickstart, second, again).key != key
    assert plan_run(replace(quickstart, title="another"), local, run).key == key
    assert plan_run(replace(quickstart, step_times=True), local, run).key != key


def test_cores_per_rank_is_the_same_in_all_cells(quickstart: Study, local: Site) -> None:
    site = replace(local, cores=8, nodes=2, ranks_per_node=2)
    assert cores_per_rank(site) == 2
    assert {run_spec(quickstart, site, run)["cores_per_rank"] for run in plan_design(quickstart, site)} == {2}


def plan_heterogeneous(site: Site, **factors: list[object]) -> tuple[Study, list[Run]]:
    """A study of pytorch-hybrid with these factors, and its runs."""
    plain = load_study("hybrid-virtual")
    fixed_factors = {"nodes": [2], "batch_size": [96], "shares": ["equal"], "batch_scope": ["global"]}
    study = replace(plain, factors=plain.factors | fixed_factors | factors, exclude=())
    return study, plan_design(study, site)


def test_shares_stand_in_a_name_that_is_a_folders(local: Site) -> None:
    _, runs = plan_heterogeneous(local, shares=["equal", "measured", "0.8/0.2"])
    names = {
        run.cell.removeprefix("pytorch-hybrid.small-cnn.synthetic-28x28x1-10-3840.b96.n2.s1.") for run in runs
    }
    assert names == {
        f"{shares}batch_scope=global.epochs=3" for shares in ("", "shares=measured.", "shares=0.8_0.2.")
    }


@pytest.mark.parametrize(
    ("factors", "code", "got"),
    [
        ({"shares": ["0.8/0.3"]}, "wrong-sum", {"shares": "0.8/0.3"}),
        ({"shares": ["0.5/0.3/0.2"]}, "wrong-count", {"shares": "0.5/0.3/0.2", "nodes": 2}),
        ({"shares": ["0.995/0.005"]}, "too-few-samples", {"shares": "0.995/0.005", "batch_size": 96}),
        ({"shares": ["measured"], "framework": ["pytorch-ddp"]}, INFEASIBLE_FOR_FRAMEWORK,
         {"shares": "measured", "framework": "pytorch-ddp"}),
        ({"compiler": ["torch-compile"]}, INFEASIBLE_FOR_FRAMEWORK,
         {"compiler": "torch-compile", "framework": "pytorch-hybrid"}),
        ({"device": ["hybrid"], "devices_per_node": [1]}, "too-few-devices",
         {"device": "hybrid", "devices_per_node": 1}),
        ({"device": ["hybrid"], "devices_per_node": [3]}, "too-many-devices", {"devices_per_node": 3}),
    ],
)  # fmt: skip
def test_shares_that_cannot_be_are_refused(
    local: Site, factors: dict[str, list[object]], code: str, got: dict[str, object]
) -> None:
    with pytest.raises(InputError) as refused:
        plan_heterogeneous(local, **factors)
    error = refused.value
    assert (error.code, error.file, error.key) == (code, "config/studies/hybrid-virtual.yaml", "factors")
    assert error.got.items() >= got.items() and error.problem.startswith("cell ")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("factors", "code", "got"),
    [
        ({"augmentation": ["flip"]}, "images-only", {"augmentation": "flip", "dataset": "text8-small"}),
        ({"memory_format": ["channels-last"]}, "images-only",
         {"memory_format": "channels-last", "dataset": "text8-small"}),
        ({"model": ["small-cnn"]}, "model-does-not-fit-data",
         {"model": "small-cnn", "dataset": "text8-small"}),
        ({"model": ["unet-nano"], "dataset": ["synthetic-regions-8x8x3-4"], "augmentation": ["flip"]},
         "pixels-have-labels", {"augmentation": "flip", "dataset": "synthetic-regions-8x8x3-4"}),
        ({"dataset": ["synthetic-text-50-64-4"]}, "model-does-not-fit-data",
         {"model": "gpt-nano", "dataset": "synthetic-text-50-64-4"}),
    ],
)  # fmt: skip
def test_images_are_refused_for_tokens_and_tokens_for_images(
    quickstart: Study, local: Site, factors: dict[str, list[object]], code: str, got: dict[str, str]
) -> None:
    fixed_factors = {
        "framework": ["pytorch-single"],
        "model": ["gpt-nano"],
        "dataset": ["text8-small"],
        "nodes": [1],
    }
    fields = fixed_factors | {"batch_size": [64], "sync_every": [1]}
    fitting = replace(quickstart, factors=quickstart.factors | fields, exclude=())
    assert len(plan_design(fitting, local)) == len(BLOCKS)
    with pytest.raises(InputError) as refused:
        plan_design(replace(fitting, factors=fitting.factors | factors), local)
    assert (refused.value.code, refused.value.got) == (code, got)
    assert (refused.value.file, refused.value.key) == ("config/studies/quickstart.yaml", "factors")


GPT = {"model": ["gpt-nano"], "dataset": ["text8-small"], "nodes": [1]}
UNFUSED = {**GPT, "attention": ["default", "unfused"]}


@pytest.mark.parametrize(
    ("factors", "code", "got"),
    [
        ({"checkpointing": ["blocks"]}, "not-recomputable", {"model", "checkpointing"}),
        ({"checkpointing": ["blocks"], "model": ["resnet-18"]}, "not-recomputable", {"model", "checkpointing"}),
        ({**GPT, "framework": ["pytorch-hybrid"], "checkpointing": ["blocks"]}, INFEASIBLE_FOR_FRAMEWORK,
         {"framework", "checkpointing"}),
        ({"precision": ["bf16"], "reduce_dtype": ["fp32"]}, INFEASIBLE_FOR_FRAMEWORK,
         {"framework", "precision", "reduce_dtype"}),
        ({**GPT, "framework": ["tensorflow-single"], "model": ["rnn-nano"], "compiler": ["xla"]},
         "model-not-compilable", {"framework", "model", "compiler"}),
        ({"framework": ["horovod-pytorch"], "reduce_dtype": ["bf16"]}, INFEASIBLE_FOR_FRAMEWORK, {"framework", "reduce_dtype"}),
        ({"framework": ["deepspeed"], "precision": ["bf16"]}, INFEASIBLE_FOR_FRAMEWORK,
         {"framework", "precision", "sharding", "parallelism"}),
        ({"framework": ["pytorch-single"], "nodes": [1], "reduce_dtype": ["default", "bf16"]}, "duplicate",
         {"framework", "reduce_dtype"}),
        ({"framework": ["pytorch-mesh"], "parallelism": ["tensor2"], "reduce_dtype": ["default", "bf16"]},
         "duplicate", {"parallelism", "reduce_dtype"}),
        ({"optimizer": ["adamw"], "momentum": [0.0, 0.9]}, "duplicate", {"optimizer", "momentum"}),
        ({"adam_beta1": [0.8, 0.9]}, "duplicate", {"optimizer", "adam_beta1"}),
        ({"weight_decay": [0], "decayed_weights": ["kernels", "all"]}, "duplicate",
         {"weight_decay", "decayed_weights"}),
        ({"lr_schedule": ["step"], "lr_final_share": [0.0, 0.1]}, "duplicate", {"lr_schedule", "lr_final_share"}),
        ({"lr_schedule": ["cosine"], "lr_step_epochs": [1, 2]}, "duplicate", {"lr_schedule", "lr_step_epochs"}),
        ({**UNFUSED, "framework": ["tensorflow-single"]}, "duplicate", {"framework", "attention"}),
        ({**UNFUSED, "framework": ["jax-single"]}, "duplicate", {"framework", "precision", "attention"}),
        ({"attention": ["default", "unfused"]}, "duplicate", {"model", "attention"}),
    ],
)  # fmt: skip
def test_cell_that_cannot_be_or_is_another_is_refused(
    quickstart: Study, local: Site, factors: dict[str, list[object]], code: str, got: set[str]
) -> None:
    """A model may have no blocks, or running statistics, a framework no checkpointing or type of numbers."""
    fixed = {"framework": ["pytorch-ddp"], "nodes": [2], "batch_size": [16], "sync_every": [1]}
    study = replace(quickstart, factors=quickstart.factors | fixed | factors, exclude=())
    with pytest.raises(InputError) as refused:
        plan_design(study, local)
    assert (refused.value.code, set(refused.value.got)) == (code, got)  # type: ignore[call-overload]


def test_the_hint_keeps_cells_of_other_frameworks(quickstart: Study, local: Site) -> None:
    factors: dict[str, list[object]] = {
        "framework": ["pytorch-single", "jax-single"],
        "model": ["gpt-nano"],
        "dataset": ["text8-small"],
        "nodes": [1],
        "attention": ["default", "unfused"],
    }
    with pytest.raises(InputError) as refused:
        plan_design(replace(quickstart, factors=quickstart.factors | factors, exclude=()), local)
    assert "- {framework: jax-single, attention: unfused}" in refused.value.hint


def test_hybrid_cells_need_accelerators(local: Site) -> None:
    site = replace(
        local,
        device="cuda",
        devices_per_node=4,
        ranks_per_node=4,
        nodes=2,
        cores=32,
        placement="distinct-nodes",
    )
    fields = {"device": ["hybrid"], "shares": ["measured"], "batch_size": [100]}
    for devices, cores in ((0, [2, 2, 2, 2, 24]), (2, [2, 30])):
        study, runs = plan_heterogeneous(site, **fields, devices_per_node=[devices])
        planned = run_spec(study, site, runs[0])
        assert unsupported_reason(site, runs[0].levels) is None
        assert (planned["rank_cores"], planned["ranks"]) == (cores, 2 * len(cores)), (
            "one more than accelerators"
        )
        assert planned["cores_per_rank"] == max(cores)
        requested = run_resources(replace(site, launcher="slurm"), runs[0].geometry)
        assert requested["cpus_per_task"] * len(cores) <= 32, "no more than a node has; it is the job's own"
    assert code_of(unsupported_reason(local, runs[0].levels)) == "no-accelerator"
    second = unsupported_reason(site, {**runs[0].levels, "framework": "pytorch-ddp"})
    assert second and second.code == "no-hybrid"
    assert second.facts == {"framework": "pytorch-ddp", "able": ["pytorch-hybrid"]}
    assert code_of(unsupported_reason(replace(site, launcher="flux"), runs[0].levels)) == "no-hybrid-here"


def test_spec_has_shares_of_heterogeneous_nodes_and_ranks_only(local: Site) -> None:
    study, runs = plan_heterogeneous(local)
    assert not {"cpu_shares", "rank_cores"} & set(run_spec(study, local, runs[0]))
    virtual = load_site("virtual-heterogeneous")
    study, runs = plan_heterogeneous(virtual, nodes=[1, 2])
    shares = {run.geometry.nodes: run_spec(study, virtual, run)["cpu_shares"] for run in runs}
    assert shares == {1: [0.9], 2: [0.9, 0.6]}, "of the nodes that it takes"
    assert slurm_options(virtual, 2) == ["--nodelist=node1,node2"]
    site = replace(local, cores=3, nodes=1, ranks_per_node=2, rank_cores=(2, 1))
    study, (run, *_) = plan_heterogeneous(site, nodes=[1])
    assert run_spec(study, site, run)["rank_cores"] == [2, 1]
    assert (
        code_of(unsupported_reason(site, {**run.levels, "framework": "tensorflow-mirrored"}))
        == "heterogeneous-ranks"
    )


def test_links_get_another_rate_only_where_they_can_be_set(quickstart: Study, local: Site) -> None:
    study = replace(
        quickstart, factors=quickstart.factors | {"nodes": [2], "bandwidth": [0, 250]}, exclude=()
    )
    virtual = load_site("virtual")
    for run in plan_design(replace(study, factors=study.factors | {"framework": ["pytorch-ddp"]}), virtual):
        rate = {0: virtual.bandwidth_bytes_s, 250: 31.25e6}[run.levels["bandwidth"]]
        assert link_rate(virtual, run.levels) == rate
        burst = {125e6: "250000", 31.25e6: "80000"}[rate]
        assert link_settings(virtual, run.levels)["shaping"][-4:] == ["burst", burst, "latency", "50ms"]
        assert (
            run_spec(study, virtual, run)["bandwidth_bytes_s"] == rate
            and unsupported_reason(virtual, run.levels) is None
        )
        assert (unsupported_reason(local, run.levels) is None) == (run.levels["bandwidth"] == 0)


def test_a_run_whose_name_no_folder_can_have_is_refused() -> None:
    """A framework's, model's or data set's name is part of it."""
    long = "x" * (MAX_RUN_ID_BYTES + 1)
    with pytest.raises(InputError) as refused:
        check_names(
            [replace(plan_design(load_study("quickstart"), load_site("local"))[0], run_id=long)],
            Path("mine.yaml"),
        )
    assert (refused.value.code, refused.value.file, refused.value.got) == ("name-too-long", "mine.yaml", long)
