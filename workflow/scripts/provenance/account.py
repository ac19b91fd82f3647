"""What a study cost, from its records: time and disk, for those who want to make it again."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from datasets.identity import data_folder
from plan.campaign import Campaign


@dataclass(frozen=True)
class Account:
    """Times in s, sizes in bytes; None where it is not known on this machine.

    `runs_s`: of all runs, one after the other; `node_s`: times their nodes; `longest_s`: of one run; `first`, `last`: when the first
    began and the last ended (UTC); `data_bytes`: of the prepared data sets; `environments_bytes`: of what was built;
    `records_bytes`: of what runs have left.
    """

    runs_s: float
    node_s: float
    longest_s: float
    first: str | None
    last: str | None
    data_bytes: int | None
    environments_bytes: int | None
    records_bytes: int | None


def account(campaign: Campaign, runs: pd.DataFrame) -> Account:
    """What the runs took; `runs`: the table of runs."""
    wall = runs["wall_s"].fillna(0.0)
    here = campaign.published is None
    return Account(
        runs_s=float(wall.sum()),
        node_s=float((wall * runs["nodes"]).sum()),
        longest_s=float(wall.max()) if len(wall) else 0.0,
        first=_end(runs["started_at"], last=False),
        last=_end(runs["ended_at"], last=True),
        data_bytes=_sizes(data_folder(campaign.site, name) for name in dict.fromkeys(runs["dataset"])),
        environments_bytes=_sizes(Path(stamp).parent for stamp in campaign.environments.values()) if here else None,
        records_bytes=_sizes([campaign.results / "runs", campaign.results / "network"]) if here else None,
    )


def _end(times: pd.Series, last: bool) -> str | None:
    known = times.dropna().astype(str)
    return None if known.empty else (known.max() if last else known.min())


def _sizes(folders: Iterable[Path]) -> int | None:
    """Bytes in folders together; None where none of them is here."""
    there = [folder for folder in folders if folder.is_dir()]
    files = (file for folder in there for file in folder.rglob("*"))
    return sum(file.lstat().st_size for file in files if not file.is_symlink() and file.is_file()) if there else None
