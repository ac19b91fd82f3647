"""The locks as they are in git, and what a lock may not be."""

import re

import pytest

from common.errors import InputError
from common.files import CHECKOUT
from declared.environments import VARIANTS, locked, read
from environments.lock import check_lock, pinned_versions
from support.refusals import assert_refusal

HASH = "--hash=sha256:" + "0" * 64
LOCKS = sorted([CHECKOUT / "requirements.txt", *CHECKOUT.glob("containers/*/requirements.*.txt")])


def whole_lock(environment):
    """What a variant installs in all: a child's lock after its parent's."""
    above = whole_lock(environment.parent) if environment.parent else ""
    return above + environment.lock.read_text()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", locked())
def test_the_locks_are_hashed_and_hold_the_right_build(name, variant):
    environment = read(name, variant)
    check_lock(whole_lock(environment), environment.lock, variant)


@pytest.mark.parametrize("name", ["pytorch", "tensorflow"])
def test_cuda_locks_have_the_cuda_build_of_the_framework(name):
    cuda, cpu = (pinned_versions(read(name, variant).lock.read_text()) for variant in ("cuda", "cpu"))
    framework = {"pytorch": "torch", "tensorflow": "tensorflow"}[name]
    assert any(package.startswith("nvidia-cudnn") for package in cuda)
    assert any(package.startswith("nvidia-nccl") for package in cuda)
    assert len(cuda[framework]) == 1
    assert framework not in cpu


def test_both_variants_of_a_framework_have_one_version():
    (wheel,) = read("pytorch").wheels
    assert pinned_versions(read("pytorch", "cuda").lock.read_text())["torch"] == {
        wheel.version.removesuffix("+cpu")
    }
    cpu, cuda = (pinned_versions(read("tensorflow", variant).lock.read_text()) for variant in ("cpu", "cuda"))
    assert cpu["tensorflow-cpu"] == cuda["tensorflow"] == cpu["tf-keras"] == cuda["tf-keras"]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", [name for name in locked() if read(name).parent])
def test_a_child_installs_nothing_that_its_parent_has(name, variant):
    environment = read(name, variant)
    child, parent = (
        pinned_versions(locked_environment.lock.read_text())
        for locked_environment in (environment, environment.parent)
    )
    assert child
    assert not set(child) & set(parent)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_every_required_package_is_locked_without_a_registry(lock):
    text = lock.read_text()
    check_lock(text, lock)
    pinned = set(pinned_versions(text)) | {
        package for name in locked() for package in pinned_versions(read(name).lock.read_text())
    }
    for line in lock.with_suffix(".in").read_text().splitlines():
        if package := re.match(r"[A-Za-z0-9._-]+", line):
            assert package[0].lower() in pinned


@pytest.mark.parametrize(
    ("text", "variant", "code", "got"),
    [
        (f"--index-url https://host/simple\ntorch==2.13.0 {HASH}\n", None, "host-in-lock", None),
        (f"torch==2.13.0\nnumpy==2.4.6 {HASH}\n", None, "missing-hash", "torch==2.13.0"),
        (
            f"torch==2.13.0+cpu {HASH}\nnvidia-nccl-cu13==2.29.7 {HASH}\n",
            "cuda",
            "local-build",
            "torch==2.13.0+cpu",
        ),
        (f"torch==2.13.0 {HASH}\n", "cuda", "wrong-build", "cpu"),
        (f"torch==2.13.0 {HASH}\nnvidia-nccl-cu13==2.29.7 {HASH}\n", "cpu", "wrong-build", "cuda"),
    ],
)
def test_a_wrong_lock_is_refused(tmp_path, text, variant, code, got):
    with pytest.raises(InputError) as refused:
        check_lock(text, tmp_path / "lock.txt", variant)
    assert_refusal(refused.value, code, file=str(tmp_path / "lock.txt"))
