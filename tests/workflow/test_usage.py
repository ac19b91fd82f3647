"""Commands of users, and common mistakes."""

import csv
import fcntl
import itertools
import json
import shutil
from collections.abc import Callable
from datetime import datetime

import pytest

from support.checkout import SMALL_STUDY, Checkout


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("config/studies/small.yaml", "replicates: 1", "replicate: 1",
         "config/studies/small.yaml: replicate: "),
        ("config/config.yaml", "study: small", "study: [", "config.yaml"),
        ("containers/pytorch/environment.yaml", "selftest_limit_s", "selftest_limit",
         "containers/pytorch/environment.yaml: "),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_no_work(
    fresh: Callable[..., Checkout], file: str, old: str, new: str, message: str
) -> None:
    checkout = fresh(SMALL_STUDY)
    text = checkout.path(file).read_text()
    checkout.write(file, text.replace(old, new, 1))
    done = checkout.snakemake("figures")
    assert done.status != 0
    assert message in done.output and "Traceback" not in done.output
    assert len([line for line in done.output.splitlines() if line.startswith("ringside: ")]) == 1
    assert not checkout.results.exists()


def test_who_comes_second_is_told_in_one_line(campaign: Checkout) -> None:
    figure = campaign.results / "figures" / "overview.svg"
    figure.unlink()
    locks = campaign.path(".snakemake/locks")
    locks.mkdir(exist_ok=True)
    (locks / "0.output.lock").write_text(f"{figure.relative_to(campaign.folder)}\n")
    with open(campaign.path(".snakemake/ringside.lock"), "a") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        done = campaign.snakemake("figures")
    assert done.status == 2
    assert done.output.splitlines()[-1].startswith(
        "ringside: another Snakemake is running in this checkout; wait until it ends"
    )
    assert "unlock" not in done.output and not figure.exists()


def test_nothing_is_put_aside_under_a_running_campaign(campaign: Checkout) -> None:
    before = campaign.records()
    with open(campaign.path(".snakemake/ringside.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = campaign.program("ringside", "repeat", "*")
    assert (
        done.returncode == 2 and "a campaign is running in this checkout; nothing was changed" in done.stderr
    )
    assert campaign.records() == before


def test_what_was_written_is_handed_on(campaign: Checkout) -> None:
    """make would expand $(id) as a variable, and a shell as a command."""
    done = campaign.ringside("status", "$(id)")
    assert (
        done.returncode == 2
        and done.stderr.startswith("ringside: STUDY: ")
        and "[unknown-name]" in done.stderr
    )
    done = campaign.ringside("repeat", "$(x)`id`")
    assert done.returncode == 2 and "'$(x)`id`': no run" in done.stderr, done.stdout + done.stderr
    done = campaign.make("figures", "STUDI=small")
    assert done.returncode == 2 and "STUDI" in done.stderr and "ringside: " not in done.stderr


def test_list_rules_reads_like_a_table_of_contents(fresh: Callable[..., Checkout]) -> None:
    output = fresh(SMALL_STUDY).snakemake("--list-rules").output
    listed = [line for line in output.splitlines() if "(" in line]
    names = {line.split()[0] for line in listed}
    assert {"plan", "environments", "datasets", "runs", "records", "tables", "figures", "all"} <= names
    assert all(line.endswith(".)") for line in listed), output


def test_all_profiles_plan_the_same_runs(fresh: Callable[..., Checkout]) -> None:
    checkout = fresh(SMALL_STUDY)
    local = checkout.snakemake("-n")
    assert local.status == 0 and local.jobs["run"] == 3, local.output
    for profile in ("slurm", "pbs", "flux"):
        planned = checkout.snakemake("-n", "--profile", profile)
        assert planned.status == 0 and planned.jobs == local.jobs, planned.output
    assert not checkout.results.exists(), "a dry-run writes nothing"


def test_runs_follow_the_planned_order_without_overlap(finished_campaign: Checkout) -> None:
    with open(finished_campaign.results / "runs.csv") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: float(row["order_key"]))
    times = [
        (datetime.fromisoformat(row["started_at"]), datetime.fromisoformat(row["ended_at"])) for row in rows
    ]
    for (_, ended), (started, _) in itertools.pairwise(times):
        assert ended <= started
    assert {row["status"] for row in rows} == {"ok"}
    assert all(row["placement"] == "emulated" and row["session"] == rows[0]["session"] for row in rows)


def test_missing_strategies_and_their_cause_are_reported(fresh: Callable[..., Checkout]) -> None:
    changes = {
        "[pytorch-single, horovod-pytorch, tensorflow-single]": "pytorch-strategy",
        "small-cnn": "lenet-5",
    }
    changes |= {"digits": "synthetic-28x28x1-10-512", "nodes: 1": "nodes: 2\n  batch_scope: global"}
    study = SMALL_STUDY + "  - {kind: simulated}\n"
    for old, new in changes.items():
        study = study.replace(old, new)
    checkout = fresh(study.replace("sync_every", "parallelism: [data, found]\n  sync_every"))
    message = "no strategy was found yet; run ./ringside strategies small --site local"
    assert f"\n1 run of 1 cell cannot run here: {message}\n" in checkout.snakemake("design").output
    at_a_cluster = checkout.snakemake("strategies", "--config", "site=virtual")
    assert at_a_cluster.status == 2 and "[outside-of-job]" in at_a_cluster.output.splitlines()[-1]
    checkout.edit("config/studies/small.yaml", "[data, found]", "[data, random1]")
    no_level = checkout.snakemake("strategies")
    assert no_level.status == 2 and "no cell has the level found" in no_level.output.splitlines()[-1]


def test_planning_binds_results_to_no_site(fresh: Callable[..., Checkout]) -> None:
    checkout = fresh(SMALL_STUDY)
    for site in ("local", "local-devices"):
        done = checkout.snakemake("plan", "design", "--config", f"site={site}")
        assert done.status == 0 and f"small at {site}: 3 runs" in done.output, done.output
    assert (checkout.results / "design.csv").exists() and not (checkout.results / "campaign.json").exists()


def test_what_is_there_can_be_drawn_anywhere(campaign: Checkout) -> None:
    shutil.rmtree(next(iter((campaign.results / "runs").glob("tensorflow-single.*"))))
    binding = campaign.results / "campaign.json"
    elsewhere = {"machine": "the-machine-that-ran-it", "machine_id": "another"}
    binding.write_text(json.dumps({**json.loads(binding.read_text()), **elsewhere}))
    refused = campaign.snakemake("figures")
    assert refused.status != 0 and "these results belong to machine the-machine-that-ran-it" in refused.output
    targets = [f"results/small/{name}" for name in ("figures/overview.pdf", "tables/missing.md")]
    done = campaign.snakemake(*targets, "--config", "records=available")
    assert done.status == 0, done.output
    assert "run" not in done.jobs and "environment" not in done.jobs
    with open(campaign.results / "runs.csv") as file:
        statuses = {row["framework"]: row["status"] for row in csv.DictReader(file)}
    assert statuses == {"pytorch-single": "ok", "horovod-pytorch": "ok", "tensorflow-single": "missing"}
    assert "absent: has not run" in (campaign.results / "tables" / "missing.md").read_text()


def test_the_design_is_written_before_anything_runs(finished_campaign: Checkout) -> None:
    written = (finished_campaign.results / "design.csv").stat().st_mtime
    with open(finished_campaign.results / "runs.csv") as file:
        assert written < min(
            datetime.fromisoformat(row["started_at"]).timestamp() for row in csv.DictReader(file)
        )


HOSTILE = "a 'b' \"c\" $(touch pwned) `touch pwned`; touch pwned, {d"


def test_a_hostile_path_is_harmless(fresh: Callable[..., Checkout]) -> None:
    checkout = fresh(
        SMALL_STUDY.replace("[pytorch-single, horovod-pytorch, tensorflow-single]", "pytorch-single"), HOSTILE
    )
    done = checkout.snakemake("runs")
    assert done.status == 0 and len(checkout.records()) == 1, done.output
    assert not list(checkout.folder.parent.rglob("pwned"))


@pytest.mark.parametrize("variable", ["STUDY", "SITE"])
def test_a_hostile_name_is_refused_and_harmless(fresh: Callable[..., Checkout], variable: str) -> None:
    checkout = fresh(SMALL_STUDY)
    done = checkout.make("figures", f"{variable}={HOSTILE}")
    messages = [line for line in done.stderr.splitlines() if line.startswith("ringside: ")]
    assert done.returncode != 0 and len(messages) == 1 and HOSTILE in messages[0], done.stderr
    assert not list(checkout.folder.rglob("pwned")) and not checkout.attempts()


def test_snakemakes_own_report_shows_figures_and_tables(campaign: Checkout) -> None:
    done = campaign.snakemake("figures", "--report", "page.html")
    assert done.status == 0, done.output
    page = campaign.path("page.html").read_text()
    caption = (campaign.results / "figures" / "overview.caption.md").read_text()
    assert all(file in page for file in ("overview.svg", "residuals.svg", "cells.csv"))
    assert max(caption.replace("*", " ").replace(".", " ").split(), key=len) in page


def test_job_without_a_share_of_the_machine_is_refused(fresh: Callable[..., Checkout]) -> None:
    checkout = fresh(SMALL_STUDY)
    done = checkout.snakemake("design", "--default-resources", "mem_mb=10")
    assert done.status == 2 and "[missing-resource]" in done.output.splitlines()[-1]
    assert not (checkout.results / "design.csv").exists()
