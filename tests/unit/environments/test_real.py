"""The shipped environments, really built: what they hold is what was locked, recorded and asked for."""

import json
import re

import pytest
from packaging.requirements import Requirement

from common.python import python_abi
from common.shell import capture
from declared.environments import locked, read
from environments.identity import digest
from environments.lock import pinned_versions
from environments.wheels import recorded_sha256

REQUIREMENTS = """
import importlib.metadata as m, json
print(json.dumps([[d.metadata["Name"], d.requires or []] for d in m.distributions()]))
"""
FRAMEWORK = {
    "deepspeed": "deepspeed 0.19.8",
    "jax": "jax 0.10.2",
    "pytorch": "torch 2.13.0+cpu",
    "tensorflow": "tensorflow 2.21.0",
}


@pytest.fixture(params=locked())
def record(request, real):
    return real(request.param)


def in_environment(record, program):
    command = [record["python"]["executable"], "-c", program]
    return capture(command, check=True).stdout.strip()


def test_the_selftest_added_up_two_ranks(record):
    assert record["selftest"]["all_reduce"] == 3.0
    assert record["selftest"]["framework"] == FRAMEWORK[record["name"].removeprefix("horovod-")]


def test_the_packages_are_the_locked_ones(record):
    environment = read(record["name"])
    expected = pinned_versions(environment.lock.read_text()) | (
        pinned_versions(environment.parent.lock.read_text()) if environment.parent else {}
    )
    own = {"torch", "horovod", "deepspeed"}
    for name, version in record["packages"].items():
        assert name in own or version in expected[name], name
    assert record["digest"] == digest(environment)


def test_every_requirement_of_every_package_is_there(record):
    unsatisfied = set()
    for package, requirements in json.loads(in_environment(record, REQUIREMENTS)):
        for need in map(Requirement, requirements):
            version = record["packages"].get(re.sub("[-_.]+", "-", need.name).lower())
            is_needed = not need.marker or need.marker.evaluate({"extra": ""})
            if is_needed and not (version and need.specifier.contains(version, prereleases=True)):
                unsatisfied.add(f"{package} needs {need.name}")
    # What requirements.cpu.in leaves out on purpose: tensorflow-cpu is tensorflow.
    assert unsatisfied <= {"tf_keras needs tensorflow", "tf-keras needs tensorflow"}


def test_no_environment_sees_another_framework(record):
    frameworks = {"torch", "tensorflow-cpu", "tensorflow", "jax"} & set(record["packages"])
    assert len(frameworks) == 1


def test_torch_is_the_recorded_wheel(real):
    environment = read("pytorch")
    (wheel,) = environment.wheels
    assert real("pytorch")["wheels"]["torch"]["sha256"] == recorded_sha256(
        wheel, environment.description, python_abi()
    )


@pytest.mark.parametrize("name", ["horovod-pytorch", "horovod-tensorflow"])
def test_horovod_is_built_with_gloo_alone(real, name):
    record = real(name)
    module = {"horovod-pytorch": "torch", "horovod-tensorflow": "tensorflow"}[name]
    program = (
        f"import horovod.{module} as hvd; print(hvd.gloo_built(), hvd.mpi_built(), hvd.nccl_built(), "
        "hvd.cuda_built(), hvd.ddl_built(), hvd.ccl_built())"
    )
    assert in_environment(record, program).split()[-6:] == ["True", "False", "0", "False", "False", "False"]


def test_a_child_shares_its_parents_framework(real):
    path = in_environment(real("horovod-pytorch"), "import torch; print(torch.__file__)")
    assert path.startswith(real("pytorch")["prefixes"][0])
