"""Wheels: recorded hashes, patches that fit exactly, compilers that are there, kept files that are still the
same.
"""

import pytest

from common.errors import InputError
from declared.environments import read
from environments import wheels
from environments.compiling import apply_patches, build_variables
from environments.wheels import check_needs, recorded_sha256, wheel_key, wheel_parts
from support.refusals import assert_refusal


@pytest.fixture
def source(tiny):
    return read("over", containers=tiny.containers).sources[0]


def test_an_unrecorded_python_is_told_what_to_do():
    environment = read("pytorch")
    (wheel,) = environment.wheels
    with pytest.raises(InputError) as refused:
        recorded_sha256(wheel, environment.description, "cp313-linux_x86_64")
    file = "containers/pytorch/environment.yaml"
    assert_refusal(refused.value, "missing-hash", file=file)


@pytest.mark.parametrize(("content", "count"), [("x = 2\n", 0), ("x = 1\nx = 1\n", 2), (None, 0)])
def test_a_patch_that_does_not_fit_exactly_once_is_refused(tmp_path, content, count):
    if content is not None:
        (tmp_path / "a.txt").write_text(content)
    with pytest.raises(ValueError, match=f"'x = 1' stands {count} times in a.txt; expected exactly once"):
        apply_patches(tmp_path, [{"file": "a.txt", "find": "x = 1", "replace": "x = 3"}])


def test_missing_compiler_is_named_with_its_debian_package(monkeypatch, tmp_path):
    source = read("horovod-pytorch").sources[0]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError) as refused:
        check_needs(source)
    needs = ["horovod 0.28.1", "apt-get install g++ gcc make"]
    assert_refusal(refused.value, "not-installed", "", needs)
    assert "setup" not in refused.value.hint


def test_a_build_sees_our_flags_and_nothing_else_of_the_machine(source, tmp_path, monkeypatch):
    monkeypatch.setenv("CXXFLAGS", "-O0")
    monkeypatch.setenv("HOROVOD_WITH_MPI", "1")
    seen = build_variables(source.flags, tmp_path / "tools" / "bin", tmp_path / "parent")
    assert not {"CXXFLAGS", "HOROVOD_WITH_MPI", "PYTHONPATH"} & set(seen)
    assert seen["WHERE"].startswith(str(tmp_path / "parent"))
    assert seen["PATH"].startswith(str(tmp_path / "tools" / "bin"))
    assert seen["MAKEFLAGS"].startswith("-j")


def test_wheel_key_follows_python_compiler_flags_and_source(tiny, source, monkeypatch):
    environment = read("over", containers=tiny.containers)
    packages = {"tiny-package": "1.0"}
    base = wheel_key(wheel_parts(source, environment, packages))
    assert base == wheel_key(wheel_parts(source, environment, {**packages, "unrelated": "2"}))
    seen = [base, wheel_key(wheel_parts(source, environment, {"tiny-package": "1.1"}))]
    for key, value in {"sha256": "0" * 64, "flags": {"A": "1"}, "patches": ()}.items():
        changed = type(source)(**{**vars(source), key: value})
        seen.append(wheel_key(wheel_parts(changed, environment, packages)))
    monkeypatch.setattr(wheels, "program_version", lambda program: f"{program} 99.0")
    seen.append(wheel_key(wheel_parts(source, environment, packages)))
    monkeypatch.setattr(wheels, "python_abi", lambda: "cp399-linux_x86_64")
    seen.append(wheel_key(wheel_parts(source, environment, packages)))
    assert len(set(seen)) == len(seen)


def test_a_parent_without_the_framework_is_refused(tiny, source):
    with pytest.raises(InputError) as refused:
        wheel_parts(source, read("over", containers=tiny.containers), {"numpy": "2.4.6"})
    assert_refusal(refused.value, "missing-package", "sources.built_against")
