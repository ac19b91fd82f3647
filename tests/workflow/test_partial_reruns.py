"""Given a finished campaign, when one thing changes, then one call repeats only what depends on it."""

import csv
import os
import shutil
import time
from pathlib import Path

import pytest

from declared.site import load_site
from support.checkout import Checkout

FIGURES = ("overview", "residuals", "accuracy", "accuracy-updates")


def design_rows(checkout: Checkout) -> dict[str, dict[str, str]]:
    with open(checkout.results / "design.csv") as file:
        return {row["run_id"]: row for row in csv.DictReader(file)}


def rows(path: Path) -> list[dict[str, str]]:
    with open(path) as file:
        return list(csv.DictReader(file))


def set_dates(checkout: Checkout, moment: float) -> None:
    for path in checkout.folder.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (moment, moment))


def test_every_file_touched_runs_nothing(campaign: Checkout) -> None:
    moment = time.time()
    for number, path in enumerate(sorted(campaign.folder.rglob("*"))):
        if path.is_file() and not path.is_symlink() and ".snakemake" not in path.parts:
            os.utime(path, (moment + number, moment + number))
    before = campaign.products()
    done = campaign.snakemake("figures")
    assert (done.status, done.jobs) == (0, {})
    assert campaign.products() == before


def test_cache_of_another_site_holds_nothing_up(campaign: Checkout, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "environments").symlink_to(load_site("local").cache / "environments")
    campaign.edit("config/sites/local.yaml", "cache: ~/.cache/ringside", f"cache: {cache}")
    assert campaign.snakemake("datasets").jobs == {"dataset": 1}
    campaign.write("config/sites/other.yaml", campaign.path("config/sites/local.yaml").read_text())
    shutil.rmtree(campaign.results)
    planned = campaign.snakemake("-n", "figures", "--config", "site=other")
    assert planned.status == 0, planned.output
    assert planned.jobs["run"] == 3 and not {"dataset", "environment"} & set(planned.jobs)


def test_one_more_replicate_runs_only_the_new_runs(campaign: Checkout) -> None:
    old_rows, old_attempts = design_rows(campaign), campaign.attempts()
    campaign.edit("config/studies/small.yaml", "replicates: 1", "replicates: 2")
    done = campaign.snakemake("records")
    assert done.status == 0, done.output
    assert done.jobs["run"] == 3
    assert "environment" not in done.jobs
    assert {run_id: row for run_id, row in design_rows(campaign).items() if run_id in old_rows} == old_rows
    new = set(campaign.attempts()) - set(old_attempts)
    assert len(new) == 3 and all(".r2/" in attempt for attempt in new)
    assert len(rows(campaign.results / "runs.csv")) == 6


def test_one_more_level_plans_only_the_new_runs(campaign: Checkout) -> None:
    old_rows = design_rows(campaign)
    campaign.edit("config/studies/small.yaml", "batch_size: [64]", "batch_size: [64, 32]")
    assert campaign.snakemake("design").status == 0
    assert {run_id: row for run_id, row in design_rows(campaign).items() if run_id in old_rows} == old_rows
    planned = campaign.snakemake("figures", "-n")
    assert planned.jobs["run"] == 3 and "environment" not in planned.jobs, planned.output


@pytest.mark.parametrize(
    ("kind", "figures"), [pytest.param("residuals", 1, marks=pytest.mark.thorough), ("accuracy", 2)]
)
def test_a_kinds_script_edited_makes_its_figures(campaign: Checkout, kind: str, figures: int) -> None:
    before = campaign.products()
    script = campaign.path(f"workflow/scripts/figures/kinds/{kind}.py")
    script.write_text(script.read_text() + "\nEDITED = True\n")
    done = campaign.snakemake("figures")
    assert (done.status, done.jobs) == (0, {"figure": figures})
    changed = {name for name, stamped in campaign.products().items() if before[name] != stamped}
    assert changed and all(Path(name).name.startswith(kind) for name in changed)


def test_reworded_code_repeats_nothing(campaign: Checkout) -> None:
    for name in (
        "figures/kinds/residuals",
        "analysis/study",
        "ranks/worker/trainer",
        "ranks/frameworks/pytorch-single/adapter",
    ):
        file = campaign.path(f"workflow/scripts/{name}.py")
        file.write_text("# Reworded.\n" + file.read_text().replace('"""', '"""Reworded: ', 1))
    for target in (["figures", "-n"], ["figures"]):
        done = campaign.snakemake(*target)
        assert (done.status, done.jobs) == (0, {}), done.output
        assert "changed since" not in done.output


def test_declaration_makes_only_the_figures_that_are_missing(campaign: Checkout) -> None:
    before = campaign.products()
    campaign.edit(
        "config/studies/small.yaml", "{kind: accuracy, x: updates}", "{kind: by_factor, x: framework}"
    )
    done = campaign.snakemake("figures")
    assert (done.status, done.jobs) == (0, {"figure": 1}), done.output
    changed = {name for name, stamped in campaign.products().items() if before.get(name) != stamped}
    assert "figures: results/small/figures, tables: results/small/tables; one page" in done.output
    ends = ("pdf", "svg", "png", "caption.md")
    assert changed == {f"figures/by_factor-framework.{end}" for end in ends}
    assert "moved to old/: figures/accuracy-updates" in done.output
    assert {path.name for path in (campaign.results / "figures" / "old").iterdir()} == {
        f"accuracy-updates.{end}" for end in ends
    }
    listed = {file for product in campaign.manifest()["products"].values() for file in product["files"]}
    existing = {
        str(path.relative_to(campaign.folder))
        for path in campaign.results.glob("*s/*.*")
        if path.parent.name in ("figures", "tables")
    }
    assert listed == existing, "the manifest's list and the folders agree"


def test_edited_lock_repeats_its_runs_and_restored_lock_nothing(campaign: Checkout) -> None:
    lock = campaign.path("containers/pytorch/requirements.cpu.txt")
    old_lock = lock.read_text()
    lock.write_text(
        f"{old_lock}# edited in {campaign.folder}\n"
    )  # builds are tests/unit/environments' matter
    planned = campaign.snakemake("figures", "-n")
    assert (planned.jobs["environment"], planned.jobs["run"]) == (2, 2), planned.output
    assert planned.jobs["figure"] == len(FIGURES)
    lock.write_text(old_lock)
    done = campaign.snakemake("figures")
    assert (done.status, done.jobs) == (0, {})


def test_edited_adapter_repeats_runs_and_restored_one_none(campaign: Checkout) -> None:
    adapter = campaign.path("workflow/scripts/ranks/frameworks/pytorch-single/adapter.py")
    old_adapter, old_records = adapter.read_text(), campaign.records()
    for figure in campaign.results.glob("figures/overview.*"):
        figure.unlink()
    adapter.write_text(old_adapter + "\nEDITED = True\n")
    done = campaign.snakemake("figures")
    assert done.status == 0, done.output
    assert (done.jobs["run"], done.jobs["figure"]) == (1, len(FIGURES)) and "environment" not in done.jobs
    (new,) = set(campaign.records()) - set(old_records)
    _, run_id, key, _ = new.split("/")
    assert run_id.startswith("pytorch-single.")
    keys = {row["run_id"]: row["key"] for row in rows(campaign.results / "runs.csv")}
    assert keys[run_id] == key, "runs.csv shows the new measurement"
    assert (campaign.results / "figures" / "overview.pdf").exists()

    adapter.write_text(old_adapter)
    done = campaign.snakemake("figures")
    assert done.status == 0, done.output
    assert "run" not in done.jobs, "the old measurement still stands"
    keys = {row["run_id"]: row["key"] for row in rows(campaign.results / "runs.csv")}
    assert all(f"runs/{run_id}/{key}/record.json" in old_records for run_id, key in keys.items())
    assert key not in keys.values()


def test_removed_record_is_made_again_for_every_target(campaign: Checkout) -> None:
    """Nothing trains: the finished attempt is still there and is published again."""
    for number, target in enumerate(("records", "runs", "figures")):
        campaign.path(str(campaign.results / campaign.records()[number])).unlink()
        done = campaign.snakemake(target)
        assert done.status == 0 and done.jobs["run"] == 1, done.output
        assert len(campaign.records()) == len(campaign.attempts()) == 3


def test_a_space_in_a_rules_shell_trains_nothing(campaign: Checkout) -> None:
    before = campaign.attempts()
    campaign.edit("rules/runs.smk", "{PREFORKED} runs.supervise", "{PREFORKED}  runs.supervise")
    done = campaign.snakemake("figures")
    assert (done.status, done.jobs) == (0, {})
    assert campaign.attempts() == before


@pytest.mark.parametrize(
    "age_s",
    [pytest.param(-10 * 365 * 86400, id="older"), pytest.param(0, marks=pytest.mark.thorough, id="newer")],
)
def test_clone_with_published_tables_only_draws_and_analyses(
    finished_campaign: Checkout, tmp_path: Path, age_s: float
) -> None:
    clone = Checkout(tmp_path / "clone")
    published = clone.path("docs/campaigns/small")
    published.mkdir(parents=True)
    for name in ("runs.csv", "epochs.csv"):
        shutil.copy(finished_campaign.results / name, published)
        os.utime(published / name, (time.time() + age_s,) * 2)
    environment = {"RINGSIDE_CACHE": str(tmp_path / "no-cache")}
    os.environ.update(environment)
    try:
        done = clone.snakemake("figures", "--config", "records=docs/campaigns/small")
    finally:
        for name in environment:
            del os.environ[name]
    assert done.status == 0, done.output
    assert set(done.jobs) <= {"figure", "analysis"}
    assert {path.stem for path in (clone.results / "figures").glob("*.pdf")} == set(FIGURES)
    for name in (path.name for path in (finished_campaign.results / "tables").glob("*.csv")):
        assert (clone.results / "tables" / name).read_bytes() == (
            finished_campaign.results / "tables" / name
        ).read_bytes()
    assert not (tmp_path / "no-cache").exists() and not clone.records()
