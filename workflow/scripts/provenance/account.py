"""Sum up from records what a study cost in time and disk, for those who want to repeat it."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from datasets.identity import data_folder
from declared.datasets import find_dataset
from plan.campaign import Campaign


@dataclass(frozen=True)
class Account:
    """Times in s, sizes in bytes; None if not known on this machine.

    Attributes:
        runs_s: Of all runs, one after the other.
        node_s: Of all runs, times their nodes.
        longest_s: Of the longest run.
        first: Start of the first run (UTC).
        last: End of the last run (UTC).
        data_bytes: Of the prepared data sets.
        environments_bytes: Of the built environments.
        records_bytes: Of what runs have written.
    """

    runs_s: float
    node_s: float
    longest_s: float
    first: str | None
    last: str | None
    data_bytes: int | None
    environments_bytes: int | None
    records_bytes: int | None


def count_costs(campaign: Campaign, runs: pd.DataFrame) -> Account:
    """Return the costs of a campaign with this table of runs."""
    wall = runs["wall_s"].fillna(0.0)
    is_local = campaign.published is None
    return Account(
        runs_s=float(wall.sum()),
        node_s=float((wall * runs["nodes"]).sum()),
        longest_s=float(wall.max()) if len(wall) else 0.0,
        first=extreme_time(runs["started_at"], last=False),
        last=extreme_time(runs["ended_at"], last=True),
        data_bytes=folder_bytes(
            data_folder(campaign.site, name) for name in dict.fromkeys(runs["dataset"]) if find_dataset(name)
        ),
        environments_bytes=folder_bytes(Path(stamp).parent for stamp in campaign.environments.values())
        if is_local
        else None,
        records_bytes=folder_bytes([campaign.results / "runs", campaign.results / "network"])
        if is_local
        else None,
    )


def extreme_time(times: pd.Series, last: bool) -> str | None:
    """Return the first or the last of some dates, None without any."""
    dates = times.dropna().astype(str)
    return None if dates.empty else (dates.max() if last else dates.min())


def folder_bytes(folders: Iterable[Path]) -> int | None:
    """Return the bytes in folders, None if none of them exists."""
    existing = [folder for folder in folders if folder.is_dir()]
    files = (file for folder in existing for file in folder.rglob("*"))
    return (
        sum(file.lstat().st_size for file in files if not file.is_symlink() and file.is_file())
        if existing
        else None
    )
