"""Settings of trainers in records: what each rank reports, merged, and as a column of runs.csv."""

from common.redaction import HIDDEN
from declared.records import join_settings, split_settings
from runs.rank_summary import merge_settings


def test_settings_of_different_ranks_are_all_listed() -> None:
    gpu, cpu = {"compiler": "none", "threads": "4"}, {"threads": "2", "input pipeline": "on demand"}
    merged = merge_settings([gpu, cpu, gpu])
    assert merged == {"compiler": "none", "threads": "4; 2", "input pipeline": "on demand"}
    assert merge_settings([{"source": "https://me:secret@host"}]) == {"source": f"https://{HIDDEN}@host"}


def test_settings_survive_runs_csv() -> None:
    settings = {"optimizer": "torch.optim.SGD: foreach", "buckets": "25 MiB; views"}
    assert split_settings(str(join_settings(settings))) == settings
    assert join_settings({}) is None
