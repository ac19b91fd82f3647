"""The mirror of the checkout has the results of a preview."""

import json
import os
from pathlib import Path

import pytest

from common.errors import InputError, exit_status
from common.files import CHECKOUT
from declared.site import load_site
from plan.binding import bind_results
from report import preview
from support.recorded import content


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RINGSIDE_LOCK", str(tmp_path / "machine.lock"))
    monkeypatch.setattr(os, "nice", lambda _: 0)


def test_nothing_of_the_campaigns_is_written(tmp_path: Path) -> None:
    results = Path("results/small")
    (results / "runs" / "a").mkdir(parents=True)
    (results / "campaign.json").write_text("{}")
    for turn in range(2):
        with preview.workplace(results, results / "preview") as work:
            mirrored = work / "results" / "small"
            assert (mirrored / "runs" / "a").is_dir() and (mirrored / "campaign.json").read_text() == "{}"
            assert (work / "Snakefile").read_text() == (CHECKOUT / "Snakefile").read_text()
            (mirrored / "runs.csv").write_text(str(turn))
            (work / ".snakemake" / f"memory-{turn}").write_text("")
        assert not work.exists()
    assert (results / "preview" / "runs.csv").read_text() == "1" and not (results / "runs.csv").exists()
    assert (results / "preview" / ".snakemake" / "memory-0").exists(), (
        "what Snakemake knows is kept for the next time"
    )
    assert not (tmp_path / ".snakemake").exists() and not (results / "network").exists()


def test_without_any_record_there_is_nothing_to_draw() -> None:
    with pytest.raises(InputError) as refused:
        preview.main(study="quickstart")
    assert (refused.value.code, refused.value.file) == ("no-record", "results/quickstart")
    assert not Path("results").exists()


def test_without_a_success_the_machine_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "machine_lock", lambda *_: pytest.fail("the machine was taken"))
    for run, status in (("a", "invalid"), ("b", "failed")):
        folder = Path("results/quickstart/runs") / run / "0123456789ab"
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(json.dumps(content(status=status, reason="no")))
    with pytest.raises(InputError) as refused:
        preview.main(study="quickstart")
    assert refused.value.code == "no-success"


def test_a_study_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(lambda: preview.main(study="nothing")) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and "config/studies/nothing.yaml" in printed


def test_results_of_another_site_or_unwritable_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bind_results(Path("results/quickstart"), "quickstart", load_site("local"))
    with pytest.raises(InputError) as refused:
        preview.main(study="quickstart", site="virtual")
    assert (refused.value.code, refused.value.got) == ("other-place", {"site": "local"})
    monkeypatch.setattr(os, "access", lambda path, mode, **_: mode != os.W_OK)
    with pytest.raises(InputError) as refused:
        preview.main(study="quickstart", site="local")
    assert (refused.value.code, refused.value.file) == ("not-writable", "results/quickstart")
