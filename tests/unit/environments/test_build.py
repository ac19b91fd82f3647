"""Whole builds of two tiny environments: whatever state the cache is in, the result is the same and
tested.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.errors import InputError
from common.files import CHECKOUT
from common.options import run_program
from common.shell import capture
from declared.environments import VENV, read
from environments.build import build, main
from environments.identity import environment_stamp
from support.refusals import assert_refusal
from support.tiny_environments import SELFTEST, sha256, tiny_wheel


def build_tiny(tiny, name="over"):
    return build(read(name, containers=tiny.containers), tiny.cache)


def stamp(tiny, name="over"):
    return environment_stamp(tiny.cache, name, containers=tiny.containers)


PROGRAM = """
import sys
from pathlib import Path
from common.errors import exit_status
from environments.build import build
from declared.environments import read
sys.exit(exit_status(lambda: build(read(sys.argv[1], containers=Path(sys.argv[2])), Path(sys.argv[3]))))
"""


def start_program(tiny, name="over"):
    command = [sys.executable, "-c", PROGRAM, name, tiny.containers, tiny.cache]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT / "workflow" / "scripts")}
    return subprocess.Popen(list(map(str, command)), env=env, stderr=subprocess.PIPE, text=True)


def test_empty_cache_gets_parent_wheel_and_tested_child(filled):
    record = build_tiny(filled)
    assert json.loads(stamp(filled).read_text()) == record
    assert record["packages"] == {"leaf": "1.0", "tiny-package": "1.0"}
    assert record["parent"]["digest"] == build_tiny(filled, "base")["digest"]
    assert record["variables"] == {"GREETING": "hello"}
    assert record["selftest"]["all_reduce"] == 3.0
    assert record["selftest"]["ranks"] == 2
    program = "import leaf, tiny_package; print(leaf.answer, leaf.built_with['WHERE'])"
    done = capture([record["python"]["executable"], "-c", program], check=True)
    answer, built_with = done.stdout.split()
    assert answer == "patched"
    assert built_with.startswith(str(stamp(filled, "base").parent))


@pytest.mark.parametrize(
    "variable", ["PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV"]
)
def test_places_of_the_callers_pip_are_not_used(tiny, tmp_path, monkeypatch, variable):
    is_switch = variable in ("PIP_USER", "PIP_REQUIRE_VIRTUALENV")
    monkeypatch.setenv(variable, "1" if is_switch else str(tmp_path / "elsewhere"))
    assert build_tiny(tiny, "base")["packages"] == {"tiny-package": "1.0"}
    assert not (tmp_path / "elsewhere").exists()


def test_the_log_of_a_failed_build_is_kept(tiny):
    lock = tiny.containers / "base" / "requirements.cpu.txt"
    lock_text = lock.read_text()
    lock.write_text(lock_text.replace("sha256:", "sha256:0"))
    with pytest.raises(InputError):
        build_tiny(tiny, "base")
    (log,) = tiny.cache.rglob("build.log")
    before = log.read_text()
    with pytest.raises(InputError):
        build_tiny(tiny, "base")
    assert log.read_text().startswith(before) and len(log.read_text()) > len(before)


def test_a_second_build_makes_nothing(filled):
    before = {path: path.stat().st_mtime_ns for path in filled.cache.rglob("*")}
    build_tiny(filled)
    assert {path: path.stat().st_mtime_ns for path in filled.cache.rglob("*")} == before


def test_incomplete_environment_is_rebuilt_from_the_kept_wheel(filled):
    record = build_tiny(filled)
    folder = stamp(filled).parent
    stamp(filled).unlink()
    (folder / "whole.json").unlink()
    (leaf,) = folder.rglob("leaf.py")
    leaf.with_name("left_over.py").write_text("")
    leaf.write_text("answer = 'half'\n")
    again = build_tiny(filled)
    assert again["packages"] == record["packages"]
    assert "patched" in leaf.read_text()
    assert not leaf.with_name("left_over.py").exists()
    assert filled.builds == 1


def test_a_removed_stamp_is_written_again_without_a_build(filled):
    record = build_tiny(filled)
    stamp(filled).unlink()
    shutil.rmtree(filled.links)
    assert build_tiny(filled) == record


def test_an_environment_whose_interpreter_is_gone_is_made_again(filled):
    record = build_tiny(filled, "base")
    stamp(filled, "base").unlink()
    Path(record["python"]["executable"]).unlink()
    build_tiny(filled, "base")
    assert (
        subprocess.run([record["python"]["executable"], "-c", "import tiny_package"], check=False).returncode
        == 0
    )


def test_a_kept_wheel_with_another_sha256_is_refused(filled):
    shutil.rmtree(stamp(filled).parent)
    (wheel,) = filled.cache.glob("wheels/*/*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(InputError) as refused:
        build_tiny(filled)
    assert_refusal(refused.value, "checksum-mismatch", "", [wheel.parent], file=str(wheel))
    assert not stamp(filled).exists()


def test_a_registry_wheel_with_another_sha256_is_refused(tiny):
    wheel = tiny.links / "tiny_package-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(InputError) as refused:
        build_tiny(tiny, "base")
    (log,) = tiny.cache.rglob("build.log")
    assert_refusal(
        refused.value, "command-failed", "", [tiny.containers / "base" / "requirements.cpu.txt", log]
    )
    assert not stamp(tiny, "base").exists()


def test_a_changed_source_distribution_is_refused(tiny):
    source = tiny.links / "leaf-1.0.tar.gz"
    source.write_bytes(source.read_bytes() + b"x")
    with pytest.raises(InputError) as refused:
        build_tiny(tiny)
    assert_refusal(refused.value, "command-failed", "", ["leaf 1.0"])
    assert not list(tiny.cache.glob("wheels/*/wheel.json"))


def test_a_patch_that_no_longer_fits_leaves_no_wheel(tiny):
    file = tiny.containers / "over" / "environment.yaml"
    file.write_text(file.read_text().replace("find: unpatched", "find: elsewhere"))
    with pytest.raises(InputError) as refused:
        build_tiny(tiny)
    assert_refusal(refused.value, "patch-does-not-fit", "", ["'elsewhere'", 0, "leaf.py"], file=str(file))
    assert not list(tiny.cache.glob("wheels/*/wheel.json"))


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ("import absent_package", "rank 0 ended with status 1"),
        ("raise SystemExit(0)", "a rank ended without a result"),
        ("import time; time.sleep(60)", "not done after 1 s"),
    ],
)
def test_an_environment_that_fails_its_selftest_is_never_whole(tiny, check, message):
    (tiny.containers / "base" / "selftest.py").write_text(SELFTEST.format(check=check))
    file = tiny.containers / "base" / "environment.yaml"
    file.write_text(file.read_text().replace("30", "1" if "sleep" in check else "30"))
    start = time.monotonic()
    with pytest.raises(InputError) as refused:
        build_tiny(tiny, "base")
    assert_refusal(refused.value, "selftest-failed", file="containers/base/selftest.py")
    assert message in refused.value.got
    assert time.monotonic() - start < 20
    assert not stamp(tiny, "base").exists()


def test_two_processes_that_want_the_same_build_it_once(tiny):
    processes = [start_program(tiny) for _ in range(2)]
    outputs = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert tiny.builds == 1
    assert "waiting for another process" in "".join(outputs)


def test_a_stamp_of_an_older_description_is_refused_in_one_line(tiny, capsys):
    out = tiny.cache / "environments" / "pytorch" / ("0" * 12) / "environment.json"
    assert run_program(main, ["--environment", "pytorch", "--site", "local", "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(out) in line and line.endswith(" [outdated-plan]")


def test_a_tool_is_the_same_virtual_environment_at_every_site(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGSIDE_CACHE", str(tmp_path))
    builds = []
    monkeypatch.setattr(
        "environments.build.build",
        lambda environment, cache, indexes, realization: builds.append((environment, realization)),
    )
    stamp = environment_stamp(tmp_path, "extrap")
    for site in ("local", "slurm-example"):  # which has accelerators and setup lines
        main(environment="extrap", site=site, out=stamp)
    assert builds == [(read("extrap"), VENV)] * 2


@pytest.mark.parametrize("indexed", [True, False])
def test_sites_index_is_asked_only_when_pip_has_no_wheel(tiny, indexed, monkeypatch):
    from common.python import python_abi

    elsewhere = tiny.cache.parent / "elsewhere" / "extra"
    elsewhere.mkdir(parents=True)
    wheel = tiny_wheel(elsewhere, "extra", "2.0")
    (elsewhere / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    base = tiny.containers / "base"
    with open(base / "environment.yaml", "a") as file:
        file.write(
            f"wheels:\n  - {{name: extra, version: '2.0', variants: [cpu], index: torch_index,"
            f" sha256: {{{python_abi()}: {sha256(wheel)}}}}}\n"
        )
    environment = read("base", containers=tiny.containers)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", (tiny.cache.parent / "nothing").as_uri())
    if indexed:
        record = build(environment, tiny.cache, {"torch_index": elsewhere.parent.as_uri()})
        assert record["packages"]["extra"] == "2.0"
        assert record["wheels"]["extra"]["sha256"] == sha256(wheel)
    else:
        with pytest.raises(InputError) as refused:
            build(environment, tiny.cache, {"torch_index": ""})
        assert_refusal(refused.value, "no-index", "", ["'torch_index'"])
