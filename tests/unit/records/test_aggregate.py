"""Aggregation: every run of the design has a row; only current keys count; a broken record is one error."""

import csv
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from common.errors import InputError, InputErrors
from common.notes import codes, find_note
from common.tables import read_table, write_table
from declared.costs import Costs, Price
from declared.datasets import load_dataset
from declared.records import WARNING_SEPARATOR, split_settings
from declared.site import load_site
from plan.campaign import Campaign, plan_campaign
from plan.design import Run
from plan.identity import digests
from plan.site_resources import cores_per_rank
from ranks.worker.epoch_timer import COLUMNS
from records.aggregate import aggregate_records, summarize, token_columns
from records.next_commands import CampaignArguments, arguments_for
from records.record_checks import load_record
from records.run_rows import user_model_columns
from runs import attempts
from runs.epochs import mean_of_timed, read_epochs
from support.recorded import content, folder_of, small_campaign
from support.traces_made import attempt

NODE = (0.5, 2_500_000, "", 7.5, "", 1e9)  # throttled_s, sent_bytes, energy of packages alone, opened_at


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    monkeypatch.chdir(tmp_path)
    return small_campaign(load_site("local"), epochs=[4])


def record(campaign: Campaign, run: Run, times: list[float], **changes: Any) -> Path:
    """Write what supervisor and ranks write, with these epoch times (the first is warm-up)."""
    folder = folder_of(campaign, run)
    attempt = folder / "attempt-1"
    attempt.mkdir(parents=True)
    fields = content(
        **{
            "run_id": run.run_id,
            "key": folder.name,
            "study": campaign.study.name,
            "site": campaign.site.name,
            "placement": campaign.site.placement,
            "timing_scope": run.framework.timing_scope,
            "cores_per_rank": cores_per_rank(campaign.site),
            **digests(campaign.site, run.levels),
            **changes,
        }
    )
    rows = [
        [i, str(i == 1).lower(), t, t, 0.01, 0.02, 0.05, 48, 48, 1536, 1 / i, 0.5, 2 / i, 0.4, *NODE]
        for i, t in enumerate(times, start=1)
    ]
    with open(attempt / "epochs.csv", "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    (attempt / "record.json").write_text(json.dumps(fields))
    (folder / "record.json").write_text(json.dumps(fields))
    return folder


def aggregated(campaign: Campaign) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of runs.csv, and epochs.csv as read again."""
    runs = aggregate_records(campaign, Path("epochs.csv"))
    return runs, read_table(Path("epochs.csv"), "epochs")


def test_perplexity_exists_only_for_next_token_targets() -> None:
    runs = pd.DataFrame({"throughput_samples_s": [10.0] * 4, "validation_loss": [2.0, 2.0, 2.0, 1e6]})
    names = ("digits", "synthetic-text-50-16-4", "wikitext-2", "wikitext-2")
    columns = pd.DataFrame(token_columns(runs, [load_dataset(name) for name in names]))
    assert columns["throughput_tokens_s"].fillna(0).tolist() == [0, 160, 1280, 1280]
    assert columns["perplexity"].fillna(0).tolist() == [0, 0, pytest.approx(np.exp(2)), 0]


def test_warnings_and_settings_are_columns(campaign: Campaign) -> None:
    record(campaign, campaign.runs[0], [9.0, 0.2, 0.3, 0.7])
    texts, settings = ["UserWarning: a; b", "FutureWarning: c"], {"threads": "2", "attention": "a: b"}
    reported = {"warnings": texts, "settings": settings}
    record(campaign, campaign.runs[1], [9.0] * 4, measured={**content()["measured"], **reported})
    runs, _ = aggregated(campaign)
    assert runs.loc[0, ["warnings", "settings"]].isna().all(), "an older record does not say"
    assert runs.warnings[1].split(WARNING_SEPARATOR) == texts
    assert split_settings(runs.settings[1]) == settings


def test_costs_and_peak_of_the_site_change_no_key(campaign: Campaign) -> None:
    record(campaign, campaign.runs[0], [4.0, 1.0, 2.0, 3.0], lost_s=12.5)
    costs = Costs(price_per_node_hour=Price(3.2, "EUR"), node_power_w=700.0)
    peaks = (("fp32", 1.2),)
    priced = replace(campaign, site=replace(campaign.site, costs=costs, peak_tflops=peaks))
    free_rows, rows = aggregated(campaign)[0], aggregated(priced)[0]
    assert rows["key"].tolist() == free_rows["key"].tolist() and rows["lost_s"][0] == 12.5
    assert rows[list(costs.columns())].iloc[0].tolist() == [3.2, "EUR", None, 700.0]
    assert free_rows[[*costs.columns(), "peak_flops_s"]].isna().all(axis=None)
    share = cores_per_rank(campaign.site) / campaign.site.cores
    assert rows["peak_flops_s"].tolist() == pytest.approx([share * 1.2e12] * len(rows))


def test_older_record_has_no_node_cores(campaign: Campaign) -> None:
    file = record(campaign, campaign.runs[0], [9.0, 0.2, 0.3, 0.7]) / "record.json"
    fields = json.loads(file.read_text())
    del fields["node_cores"]
    file.write_text(json.dumps(fields))
    assert pd.isna(aggregated(campaign)[0].loc[0, "node_cores"])


def test_run_time_is_mean_of_timed_epochs(campaign: Campaign) -> None:
    record(campaign, campaign.runs[0], [9.0, 0.2, 0.3, 0.7])
    runs, epochs = aggregated(campaign)
    row = runs.iloc[0]
    assert row.epoch_time_s == pytest.approx(0.4) and row.epoch_time_median_s == pytest.approx(0.3)
    assert row.throughput_samples_s == pytest.approx(1536 / 0.4)
    assert (row.train_loss, row.validation_loss) == (0.25, 0.5), "of the last epoch"
    assert pd.isna(row.perplexity) and pd.isna(row.throughput_tokens_s), "of sequences alone"
    assert (row.hosts, row.transport, row.status) == ("a", "gloo over tcp lo", "ok")
    assert row.devices == "NVIDIA H100 80GB HBM3", "of both ranks"
    assert row.drivers == "nvidia 580.65.06" and row.node_memory_bytes == 2**40 and row.node_cores == 16
    assert row.systems == "Rocky Linux 9.5, Linux 5.14.0; Rocky Linux 9.6, Linux 5.14.1"
    assert (row.throttled_s, row.sent_bytes) == (0.5, 2.5e6)
    assert (row.energy_device_j, row.energy_package_j, row.energy_j, row.energy_scope) == (
        90.0,
        7.5,
        90.0,
        "device",
    )
    assert (row.idle_device_w, row.idle_package_w) == (70.0, 55.0) and pd.isna(row.idle_node_w)
    assert list(epochs.energy_package_j) == [7.5] * 4 and epochs.energy_j.isna().all()
    assert row.filter(regex="step_time").tolist() == [0.2, 0.3, 0.4, 0.5]
    assert (row.job, row.job_started_at) == ("17", "2025-12-31T23:59:00.000Z")
    assert runs.unfinished_attempts.isna().all()
    assert list(epochs.sent_bytes) == [2_500_000] * 4
    assert list(epochs.epoch) == [1, 2, 3, 4] and list(epochs.warm_up) == [True, False, False, False]


def test_reference_time_is_that_of_slowest_node(campaign: Campaign) -> None:
    benchmark = {
        "kind": "mixed-1",
        "geometry": "2 x 1 x 1",
        "reason": None,
        "waited_s": 20.0,
        "seen": [0.6, 0.5],
    }
    before, after = {"node1": 0.25, "node2": 0.3}, {"node1": 0.5, "node2": 0.5}
    record(
        campaign,
        campaign.runs[0],
        [1.0, 0.2, 0.2, 0.2],
        reference={**benchmark, "before": before, "after": after},
    )
    record(
        campaign,
        campaign.runs[1],
        [1.0, 0.2, 0.2, 0.2],
        reference={**benchmark, "before": before, "after": None},
    )
    record(campaign, campaign.runs[2], [1.0, 0.2, 0.2, 0.2])  # like a record of an older campaign
    columns = [f"reference_{name}" for name in ("kind", "before_s", "after_s", "s")] + ["waited_s"]
    complete, partial, absent = (
        aggregated(campaign)[0][columns]
        .astype(object)
        .where(lambda values: values.notna(), None)
        .to_numpy()[:3]
        .tolist()
    )
    assert complete == ["mixed-1", pytest.approx(0.3), 0.5, pytest.approx(0.4), 20.0]
    assert partial == ["mixed-1", pytest.approx(0.3), None, None, 20.0]
    assert absent == [None] * 5


def test_every_planned_run_has_a_row(campaign: Campaign, tmp_path: Path) -> None:
    record(campaign, campaign.runs[0], [1.0, 0.2, 0.2, 0.2])
    failed = record(
        campaign,
        campaign.runs[1],
        [1.0],
        status="failed",
        reason="rank 0 ended with status 1: Error",
        measured=None,
    )
    old = folder_of(campaign, campaign.runs[2]).with_name("0123456789ab")
    old.mkdir(parents=True)
    (old / "record.json").write_text((failed / "record.json").read_text())
    runs, _ = aggregated(campaign)
    assert list(runs.status) == ["ok", "failed", "missing", "missing"]
    assert [reason.partition(": ")[0] for reason in runs.reason[2:]] == ["old", "absent"]
    notes = summarize(runs)
    assert find_note(notes, "runs").facts == {"runs": 4, "ok": 1, "failed": 1, "missing": 2}
    assert [note.facts["run"] for note in notes if note.code == "run-not-ok"] == runs.run_id[1:].tolist()
    assert find_note(notes, "to-repeat").facts["command"] == "./ringside repeat failed"
    assert find_note(notes, "to-run").facts["command"] == "./ringside run"
    write_table(runs, "runs", tmp_path / "runs.csv")
    assert list(read_table(tmp_path / "runs.csv", "runs").run_id) == [run.run_id for run in campaign.runs]


def test_fully_disturbed_campaign_names_site_limits(campaign: Campaign) -> None:
    reason = "disturbed: 20% of the CPU time went to other processes (more than 5%)"
    for run in campaign.runs:
        record(campaign, run, [1.0, 0.2, 0.2, 0.2], status="invalid", reason=reason)
    notes = summarize(aggregated(campaign)[0], CampaignArguments("x"), site="config/sites/local.yaml")
    assert codes(notes) == ["runs", *["run-not-ok"] * 4, "all-disturbed", "to-repeat"]
    assert find_note(notes, "all-disturbed").facts == {"runs": 4, "site": "config/sites/local.yaml"}
    assert find_note(notes, "to-repeat").facts["command"] == "./ringside repeat invalid --study x"


def test_attempts_without_record_are_listed(campaign: Campaign, tmp_path: Path) -> None:
    before = [{"attempt": 1, "reason": "lost: Node failure on node2"}]
    record(campaign, campaign.runs[0], [1.0, 0.2, 0.2, 0.2], unfinished_attempts=before)
    attempt = attempts.create_attempt_folder(folder_of(campaign, campaign.runs[1]))
    attempts.write_unfinished_reason(attempt, "stopped by SIGTERM (job 17 on node1)")
    runs, _ = aggregated(campaign)
    assert runs.iloc[0].unfinished_attempts == "1: lost: Node failure on node2"
    assert runs.iloc[1].status == "missing" and runs.iloc[1].reason.startswith("absent: ")
    assert "stopped by SIGTERM (job 17 on node1)" in runs.iloc[1].reason
    write_table(runs, "runs", tmp_path / "runs.csv")


def test_unavailable_framework_gives_missing_rows(campaign: Campaign) -> None:
    poorer = replace(campaign, site=replace(campaign.site, frameworks=("pytorch-single",)))
    assert set(poorer.record_paths) == {
        run.run_id for run in poorer.runs if run.levels["framework"] == "pytorch-single"
    }
    assert list(poorer.environments) == ["pytorch"]
    runs, _ = aggregated(poorer)
    missing = runs[runs.framework == "pytorch-ddp"]
    assert set(missing.status) == {"missing"}
    assert all("local" in reason and "pytorch-ddp" in reason for reason in missing.reason)


def test_a_loss_that_is_not_finite_is_an_empty_field(campaign: Campaign, tmp_path: Path) -> None:
    folder = record(
        campaign,
        campaign.runs[0],
        [1.0, 0.2, 0.2, 0.2],
        status="invalid",
        reason="the loss is not finite in epoch 2",
    )
    table = folder / "attempt-1" / "epochs.csv"
    table.write_text(table.read_text().replace(",0.5,0.5,1.0", ",inf,0.5,nan"))
    runs, epochs = aggregated(campaign)
    assert runs.iloc[0].status == "invalid" and epochs.train_loss.isna().iloc[1]


@pytest.mark.parametrize(
    ("new", "fragment"),
    [("2,false,1e300,", "epoch_time_s"), ("2,false,1e-320,", "epoch_time_s"), ("2,false,\u0663,", "ascii")],
)
def test_impossible_epoch_values_are_refused(campaign: Campaign, new: str, fragment: str) -> None:
    table = record(campaign, campaign.runs[0], [1.0, 0.2, 0.2, 0.2]) / "attempt-1" / "epochs.csv"
    assert "2,false,0.2," in table.read_text()
    table.write_text(table.read_text().replace("2,false,0.2,", new))
    with pytest.raises(InputErrors) as refused:
        aggregated(campaign)
    (error,) = refused.value.errors
    assert error.code == "broken-file" and fragment in error.got
    assert table.is_relative_to(error.file)


@pytest.mark.parametrize("broken", ["", "{", '{"run_id": "x"}', "[]"])
def test_a_broken_record_is_refused_in_one_line(campaign: Campaign, broken: str) -> None:
    (record(campaign, campaign.runs[0], [1.0, 0.2, 0.2, 0.2]) / "record.json").write_text(broken)
    with pytest.raises(InputErrors) as refused:
        aggregated(campaign)
    (error,) = refused.value.errors
    assert (error.code, Path(error.file).name) == ("broken-file", "record.json")
    assert error.hint.endswith(f"./ringside repeat {campaign.runs[0].run_id} --study quickstart")
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"run_id": "another"}, ["run_id", "another", "pytorch-"]),
        ({"key": "0123456789ab"}, ["key", "0123456789ab"]),
        ({"study": "another"}, ["study", "another", "quickstart"]),
        ({"site": "laptop"}, ["site", "laptop", "local"]),
        ({"code_digest": "0" * 64}, ["code_digest", "0" * 64]),
        ({"cores_per_rank": 64}, ["cores_per_rank", "64"]),
        ({"timing_scope": "master"}, ["timing_scope", "master", "ranks"]),
        ({"measured": None}, ["measured", "null"]),
        ({"measured": {}}, ["measured", "empty"]),
        ({"measured": {"weights_finite": False}}, ["weights_finite", "false"]),
        ({"measured": {"other_cpu_share": 5}}, ["other_cpu_share", "5", "0.05"]),
        ({"reason": "it fell"}, ["reason", "it fell"]),
        ({"status": "failed"}, ["status", "failed", "reason", "null"]),
    ],
)
def test_record_that_contradicts_plan_is_refused(
    campaign: Campaign, changes: dict[str, Any], named: list[str]
) -> None:
    record(campaign, campaign.runs[0], [1.0, 0.2, 0.2, 0.2], **changes)
    with pytest.raises(InputErrors) as refused:
        aggregated(campaign)
    (error,) = refused.value.errors
    assert (error.code, Path(error.file).name) == ("wrong-record", "record.json")
    assert all(name in error.got for name in named), error.got
    assert error.hint.endswith(f"./ringside repeat {campaign.runs[0].run_id} --study quickstart")


def test_each_broken_record_has_its_own_error(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run's record, a broken record, a pipe, a folder as epochs.csv, wrong warm-up marks."""
    monkeypatch.setattr("records.aggregate.RUNS_PER_CHUNK", 1)
    folders = [record(campaign, run, [1.0, 0.2, 0.2, 0.2]) for run in campaign.runs]
    (folders[0] / "record.json").write_text((folders[1] / "record.json").read_text())
    (folders[1] / "record.json").unlink()
    os.mkfifo(folders[1] / "record.json")
    (folders[2] / "attempt-1" / "epochs.csv").unlink()
    (folders[2] / "attempt-1" / "epochs.csv").mkdir()
    table = folders[3] / "attempt-1" / "epochs.csv"
    table.write_text(table.read_text().replace("2,false,", "2,true,"))
    with pytest.raises(InputErrors) as refused:
        aggregated(campaign)
    errors = [(error.code, Path(error.file).name) for error in refused.value.errors]
    assert errors == [
        ("wrong-record", "record.json"),
        ("broken-file", "record.json"),
        ("broken-file", "epochs.csv"),
        ("wrong-warm-up", "epochs.csv"),
    ]
    assert refused.value.errors[-1].got == {"epoch": 2, "warm_up": "true"}
    assert all(
        run.run_id in error.file for error, run in zip(refused.value.errors, campaign.runs, strict=True)
    )
    assert not Path("epochs.csv").exists()


@pytest.mark.parametrize(
    ("text", "named"),
    [('{"status": "ok", "status": "failed"}', "'status'"), ("[" * 100_000, "deep"),
     ('{"wall_s": NaN}', "NaN")]
)  # fmt: skip
def test_ambiguous_json_is_refused(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "record.json").write_text(text)
    record = load_record(tmp_path / "record.json")
    assert record["status"] == "broken" and named in record["reason"]


def refused_epochs(campaign: Campaign) -> InputError:
    """Return the only error in the run's attempt-1/epochs.csv."""
    with pytest.raises(InputErrors) as refused:
        aggregated(campaign)
    (error,) = refused.value.errors
    assert error.file.endswith("/attempt-1/epochs.csv")
    assert error.hint.endswith(f"./ringside repeat {campaign.runs[0].run_id} --study quickstart")
    return error


def test_a_cut_off_epochs_table_is_refused_in_one_line(campaign: Campaign) -> None:
    table = record(campaign, campaign.runs[0], [1.0, 0.2, 0.2, 0.2]) / "attempt-1" / "epochs.csv"
    table.write_text(table.read_text()[:-30])
    assert refused_epochs(campaign).code == "broken-file"


def test_a_run_that_lost_epochs_is_refused(campaign: Campaign) -> None:
    record(campaign, campaign.runs[0], [1.0, 0.2, 0.2])
    error = refused_epochs(campaign)
    assert (error.code, error.got, error.expected) == ("missing-epochs", 3, [4])


@pytest.mark.parametrize(
    ("old", "new", "code", "got"),
    [
        ("false,0.2,", "false,,", "no-timed-epoch", None),
        ("\n3,", "\n2,", "misnumbered-epochs", ["1", "2", "2", "4"]),
    ],
)
def test_untimed_and_misnumbered_epochs_are_refused(
    campaign: Campaign, old: str, new: str, code: str, got: Any
) -> None:
    table = record(campaign, campaign.runs[0], [1.0, 0.2, 0.2, 0.2]) / "attempt-1" / "epochs.csv"
    table.write_text(table.read_text().replace(old, new))
    error = refused_epochs(campaign)
    assert (error.code, error.got) == (code, got)


def test_chunks_on_all_cores_give_the_same_tables(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, run in enumerate(campaign.runs[:-1]):  # the last one is missing
        record(campaign, run, [1.0, 0.2 + place / 100, 0.2, 0.3])
    at_once = aggregated(campaign)[0]
    epochs = Path("epochs.csv").read_bytes()
    monkeypatch.setattr("records.aggregate.RUNS_PER_CHUNK", 1)
    pd.testing.assert_frame_equal(aggregated(campaign)[0], at_once)
    assert Path("epochs.csv").read_bytes() == epochs and not list(Path().glob(".epochs*"))


def test_an_epoch_that_breaks_its_schema_names_its_run(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("records.aggregate.RUNS_PER_CHUNK", 2)
    for run in campaign.runs:
        table = record(campaign, run, [1.0, 0.2, 0.2, 0.2]) / "attempt-1" / "epochs.csv"
    table.write_text(table.read_text().replace("\n3,false,0.2,", "\n3,false,-0.2,"))
    with pytest.raises(InputErrors) as refused:
        aggregated(campaign)
    (error,) = refused.value.errors
    assert (error.code, error.file) == ("broken-file", str(table.parents[1]))
    assert "epoch_time_s" in error.got and "-0.2" in error.got
    assert not Path("epochs.csv").exists() and not list(Path().glob(".epochs*"))


def test_mean_is_missing_if_an_epoch_lacks_the_number(campaign: Campaign) -> None:
    table = record(campaign, campaign.runs[0], [1.0, 0.2, 0.2, 0.2]) / "attempt-1" / "epochs.csv"
    table.write_text(table.read_text().replace("\n3,false,0.2,0.2,0.01,", "\n3,false,0.2,0.2,,"))
    row = aggregated(campaign)[0].iloc[0]
    assert pd.isna(row.imbalance_s)
    assert (row.epoch_time_s, row.validation_time_s) == pytest.approx((0.2, 0.02))
    read = {row["epoch"]: row for row in read_epochs(table)}
    assert mean_of_timed(list(read.values()), "imbalance_s") is None


def test_commands_name_a_study_that_is_not_configured() -> None:
    assert arguments_for("quickstart", "local") == CampaignArguments()
    assert arguments_for("another", "local") == CampaignArguments("another")


def traced(campaign: Campaign, replicate: int) -> tuple[Run, Path]:
    """Return a traced run of two ranks with its phases, and its attempt."""
    run = next(
        run for run in campaign.runs if run.framework.name == "pytorch-ddp" and run.replicate == replicate
    )
    folder = record(campaign, run, [9.0, 0.2, 0.3, 0.7]) / "attempt-1"
    attempt([0.0, 1.0], epochs=4, steps=48).to_csv(folder / "phases.csv", index=False, float_format="%.7f")
    (folder / "clocks.csv").write_text("epoch,rank,at,offset_s,error_s\n0,0,1,0,0\n0,1,1,0.5,1e-5\n")
    return run, folder


@pytest.fixture
def traced_campaign(campaign: Campaign) -> Campaign:
    study = replace(
        campaign.study,
        factors=campaign.study.factors | {"nodes": [2], "trace": ["phases"], "framework": ["pytorch-ddp"]},
    )
    return plan_campaign(study, campaign.site)


def test_run_with_damaged_phases_counts_as_untraced(traced_campaign: Campaign) -> None:
    """Its file and the command that repeats it are named, and the aggregation goes on."""
    traced(traced_campaign, 1)
    run, folder = traced(traced_campaign, 2)
    table = pd.read_csv(folder / "phases.csv")
    table[table["rank"] == 0].to_csv(folder / "phases.csv", index=False)
    runs, _ = aggregated(traced_campaign)
    rows = runs.set_index("run_id")
    assert list(runs.status) == ["ok", "ok"] and rows.without_phases.notna().sum() == 1
    assert rows.at[run.run_id, "without_phases"].startswith("attempt-1/phases.csv: ")
    notes = summarize(runs, CampaignArguments("quickstart"))
    assert codes(notes) == ["runs", "run-without-phases"]
    assert notes[1].facts == {
        "run": run.run_id,
        "damage": f"{folder.parent}/{rows.at[run.run_id, 'without_phases']}",
        "command": f"./ringside repeat {run.run_id} --study quickstart",
    }
    write_table(runs, "runs", Path("runs.csv"))
    assert read_table(Path("runs.csv"), "runs").without_phases.notna().sum() == 1


def test_only_successful_traced_runs_have_phases_checked(
    campaign: Campaign, traced_campaign: Campaign
) -> None:
    record(campaign, campaign.runs[0], [9.0, 0.2, 0.3, 0.7])
    record(traced_campaign, traced_campaign.runs[0], [1.0], status="failed", reason="x", measured=None)
    for untimed in (campaign, traced_campaign):
        assert aggregated(untimed)[0].without_phases.isna().all()


@pytest.mark.parametrize("flops", [12.0, None])
def test_row_has_the_size_of_a_user_model(flops: float | None) -> None:
    reported = {"parameters": 5, "sample_flops": flops}
    columns = user_model_columns(reported, {"precision": "amp", "reduce_dtype": "default"})
    assert columns == {"parameters": 5, "gradient_bytes": 20, "sample_flops": flops}
    for levels in ({"precision": "bf16"}, {"precision": "amp", "reduce_dtype": "bf16"}):
        assert user_model_columns(reported, levels)["gradient_bytes"] == 10
    assert user_model_columns({"objective": [1.0]}, {}) == {}
