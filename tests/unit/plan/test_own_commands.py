"""Runs of user-supplied commands have plans and keys like those of frameworks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from declared.site import Site, load_site
from declared.study import Study, load_study
from plan import own_commands as planned_commands
from plan.campaign import plan_campaign
from plan.design import plan_design
from plan.identity import plan_run
from support.own_commands import PRINTED_STEPS, own_commands, write_study

WITH_TP = {
    "command": "train {steps} {local_batch} {sync_every} {devices_per_node} {tp}",
    "replicas": "ranks / tp",
}


def local_site(**changes: Any) -> Site:
    """Return a site of four nodes, with the environments of the commands that there are now."""
    return replace(load_site("local"), **{"cores": 8, "nodes": 4, "ranks_per_node": 1, **changes})


def study(folder: Path, **factors: Any) -> Study:
    return load_study("s", write_study(folder, **factors))


def test_geometry_of_a_command(tmp_path: Path) -> None:
    with own_commands(tmp_path / "commands", ours=WITH_TP):
        factors = {"nodes": [1, 2], "sync_every": [1, 2], "custom": {"tp": [1, 2]}}
        runs = plan_design(study(tmp_path, **factors), local_site(ranks_per_node=2))
        seen = {
            (run.geometry.nodes, run.levels["sync_every"], run.levels["custom_tp"]): run.geometry
            for run in runs
        }
        assert {key: (g.replicas, g.effective_batch, g.steps) for key, g in seen.items()} == {
            (1, 1, 1): (2, 16, 4), (1, 1, 2): (1, 8, 8), (1, 2, 1): (2, 32, 4), (1, 2, 2): (1, 16, 8),
            (2, 1, 1): (4, 32, 2), (2, 1, 2): (2, 16, 4), (2, 2, 1): (4, 64, 2), (2, 2, 2): (2, 32, 4),
        }  # fmt: skip
        # torchrun is started once on each node, with the cores of two devices.
        two_nodes = seen[2, 1, 1]
        assert (
            two_nodes.ranks,
            two_nodes.ranks_per_node,
            two_nodes.replicas_per_rank,
            two_nodes.devices,
        ) == (2, 1, 2, 4)
        spec = plan_run(study(tmp_path, **factors), local_site(ranks_per_node=2), runs[0]).spec
        assert spec["cores_per_rank"] == 2 and spec["command"]["replicas"] == "ranks / tp"
    with own_commands(tmp_path / "per-rank", ours={**WITH_TP, "once_per": "rank"}):
        geometry = plan_design(study(tmp_path, nodes=2, custom={"tp": 1}), local_site(ranks_per_node=2))[
            0
        ].geometry
        assert (geometry.ranks, geometry.ranks_per_node, geometry.replicas_per_rank) == (4, 2, 1)


def test_values_are_those_of_the_run(tmp_path: Path) -> None:
    with own_commands(tmp_path / "commands", ours=WITH_TP):
        own = study(tmp_path, nodes=2, sync_every=2, custom={"tp": 2}, epochs=3)
        spec = plan_run(
            own, local_site(ranks_per_node=2), plan_design(own, local_site(ranks_per_node=2))[0]
        ).spec
        values = planned_commands.run_values(spec, Path("/data"))
        expected = {
            "ranks": 4,
            "replicas": 2,
            "samples_per_step": 32,
            "steps": 6,
            "steps_per_epoch": 2,
            "tp": 2,
            "local_batch": 8,
        }
        assert values | expected | {"devices_per_node": 2, "device": "cpu", "seed": spec["seed"]} == values


@pytest.mark.parametrize(
    ("changes", "factors", "code", "got"),
    [
        ({}, {"precision": "amp"}, "unsupported-by-framework", {"framework": "ours", "precision": "amp"}),
        ({}, {"sync_every": 2}, None, None),
        ({"command": "train {steps} {batch_size}"}, {"sync_every": 2}, "unsupported-by-framework",
         {"framework": "ours", "sync_every": 2}),
        ({"supported_levels": {"precision": ["amp", "fp32"]}}, {"precision": "amp"}, None, None),
        ({"supported_levels": {"precision": ["amp", "fp32"]}}, {"precision": ["amp", "fp32"]}, "duplicate",
         {"framework": "ours", "precision": "fp32"}),
        ({}, {"custom": {"tp": [1, 2]}}, "duplicate", {"framework": "ours", "custom_tp": 2}),
        (WITH_TP, {"custom": {"tp": 3}, "nodes": 4}, "no-whole-batch", None),
        ({}, {"batch_size": 40}, "drops-samples", None),
        ({}, {"model": "small-cnn"}, "unsupported-by-framework", {"framework": "ours", "model": "small-cnn"}),
        ({"supported_levels": {"model": "small-cnn", "dataset": "digits"}}, {"model": "small-cnn", "dataset": "digits"},
         None, None),
        ({"command": "train {data} {steps} {samples_per_step}"}, {}, "not-registered", None),
    ],
)  # fmt: skip
def test_what_a_command_cannot_do_is_refused(
    tmp_path: Path, changes: dict[str, Any], factors: dict[str, Any], code: str | None, got: Any
) -> None:
    with own_commands(tmp_path / "commands", ours=changes):
        if code is None:
            assert plan_design(study(tmp_path, **factors), local_site())
            return
        with pytest.raises(InputError) as refused:
            plan_design(study(tmp_path, **factors), local_site())
        assert refused.value.code == code and (got is None or refused.value.got == got)


def test_a_command_stands_beside_a_framework(tmp_path: Path) -> None:
    with own_commands(
        tmp_path / "commands", ours={"command": "train {steps} {samples_per_step} {data} {model}"}
    ):
        mixed = study(
            tmp_path, framework=["pytorch-ddp", "ours"], model="small-cnn", dataset="digits", batch_size=16
        )
        campaign = plan_campaign(mixed, local_site())
        assert set(campaign.environments) == {"pytorch", "ours"} and list(campaign.datasets) == ["digits"]
        assert len({run.geometry.samples_per_epoch for run in campaign.runs}) == 1
        # Only the command knows its model.
        with pytest.raises(InputError) as refused:
            plan_design(study(tmp_path, framework=["pytorch-ddp", "ours"], dataset="digits"), local_site())
        assert refused.value.code == "not-registered"


def test_an_edited_script_makes_its_own_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {PRINTED_STEPS: "0" * 64}
    monkeypatch.setattr(
        planned_commands, "digest_file", lambda file: digests.get(str(file)[-len(PRINTED_STEPS) :], "1")
    )

    def keys(**changes: Any) -> dict[str, str]:
        from plan.identity import code_digest

        code_digest.cache_clear()
        with own_commands(
            tmp_path / f"commands-{len(list(tmp_path.iterdir()))}", ours=changes, theirs={"files": []}
        ):
            own = study(tmp_path, framework=["ours", "theirs"])
            return {
                run.framework.name: plan_run(own, local_site(), run).key
                for run in plan_design(own, local_site())
            }

    before = keys()
    digests[PRINTED_STEPS] = "2" * 64
    edited = keys()
    assert edited["ours"] != before["ours"] and edited["theirs"] == before["theirs"]
    for changes in (
        {"warmup_steps": 1},
        {"variables": {"X": "1"}},
        {"command": "train {steps} {local_batch} {samples_per_step}"},
    ):
        assert keys(**changes)["ours"] != edited["ours"]
    assert keys(title="another title", packages=["torch"]) == edited
