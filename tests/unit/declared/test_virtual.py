"""What a virtual cluster is made of, as a person writes it; that rates, shares and sizes are refused is in tests/cluster."""

import pytest

from common.errors import InputError
from declared.virtual import Settings, from_json, parse


def test_settings_are_what_was_written_and_survive_being_noted() -> None:
    settings = parse("2", "100mbit", "0.5", "4G", accounting=False, scheduler="oar")
    assert settings == Settings(2, 12.5e6, 0.5, 4 << 30, False, "oar") == from_json(vars(settings))
    assert settings.described() == "2 nodes, 100 Mbit/s, 0.5 core each, OAR"
    before = {name: value for name, value in vars(settings).items() if name != "scheduler"}
    assert from_json(before).scheduler == "slurm", "noted before there was a choice"


@pytest.mark.parametrize(
    ("scheduler", "accounting", "said"),
    [
        ("oarr", False, "SCHEDULER=oarr: expected slurm or oar"),
        ("", False, "SCHEDULER=: expected slurm or oar"),
        ("oar", True, "--accounting: is Slurm's; take it out, or take SCHEDULER=slurm instead of oar"),
    ],
)
def test_a_scheduler_that_there_is_not_is_refused(scheduler: str, accounting: bool, said: str) -> None:
    with pytest.raises(InputError) as refused:
        parse("3", "1gbit", "0.6", "6G", accounting, scheduler)
    assert str(refused.value) == said
