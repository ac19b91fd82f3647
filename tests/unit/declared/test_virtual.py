"""Settings of a virtual cluster; tests/cluster tests which rates, shares and sizes are refused."""

import json
from typing import Any

import pytest

from common.errors import InputError
from declared.virtual import Settings, from_json, parse
from support.refusals import assert_refusal


def test_settings_are_what_was_written_and_survive_being_noted() -> None:
    settings = parse("2", "100mbit", "0.5", "4G", accounting=False, scheduler="oar")
    assert settings == Settings(2, 12.5e6, 0.5, 4 << 30, False, "oar") == from_json(vars(settings))
    assert settings.described() == "2 nodes, 100 Mbit/s, 0.5 core each, OAR"
    before = {name: value for name, value in vars(settings).items() if name != "scheduler"}
    assert from_json(before).scheduler == "slurm", "noted before there was a choice"


def test_nodes_may_be_heterogeneous() -> None:
    settings = parse("3", "none", "0.9,0.6,0.3", "none", accounting=False)
    assert (settings.cpu_share, settings.cpu_shares) == (None, (0.9, 0.6, 0.3))
    assert [settings.share_of(node) for node in (1, 2, 3)] == [0.9, 0.6, 0.3]
    assert settings == from_json(json.loads(json.dumps(vars(settings))))
    assert settings.described() == "3 nodes, unshaped links, 0.9, 0.6, 0.3 core, Slurm"
    assert parse("2", "none", "0.6,0.6", "none", accounting=False) == parse(
        "2", "none", "0.6", "none", accounting=False
    )
    for shares in ("0.9,0.6", "0.9,none,0.3"):
        with pytest.raises(InputError) as refused:
            parse("3", "none", shares, "none", accounting=False)
        assert_refusal(refused.value, "wrong-count", "", [3], file="--cpu", got=shares)


@pytest.mark.parametrize(
    ("gpus", "expected", "described"),
    [
        ("none", (0, ""), "0.6 core each, Slurm"),
        ("4", (4, ""), "0.6 core each, 4 GPUs without a driver each, Slurm"),
        ("a100_3g.20gb:8", (8, "a100_3g.20gb"), "8 a100_3g.20gb GPUs without a driver each, Slurm"),
    ],
)
def test_nodes_may_have_gpus(gpus: str, expected: tuple[int, str], described: str) -> None:
    settings = parse("2", "none", "0.6", "none", accounting=False, gpus=gpus)
    assert (settings.gpus_per_node, settings.gpu_type) == expected
    assert settings.described().endswith(described)
    assert settings == from_json(json.loads(json.dumps(vars(settings))))


@pytest.mark.parametrize(
    ("options", "code", "file"),
    [
        ({"gpus": "0"}, "out-of-range", "--gpus"),
        ({"gpus": "a100"}, "out-of-range", "--gpus"),
        ({"gpus": "4", "scheduler": "oar"}, "conflicting-keys", "--gpus"),
        ({"constrain_devices": True}, "missing-key", "--constrain-devices"),
        ({"scheduler": "oarr"}, "unknown-name", "--scheduler"),
        ({"scheduler": "oar", "accounting": True}, "conflicting-keys", "--accounting"),
    ],
)
def test_option_that_cannot_be_is_refused(options: dict[str, Any], code: str, file: str) -> None:
    with pytest.raises(InputError) as refused:
        parse("2", "1gbit", "0.6", "6G", **{"accounting": False, **options})
    assert (refused.value.code, refused.value.file) == (code, file)
