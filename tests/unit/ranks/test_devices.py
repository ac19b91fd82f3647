"""A rank trains on its own accelerators, whether its process sees only these or all of its node.

Each library is asked with a stubbed count, in its own environment.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.program_sources import SCRIPTS
from ranks.worker import devices
from ranks.worker.devices import DeviceCountError, device_indices, node_accelerators, visible_names
from support.programs import printed
from support.ranks import on_ranks

VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def context_of(local_rank: int, n_ranks: int = 4, replicas: int = 1, **fields: Any) -> Any:
    """Return the fields of a rank's context that the choice of accelerators needs."""
    spec = {"device": "cuda", "replicas_per_rank": replicas, "ranks_per_node": n_ranks}
    accelerators = list(range(n_ranks * replicas))
    return SimpleNamespace(
        spec=spec, rank=local_rank, local_rank=local_rank, accelerators=accelerators, **fields
    )


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing hides an accelerator."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("replicas", "n_visible", "expected"),
    [(1, 1, [0]), (1, 4, [2]), (1, 8, [2]), (2, 2, [0, 1]), (2, 8, [4, 5])],
    ids=["own", "all", "more", "own two", "two of all"],
)
def test_a_rank_has_indices_of_its_own(replicas: int, n_visible: int, expected: list[int]) -> None:
    assert device_indices(context_of(2, replicas=replicas), n_visible) == expected


@pytest.mark.parametrize(
    ("visible", "pattern"),
    [
        (None, r"sees no accelerator, .*\(none is set\).*driver"),
        ("0,1,2,3", r"sees no accelerator, .*\(CUDA_VISIBLE_DEVICES=0,1,2,3\).*driver"),
        ("", r"sees 0 accelerators; expected 1 .* 4 .*CUDA_VIS"),
    ],
)
def test_silent_driver_is_told_from_hidden_accelerators(
    visible: str | None, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(DeviceCountError, match=pattern):
        device_indices(context_of(2), 0)


@pytest.mark.parametrize("n_visible", [2, 3])
def test_any_other_count_is_an_error(n_visible: int) -> None:
    with pytest.raises(DeviceCountError, match=rf"sees {n_visible} accelerators; expected 1 .* 4 .*CUDA_VIS"):
        device_indices(context_of(2), n_visible)


@pytest.mark.parametrize(
    ("vendor", "variables", "expected"),
    [
        ("nvidia", {}, None),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "2, 3"}, ["2", "3"]),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "GPU-3"}, ["GPU-3"]),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": ""}, []),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "1,-1,0"}, ["1"]),
        ("nvidia", {"ROCR_VISIBLE_DEVICES": "1"}, None),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, ["MIG-a"]),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "3,GPU-a,4"}, ["3"]),
        ("amd", {"ROCR_VISIBLE_DEVICES": "4,6"}, ["4", "6"]),
        ("amd", {"HIP_VISIBLE_DEVICES": "1"}, ["1"]),
        ("amd", {"ROCR_VISIBLE_DEVICES": "4,6", "HIP_VISIBLE_DEVICES": "1"}, ["6"]),
        ("amd", {"ROCR_VISIBLE_DEVICES": "4,6", "CUDA_VISIBLE_DEVICES": "1,0"}, ["6", "4"]),
        ("amd", {"ROCR_VISIBLE_DEVICES": "4,6", "HIP_VISIBLE_DEVICES": "5"}, []),
        ("amd", {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, ["0"]),
    ],
)
def test_variables_hide_accelerators_as_the_vendors_define(
    vendor: str, variables: dict[str, str], expected: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "vendor", lambda: vendor)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert visible_names() == expected


@pytest.mark.parametrize(
    ("drivers", "expected"),
    [([], "nvidia"), (["nvidia"], "nvidia"), (["kfd"], "amd"), (["nvidia", "kfd"], "nvidia")],
)
def test_vendor_is_that_of_the_driver(
    drivers: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "NVIDIA_DRIVER", tmp_path / "nvidia")
    monkeypatch.setattr(devices, "AMD_DRIVER", tmp_path / "kfd")
    for name in drivers:
        (tmp_path / name).mkdir()
    assert devices.vendor() == expected


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, ["0", "1"]), ("5,7", ["5", "7"]), ("3", ["3", "3"])],
    ids=["all", "all of a job", "each its own"],
)
def test_a_node_knows_the_accelerators_of_all_its_ranks(
    visible: str | None, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    by_rank = on_ranks(2, tmp_path, lambda group: node_accelerators(context_of(group.rank, 2, group=group)))
    assert by_rank == [expected, expected]


DRIVER = """
int cuInit(unsigned flags) { return flags; }
int cuDeviceGetCount(int *count) { *count = 3; return 0; }
int broken(int *count) { *count = 9; return 100; }
"""


def test_accelerators_are_counted_by_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "libcuda.so.1"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=DRIVER, text=True, check=True
    )
    for driver, expected in (
        ((str(library), "cuInit", "cuDeviceGetCount"), 3),
        ((str(library), "cuInit", "broken"), 0),
        ((str(tmp_path / "missing.so"), "cuInit", "cuDeviceGetCount"), 0),
    ):
        monkeypatch.setattr(devices, "DRIVERS", {"nvidia": driver})
        assert devices.count_visible() == expected


# Devices of each library on the third of four ranks of a node, by the number of accelerators that it sees.
COUNTS = """
import json
from types import SimpleNamespace

outcomes = {}
for n_visible in (1, 4, 2):
    spec = {"device": "cuda", "replicas_per_rank": 1, "ranks_per_node": 4}
    rank = SimpleNamespace(
        spec=spec, levels={}, cores=1, rank=2, local_rank=2, accelerators=[0, 1, 2, 3], folder=None
    )
    try:
        outcomes[n_visible] = choose(rank, n_visible)
    except Exception as error:
        outcomes[n_visible] = type(error).__name__
for level in ("convolutions", "none"):
    rank.levels = {"autotune": level}
    outcomes[level] = times_algorithms(rank)
print(json.dumps(outcomes))
"""
PYTORCH = """
import torch
from ranks.libraries.pytorch.device import configure_library

torch.set_num_interop_threads = lambda _: None  # It can be called only once.

def times_algorithms(rank):
    torch.cuda.device_count, torch.cuda.set_device = lambda: 1, lambda _: None
    configure_library(rank)
    assert torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()  # of unfused attention
    return torch.backends.cudnn.benchmark

def choose(rank, n_visible):
    torch.cuda.device_count, torch.cuda.set_device = lambda: n_visible, lambda _: None
    return configure_library(rank).index
"""
TENSORFLOW = """
import os
import runpy
import tensorflow as tf
from ranks.worker.phases import Untraced

CommunicationOptions = tf.distribute.experimental.CommunicationOptions
tf.distribute.experimental.CommunicationOptions = lambda **named: calls.append(named) or CommunicationOptions(**named)
tf.config.experimental.get_device_details = lambda gpu: {{}}
tf.config.experimental.set_memory_growth = lambda gpu, grows: calls.append((gpu, grows))

class Created(Exception):
    pass

def create(*devices, **options):
    calls.append((devices, options))
    raise Created

tf.distribute.MultiWorkerMirroredStrategy = tf.distribute.MirroredStrategy = create

def times_algorithms(rank):
    choose(rank, 1)
    variables = {{name: os.environ.get(name, "") for name in ("TF_CUDNN_USE_AUTOTUNE", "XLA_FLAGS")}}
    flags = set(variables["XLA_FLAGS"].split())  # Each of the two trainers adds its own.
    is_off = variables["TF_CUDNN_USE_AUTOTUNE"] == "0" and flags == {{"--xla_gpu_autotune_level=0"}}
    assert is_off or not any(variables.values()), variables
    return not is_off

def choose(rank, n_visible):
    tf.config.list_physical_devices = lambda kind: list(range(n_visible))
    tf.config.set_visible_devices = lambda mine, kind: calls.extend(mine)
    rank.phases, rank.levels = Untraced(), {{**rank.levels, "precision": "amp"}}
    for name in ("multiworker", "mirrored"):
        calls.clear()
        try:
            runpy.run_path("{adapters}/tensorflow-" + name + "/adapter.py")["trainer"](rank)
        except Created:
            # Memory grows on the rank's GPU only, and before a strategy initializes it.
            assert calls[1] == (calls[0], True), calls
        if name == "multiworker":
            (chosen,) = [call["implementation"].name for call in calls if isinstance(call, dict)]
            assert chosen == "NCCL"
        else:
            ((devices,), options) = calls[-1]
            assert devices == ["GPU:0"], devices
            assert type(options["cross_device_ops"]).__name__ == "NcclAllReduce"
    return calls[0]

calls = []
"""
JAX = """
import os
import jax
from ranks.libraries import xla
from ranks.libraries.jax import device

def times_algorithms(rank):
    os.environ["XLA_FLAGS"] = "--of-the-site"
    flags = xla.variables(rank).get("XLA_FLAGS")
    assert flags in (None, "--of-the-site --xla_gpu_autotune_level=0")
    return flags is None

jax.distributed.initialize = lambda *given, **named: groups.append(given)
groups = []

def choose(rank, n_visible):
    device.count_visible = lambda: n_visible
    for vendor, platform in (("amd", "rocm"), ("nvidia", "cuda")):
        device.vendor = lambda: vendor
        device.configure_library(rank)
        assert jax.config.jax_platforms == f"{platform},cpu"
    visible = {jax.config._read(f"jax_{platform}_visible_devices") for platform in ("cuda", "rocm")}
    (index,) = visible
    rank.levels = {"precision": "tf32"}
    device.configure_library(rank)
    assert jax.config.jax_default_matmul_precision == "tensorfloat32"
    assert xla.variables(rank)["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    rank.ranks, rank.group = 4, SimpleNamespace(address="127.0.0.1", broadcast=lambda value: value)
    assert device.join(rank) == "nccl"
    assert groups[-1][1:] == (4, 2, [int(index)])  # ranks, this rank, its devices
    return int(index)
"""
ADAPTERS = SCRIPTS / "ranks" / "frameworks"


@pytest.mark.training
@pytest.mark.parametrize(
    ("environment", "library"),
    [
        ("pytorch", PYTORCH),
        pytest.param("tensorflow", TENSORFLOW.format(adapters=ADAPTERS), marks=pytest.mark.every_framework),
        ("jax", JAX),
    ],
    ids=["pytorch", "tensorflow", "jax"],
)
def test_a_library_gets_what_the_rank_owns(
    environment: str, library: str, real: Callable[[str], Any]
) -> None:
    """The rank sees one accelerator, all four, or two, and times algorithms of convolutions or not."""
    outcomes = json.loads(printed(real(environment), "-c", library + COUNTS).splitlines()[-1])
    assert outcomes == {"1": 0, "4": 2, "2": "DeviceCountError", "convolutions": True, "none": False}
