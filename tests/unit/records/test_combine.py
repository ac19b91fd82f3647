"""A study of several campaigns has their runs in one table, each campaign a level of a factor."""

from pathlib import Path

import pandas as pd
import pytest
import yaml

from analysis import effects
from analysis.cell_means import estimate_means
from analysis.records import read_runs, read_timing_runs
from common.errors import InputError
from common.files import CHECKOUT
from common.tables import read_table
from declared.imported import CAMPAIGN, IMPORT_FILE, UNSTATED
from declared.study import Study, load_study
from plan.campaign import load_campaign
from records import combine
from support.measured_elsewhere import DLPERF, MLPERF, copy_of
from support.refusals import assert_refusal

CAMPAIGNS = CHECKOUT / "docs" / "campaigns"
TWICE = [str(CAMPAIGNS / name) for name in ("prediction-virtual", "prediction-virtual-again")]


def study_of(folder: Path, campaigns: list[str], **keys: object) -> Study:
    written = {"title": "t", "question": "q", "campaigns": campaigns, **keys}
    (folder / "both.yaml").write_text(yaml.safe_dump(written))
    return load_study("both", folder)


@pytest.fixture(scope="module")
def twice(tmp_path_factory) -> tuple[Study, pd.DataFrame, pd.DataFrame]:
    """One study that was measured twice: its runs and epochs, written and read again."""
    folder = tmp_path_factory.mktemp("twice")
    study = study_of(folder, TWICE)
    tables = combine.combine(study.imported, "both")
    combine.write_tables(tables, folder / "runs.csv", folder / "epochs.csv")
    return study, read_runs(folder / "runs.csv"), read_table(folder / "epochs.csv", "epochs")


def test_cells_are_those_of_each_campaign(twice) -> None:
    study, runs, epochs = twice
    sizes = [len(read_runs(Path(folder) / "runs.csv")) for folder in TWICE]
    assert runs[CAMPAIGN].value_counts().to_dict() == dict(
        zip(("prediction-virtual", "prediction-virtual-again"), sizes, strict=True)
    )
    assert set(runs["study"]) == {"both"}
    assert runs["run_id"].is_unique and len(runs) == sum(sizes) == study.imported.n_rows
    assert set(runs["cell"]) == {row["cell"] for row in runs.to_dict("records")}
    assert runs["cell"].nunique() == len(study.cells()) == 78
    assert set(epochs["run_id"]) <= set(runs["run_id"]) and epochs["run_id"].nunique() == len(runs)
    assert study.answer_factors == (CAMPAIGN,) and study.varied[-1] == CAMPAIGN


def test_campaigns_share_no_block(twice, tmp_path: Path) -> None:
    _, runs, _ = twice
    data = effects.build_rows(runs, margin=0.05)
    across = data[data["factor"] == CAMPAIGN]
    assert len(across) == 39 and (across["within_blocks"] == 0).all()
    within = data.loc[data["factor"] == "nodes", "within_blocks"]
    assert (within == 3).sum() == len(within) - 1, "one pair was measured in different sessions"
    copy = copy_of(Path(TWICE[0]), tmp_path / "copy")
    same_sessions, _ = combine.combine(study_of(tmp_path, [TWICE[0], str(copy)]).imported, "both")
    assert (same_sessions.groupby("session")[CAMPAIGN].nunique() == 1).all()


def test_means_are_those_of_the_campaigns(twice) -> None:
    _, runs, _ = twice
    for folder in TWICE:
        own = estimate_means(read_timing_runs(Path(folder) / "runs.csv")).cell_statistics["mean"]
        combined = estimate_means(runs).cell_statistics["mean"]
        names = [f"{cell}.campaign={Path(folder).name}" for cell in own.index]
        assert combined[names].to_numpy() == pytest.approx(own.to_numpy())


def test_factor_of_one_campaign_is_unstated_in_the_other(tmp_path: Path) -> None:
    folder = copy_of(DLPERF, tmp_path / "with-kernel")
    runs = pd.read_csv(folder / "runs.csv").assign(custom_kernel="fast")
    runs.to_csv(folder / "runs.csv", index=False)
    study = study_of(tmp_path, [str(folder), str(MLPERF)])
    combined, _ = combine.combine(study.imported, "both")
    kernels = combined.groupby(CAMPAIGN)["custom_kernel"].unique()
    assert {name: list(levels) for name, levels in kernels.items()} == {
        "with-kernel": ["fast"],
        "mlperf": [UNSTATED],
    }
    assert study.factors["custom_kernel"] == ["fast", UNSTATED]
    assert {"resnet-50"} < set(study.factors["model"])


def test_sources_and_licences_are_kept(tmp_path: Path) -> None:
    imported = study_of(tmp_path, [str(DLPERF), TWICE[0]]).imported
    stated = imported.description.stated
    assert "Apache-2.0" in stated.licence and UNSTATED in stated.licence
    names = [(file.parent.name, file.name) for file in imported.source_files]
    assert ("dlperf", IMPORT_FILE) in names and ("prediction-virtual", "epochs.csv") in names
    assert len(names) == 5


def test_shipped_study_is_planned_without_its_tables() -> None:
    campaign = load_campaign({"study": "prediction-twice", "site": "local", "records": "campaign"})
    assert campaign.is_combined and campaign.mode == "published"
    assert campaign.runs_csv == Path("results/prediction-twice/campaigns/runs.csv")
    assert not campaign.study.traits().planned_here


@pytest.mark.parametrize(
    ("campaigns", "code", "key"),
    [
        ([TWICE[0], "no-such-study"], "missing-file", "campaigns.1"),
        ([TWICE[0], f"{TWICE[0]}/."], "duplicate", "campaigns.1"),
        ([TWICE[0]], "too-few", "campaigns"),
    ],
)
def test_wrong_campaigns_are_refused(tmp_path: Path, campaigns: list[str], code: str, key: str) -> None:
    with pytest.raises(InputError) as refused:
        study_of(tmp_path, campaigns)
    assert_refusal(refused.value, code, key)


def test_campaign_without_epochs_is_refused(tmp_path: Path) -> None:
    folder = copy_of(DLPERF, tmp_path / "copy")
    (folder / "epochs.csv").unlink()
    with pytest.raises(InputError) as refused:
        study_of(tmp_path, [TWICE[0], str(folder)])
    assert_refusal(refused.value, "missing-file", "campaigns.1")


def test_study_does_not_combine_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("declared.imported.CHECKOUT", tmp_path)
    own = tmp_path / "results" / "both"
    own.mkdir(parents=True)
    for name in ("runs.csv", "epochs.csv"):
        (own / name).write_bytes((Path(TWICE[0]) / name).read_bytes())
    for name in ("both", str(own)):
        with pytest.raises(InputError) as refused:
            study_of(tmp_path, [TWICE[1], name])
        assert_refusal(refused.value, "conflicting-keys", "campaigns.1")


def test_combined_campaigns_plan_no_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        study_of(tmp_path, TWICE, replicates=3)
    assert_refusal(refused.value, "unknown-key", "replicates")
