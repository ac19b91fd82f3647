"""What a site has installed itself becomes an environment: found, tested, written down, and refused once it is another."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from declared.environments import Environment, Installed, Realization, read
from environments.build import build
from environments.identity import digest, stamp_of
from environments.made import read_made
from tiny_environments import SELFTEST

CHECK = """
import subprocess
said = subprocess.run([os.environ["RINGSIDE_PROGRAM"]], capture_output=True, text=True, check=True).stdout
assert said.strip() == os.environ["GREETING"], said
"""


def described(folder: Path, content: str, check: str = "") -> Environment:
    (folder / "containers" / "it").mkdir(parents=True)
    (folder / "containers" / "it" / "environment.yaml").write_text(
        f"image: {{brought: true}}\nvariables: {{GREETING: hello}}\nselftest_limit_s: 20\n{content}"
    )
    (folder / "containers" / "it" / "selftest.py").write_text(SELFTEST.format(check=check))
    return read("it", containers=folder / "containers")


def program(folder: Path, says: str) -> Path:
    made = folder / "it.sh"
    made.write_text(f"#!/bin/sh\necho {says}\n")
    made.chmod(0o755)
    return made


def at_site(executable: Path | str, **variables: str) -> Realization:
    return Realization(installed=(("it", Installed(str(executable), tuple(variables.items()))),))


def test_a_program_is_tested_by_the_workflows_own_python_which_is_told_where_it_is(tmp_path: Path) -> None:
    it, own = described(tmp_path, "program: it\n", CHECK), program(tmp_path, "hello")
    made = build(it, tmp_path / "cache", realization=at_site(own, LIBRARY="x"))
    assert made["deployment"] == "installed" and made["image"] is None
    assert made["python"]["executable"] == sys.executable and made["packages"] == {}
    assert made["variables"] == {"GREETING": "hello", "LIBRARY": "x", "RINGSIDE_PROGRAM": str(own)}
    assert made["selftest"]["ranks"] == 2


def test_without_a_program_it_is_the_python_that_ranks_run_in(tmp_path: Path) -> None:
    made = build(described(tmp_path, ""), tmp_path / "cache", realization=at_site(sys.executable))
    assert made["python"]["executable"] == sys.executable
    assert "numpy" in made["packages"] and "RINGSIDE_PROGRAM" not in made["variables"]


def test_a_failing_self_test_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    it, wanted = described(tmp_path, "program: it\n", CHECK), at_site(program(tmp_path, "goodbye"))
    with pytest.raises(
        InputError, match=r"selftest.py failed: rank \d ended with status 1: AssertionError: goodbye; its output is in "
    ):
        build(it, tmp_path / "cache", realization=wanted)
    assert not stamp_of(it, tmp_path / "cache", wanted).exists()


def test_what_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    it = described(tmp_path, "program: it\n")
    with pytest.raises(
        InputError, match=r"^the site's installed.it: there is no /nowhere/it; install it, or correct the path$"
    ):
        build(it, tmp_path / "cache", realization=at_site("/nowhere/it"))


@pytest.mark.parametrize("says", ["hello", "'[1, 2'", "'[1, 2]'"])
def test_what_is_no_python_is_said_in_one_line(tmp_path: Path, says: str) -> None:
    it = described(tmp_path, "")
    with pytest.raises(InputError, match=r"^environment it: its Python answers .*; is it a Python\?$"):
        build(it, tmp_path / "cache", realization=at_site(program(tmp_path, says)))


def test_another_file_at_its_place_is_not_taken_for_what_was_tested(tmp_path: Path) -> None:
    it, own = described(tmp_path, "program: it\n", CHECK), program(tmp_path, "hello")
    wanted = at_site(own)
    stamp = stamp_of(it, tmp_path / "cache", wanted)
    build(it, tmp_path / "cache", realization=wanted)
    assert read_made(stamp)["name"] == "it"
    program(tmp_path, "'hello '")
    with pytest.raises(InputError, match=r"the site's installation is not the one that was tested"):
        read_made(stamp)
    stamp.unlink()
    again = build(it, tmp_path / "cache", realization=wanted)
    assert again["installed"]["written"] == [own.stat().st_size, own.stat().st_mtime_ns]
    assert json.loads(stamp.read_text()) == again


def test_a_package_of_another_version_is_not_taken_for_what_was_tested(tmp_path: Path) -> None:
    it, packages = described(tmp_path, ""), tmp_path / "packages"
    (packages / "toy-1.0.dist-info").mkdir(parents=True)
    wanted = at_site(sys.executable, PYTHONPATH=str(packages))
    stamp = stamp_of(it, tmp_path / "cache", wanted)
    build(it, tmp_path / "cache", realization=wanted)
    assert read_made(stamp)["name"] == "it"
    (packages / "toy-1.0.dist-info").rename(packages / "toy-1.1.dist-info")
    with pytest.raises(InputError, match=r"the site's installation is not the one that was tested"):
        read_made(stamp)


def test_its_digest_is_of_its_path_and_variables(tmp_path: Path) -> None:
    it = described(tmp_path, "program: it\n")
    wanted = [
        at_site("/a/it"),
        at_site("/b/it"),
        at_site("/a/it", X="1"),
        replace(at_site("/a/it"), deployment="apptainer"),
    ]
    digests = [digest(it, each) for each in wanted]
    assert len({*digests[:3]}) == 3 and digests[3] == digests[0], "wherever locks are realized"
    assert os.path.isabs(wanted[0].installed[0][1].executable)
