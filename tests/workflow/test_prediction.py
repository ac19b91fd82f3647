"""Given a study with Extra-P, when its environment cannot be built, then there is no table without it."""

import csv
import os
from pathlib import Path
from typing import Any

import pytest

from environments.identity import environment_stamp
from support.checkout import SMALL_STUDY, Checkout

CAMPAIGN = "tf-strategies-unshaped"
TABLE = f"results/{CAMPAIGN}/tables/prediction.csv"


def predict(checkout: Checkout, *arguments: str) -> Any:
    """Build the table of predictions from the records of a kept campaign."""
    settings = (f"study={CAMPAIGN}", "site=virtual-unshaped", f"records=docs/campaigns/{CAMPAIGN}")
    return checkout.snakemake(TABLE, *arguments, "--config", *settings)


def test_a_build_that_failed_is_tried_again_and_leaves_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real: Any
) -> None:
    real("extrap")  # in the user's cache, where the second try finds it
    checkout = Checkout(tmp_path / "checkout", SMALL_STUDY)
    checkout.edit(f"config/studies/{CAMPAIGN}.yaml", "design: full\n", "design: full\nextra_p: true\n")
    with monkeypatch.context() as offline:
        for name, value in {
            "RINGSIDE_CACHE": str(tmp_path / "cache"),
            "PIP_NO_INDEX": "1",
            "PIP_CONFIG_FILE": os.devnull,
        }.items():
            offline.setenv(name, value)
        offline.delenv("PIP_FIND_LINKS", raising=False)
        for _ in range(2):
            failed = predict(checkout)
            assert failed.status != 0 and failed.jobs == {"extra_p": 1, "prediction": 1}, failed.output
            assert "ringside: installing containers/extrap/requirements.cpu.txt failed: " in failed.output
            assert (
                not checkout.path(TABLE).exists()
                and not environment_stamp(tmp_path / "cache", "extrap").exists()
            )
    done = predict(checkout)
    assert done.status == 0 and done.jobs == {"prediction": 1}, done.output
    with open(checkout.path(TABLE)) as table:
        predicted = {
            row["left_out"]: int(row["predicted"])
            for row in csv.DictReader(table)
            if row["method"] == "Extra-P"
        }
    assert predicted and all(count > 0 for count in predicted.values())
    again = predict(checkout)
    assert again.status == 0 and again.jobs == {}, again.output
