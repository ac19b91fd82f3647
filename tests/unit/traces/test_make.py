"""`ringside trace`: which run is meant, and what is said where none can be traced."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from declared.environments import Installed
from declared.frameworks import load_framework
from declared.site import load_site
from declared.study import load_study
from plan.campaign import Campaign, plan_campaign
from ranks.worker.epoch_timer import COLUMNS
from support.traces_made import attempt
from traces import make


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    return plan_campaign(load_study("tf-strategies-small"), load_site("local"))


def test_a_run_is_named_or_fitted(campaign: Campaign) -> None:
    subset = campaign.runs[3].run_id
    assert make.find_run(campaign, subset).run_id == subset
    cell, _, replicate = subset.rpartition(".")
    assert make.find_run(campaign, f"{cell[:-1]}*.{replicate}").run_id == subset


def test_several_or_none_are_one_line_with_names(campaign: Campaign) -> None:
    with pytest.raises(InputError) as refused:
        make.find_run(campaign, "*")
    ambiguous, run_ids = refused.value, list(campaign.by_id)
    assert (ambiguous.code, ambiguous.got) == ("ambiguous-name", "*")
    assert run_ids[0] in ambiguous.expected and run_ids[-1] not in ambiguous.expected
    subset = campaign.runs[0].run_id
    with pytest.raises(InputError) as refused:
        make.find_run(campaign, f"{subset}x")
    none = refused.value
    assert (none.code, none.got) == ("unknown-name", f"{subset}x") and subset in none.hint


def test_a_traced_run_is_another_than_the_timed_one(campaign: Campaign) -> None:
    run = next(run for run in campaign.runs if run.levels["training_loop"] == "custom")
    traced, full = (make.plan_traced(campaign, run, level) for level in ("phases", "full"))
    assert traced.run_id == run.run_id and traced.spec["levels"]["trace"] == "phases"
    assert len({traced.key, full.key, Path(campaign.record_paths[run.run_id]).parent.name}) == 3


def test_what_a_framework_cannot_be_traced_at_is_said(campaign: Campaign) -> None:
    run = next(run for run in campaign.runs if run.levels["training_loop"] == "fit")
    with pytest.raises(InputError) as refused:
        make.plan_traced(campaign, run, "phases")
    error = refused.value
    assert (error.code, error.file, error.got) == ("unsupported-level", run.run_id, "phases")
    assert run.framework.name in error.problem and run.framework.refusal_reasons["trace"] in error.problem


def test_only_full_traces_need_the_sites_score_p(campaign: Campaign) -> None:
    present = (("lbann", Installed("/opt/lbann/bin/lbann")),)
    equipped = replace(campaign, site=replace(campaign.site, installed=present, scorep=Path("/nowhere")))
    run = replace(
        campaign.runs[0], levels={**campaign.runs[0].levels, "framework": "lbann", "training_loop": "custom"}
    )
    run = replace(run, framework=load_framework("lbann"))
    assert make.plan_traced(equipped, run, "phases").key
    with pytest.raises(InputError) as refused:
        make.plan_traced(equipped, run, "full")
    assert (refused.value.code, refused.value.file) == ("not-possible-here", run.run_id)
    assert "/nowhere" in refused.value.problem and "bin/scorep-config" in refused.value.problem


def test_at_a_site_of_slurm_the_job_that_it_needs_is_named(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    site = replace(load_site("virtual"), cores=2, python_abi="cp311")
    present = plan_campaign(campaign.study, site)
    run = next(
        run for run in present.runs if run.levels["training_loop"] == "custom" and run.geometry.nodes == 2
    )
    with pytest.raises(InputError) as refused:
        make.measure(present, make.plan_traced(present, run, "phases"))
    error = refused.value
    assert (error.code, error.key) == ("needs-job", "launcher") and error.file.endswith("virtual.yaml")
    assert "salloc --nodes=2 " in error.hint and "--signal" not in error.hint
    assert error.hint.endswith(f"./ringside trace {run.run_id} --study tf-strategies-small --site virtual")
    assert not list(tmp_path.iterdir()), "nothing was begun"


def test_only_an_attempt_whose_phases_are_whole_is_taken(tmp_path: Path) -> None:
    place = tmp_path / "attempt-1"
    place.mkdir()
    (place / "record.json").write_text('{"status": "ok"}')
    (place / "rank_input.json").write_text('{"spec": {"ranks": 2}}')
    rows = [",".join("4" if name == "steps" else str(epoch) for name in COLUMNS) for epoch in (1, 2, 3)]
    (place / "epochs.csv").write_text("\n".join([",".join(COLUMNS), *rows, ""]))
    attempt([0.0, 1.0], epochs=3, steps=4).to_csv(place / "phases.csv", index=False)
    (place / "clocks.csv").write_text("epoch,rank,at,offset_s,error_s\n0,0,1,0,0\n0,1,1,0.5,1e-5\n")
    assert make.finished_trace(tmp_path) == place
    for name in ("clocks.csv", "rank_input.json", "phases.csv"):
        campaigns = (place / name).read_text()
        (place / name).unlink()
        assert make.finished_trace(tmp_path) is None
        (place / name).write_text(campaigns)


def test_gradients_are_summed_in_the_type_of_the_run(campaign: Campaign, tmp_path: Path) -> None:
    run = next(run for run in campaign.runs if run.levels["training_loop"] == "custom")
    for reduce_dtype, n_bytes in (("fp32", 4), ("bf16", 2)):
        levels = {**run.levels, "precision": "bf16", "reduce_dtype": reduce_dtype}
        (tmp_path / "rank_input.json").write_text(json.dumps({"spec": {"levels": levels}}))
        expected = run.graph.gradient_bytes // 4 * n_bytes
        assert make.summed_gradient_bytes(tmp_path, run) == expected
