"""The table of settings: differences between frameworks, what they agree in, and records without settings."""

from pathlib import Path

import numpy as np

from analysis import settings, tables
from common.notes import find_note
from declared.records import join_settings

FUSED, UNFUSED = "flash attention", "two matrix products and a softmax"


def configured(runs):
    """Fill in settings: attention differs between frameworks and batch sizes, threads in nothing."""
    is_torch = runs["framework"].str.contains("pytorch")
    attention = np.where(is_torch & (runs["batch_size"] < 64), FUSED, UNFUSED)
    runs["settings"] = [
        join_settings({"threads": "2", "attention": kernel, **({"static graph": "yes"} if torch else {})})
        for torch, kernel in zip(is_torch, attention, strict=True)
    ]
    runs.loc[runs["status"] != "ok", "settings"] = "threads: 99"
    return runs


def test_settings_in_which_frameworks_differ_are_rows(runs):
    table = settings.table(configured(runs))
    assert list(table.display["setting"]) == ["attention", "static graph"]
    assert set(table.display.columns[1:]) == set(runs["framework"])
    attention, static = (table.display.iloc[i] for i in (0, 1))
    assert attention["tensorflow-single"] == UNFUSED and static["tensorflow-single"] == tables.DASH
    assert attention["pytorch-ddp"] == f"{FUSED} (batch size 16, 32); {UNFUSED} (batch size 64)"
    note = find_note(table.notes, "settings-in-common")
    assert (
        note.facts["settings"] == {"threads": "2", settings.TRANSPORT: "gloo over tcp lo"}
        and note in table.below
    )
    data = table.data
    assert list(data) == list(settings.COLUMNS) and list(data["differs"].drop_duplicates()) == [True, False]
    assert settings.names_differing(runs) == ["attention", "static graph"]


def test_values_that_follow_no_factor_are_all_listed(runs):
    number = runs["replicate"].where(runs["batch_size"] > 16, 1).astype(str)
    runs["settings"] = [join_settings({"threads": threads}) for threads in number]
    note = find_note(settings.table(runs).notes, "settings-in-common")
    assert note.facts["settings"]["threads"].split("; ") == sorted(runs["replicate"].astype(str).unique())


def test_records_without_settings_have_no_rows(runs):
    assert runs["settings"].isna().all()
    table = settings.table(runs)
    assert table.data.empty and table.notes == [settings.NO_SETTINGS]


def test_a_table_of_settings_can_be_read_again(runs, tmp_path: Path):
    table = settings.table(configured(runs))
    tables.write(table, tmp_path / "settings")
    again = tables.read(tmp_path / "settings")
    assert again.display.equals(table.display) and again.data["value"].equals(table.data["value"])
