"""The device that computes nothing refuses what a GPU refuses, and finds races."""

from collections.abc import Callable
from typing import Any


def test_mixed_devices_and_dtypes_are_refused(on_fake_cuda: Callable[..., Any]) -> None:
    seen = on_fake_cuda("gpu.device_checked", "check_mixtures")
    assert seen.pop("devices") == ["cuda:0", "cpu", "cuda:1"]
    assert (seen.pop("fits"), seen.pop("read")) == ([2, 2], [1.0, [[1.0] * 3] * 2, 12.0])
    assert seen and None not in seen.values()


def test_accesses_without_order_are_races(on_fake_cuda: Callable[..., Any]) -> None:
    seen = on_fake_cuda("gpu.device_checked", "find_races")
    assert (seen["event"], seen["synchronize"]) == ([], [])
    assert seen["none"] == ["aten::mul on stream 0 after aten::add_ on stream 1"]
