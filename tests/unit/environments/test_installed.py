"""What a site has installed itself becomes an environment: found, tested, written down, and refused once it
is another.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from common.files import CHECKOUT, load_yaml
from declared.environments import Environment, Installed, Realization, lineage, read
from declared.site import load_site
from environments import installed
from environments.build import build
from environments.built import read_built
from environments.identity import digest, environment_digest, stamp_path
from support.refusals import assert_refusal
from support.tiny_environments import SELFTEST

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


def program(folder: Path, word: str) -> Path:
    script = folder / "it.sh"
    script.write_text(f"#!/bin/sh\necho {word}\n")
    script.chmod(0o755)
    return script


def at_site(executable: Path | str, **variables: str) -> Realization:
    return Realization(installed=(("it", Installed(str(executable), tuple(variables.items()))),))


def test_installed_program_is_tested_by_the_workflows_python(tmp_path: Path) -> None:
    environment, own = described(tmp_path, "program: it\n", CHECK), program(tmp_path, "hello")
    record = build(environment, tmp_path / "cache", realization=at_site(own, LIBRARY="x"))
    assert record["deployment"] == "installed" and record["image"] is None
    assert record["python"]["executable"] == sys.executable and record["packages"] == {}
    assert record["variables"] == {"GREETING": "hello", "LIBRARY": "x", "RINGSIDE_PROGRAM": str(own)}
    assert record["selftest"]["ranks"] == 2


def test_without_a_program_it_is_the_python_that_ranks_run_in(tmp_path: Path) -> None:
    record = build(described(tmp_path, ""), tmp_path / "cache", realization=at_site(sys.executable))
    assert record["python"]["executable"] == sys.executable
    assert "numpy" in record["packages"] and "RINGSIDE_PROGRAM" not in record["variables"]


def test_what_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    environment = described(tmp_path, "program: it\n")
    with pytest.raises(InputError) as refused:
        build(environment, tmp_path / "cache", realization=at_site("/nowhere/it"))
    assert_refusal(refused.value, "missing-file", "installed.it")


@pytest.mark.parametrize("word", ["hello", "'[1, 2'", "'[1, 2]'"])
def test_what_is_no_python_is_said_in_one_line(tmp_path: Path, word: str) -> None:
    environment = described(tmp_path, "")
    with pytest.raises(InputError) as refused:
        build(environment, tmp_path / "cache", realization=at_site(program(tmp_path, word)))
    assert_refusal(refused.value, "no-python", file="environment it")


def test_replaced_program_is_not_what_was_tested(tmp_path: Path) -> None:
    environment, own = described(tmp_path, "program: it\n", CHECK), program(tmp_path, "hello")
    realization = at_site(own)
    stamp = stamp_path(environment, tmp_path / "cache", realization)
    build(environment, tmp_path / "cache", realization=realization)
    assert read_built(stamp)["name"] == "it"
    program(tmp_path, "'hello '")
    with pytest.raises(InputError) as refused:
        read_built(stamp)
    assert_refusal(refused.value, "changed-installation", file=str(stamp))
    stamp.unlink()
    again = build(environment, tmp_path / "cache", realization=realization)
    assert again["installed"]["written"][:2] == [own.stat().st_size, own.stat().st_mtime_ns]
    assert json.loads(stamp.read_text()) == again


def test_package_of_another_version_is_not_what_was_tested(tmp_path: Path) -> None:
    environment, packages = described(tmp_path, ""), tmp_path / "packages"
    (packages / "toy-1.0.dist-info").mkdir(parents=True)
    realization = at_site(sys.executable, PYTHONPATH=str(packages))
    stamp = stamp_path(environment, tmp_path / "cache", realization)
    build(environment, tmp_path / "cache", realization=realization)
    assert read_built(stamp)["name"] == "it"
    (packages / "toy-1.0.dist-info").rename(packages / "toy-1.1.dist-info")
    with pytest.raises(InputError) as refused:
        read_built(stamp)
    assert_refusal(refused.value, "changed-installation", file=str(stamp))


def with_package(folder: Path, version: str) -> Installed:
    """The Python of the tests, which finds a package by a module's PYTHONPATH."""
    for info in folder.glob("toy-*"):
        info.rename(folder / f"toy-{version}.dist-info")
    (folder / f"toy-{version}.dist-info").mkdir(parents=True, exist_ok=True)
    (folder / f"toy-{version}.dist-info" / "METADATA").write_text(f"Name: toy\nVersion: {version}\n")
    (folder / "toy.py").touch()
    load = (f"export PYTHONPATH={folder}", "export LOADEDMODULES=GCC/13.2:Toy/1")
    return Installed(sys.executable, (), load, load)


def test_packages_and_modules_behind_setup_lines_are_the_content(tmp_path: Path) -> None:
    environment = described(tmp_path, "", "import toy")
    installation = with_package(tmp_path / "packages", "1.0")
    inspected = installed.inspect_installation(environment, installation)
    assert inspected["packages"]["toy"] == "1.0" and inspected["installed"]["modules"] == [
        "GCC/13.2",
        "Toy/1",
    ]
    assert installed.inspect_installation(environment, installation) == inspected
    record = build(
        environment, tmp_path / "cache", realization=Realization(installed=(("it", installation),))
    )
    assert record["setup"] == list(installation.setup) and record["packages"]["toy"] == "1.0"
    other_modules = replace(
        installation, behind=(*installation.behind, "export LOADEDMODULES=GCC/13.2:Toy/2")
    )
    later = with_package(tmp_path / "packages", "1.1")
    contents = [
        inspected["content"],
        *(
            installed.inspect_installation(environment, variant)["content"]
            for variant in (other_modules, later)
        ),
    ]
    assert len(set(contents)) == 3
    digests = {
        digest(environment, Realization(installed=(("it", replace(installation, content=content)),)))
        for content in contents
    }
    assert len(digests) == 3
    with pytest.raises(InputError) as refused:
        build(
            environment,
            tmp_path / "cache",
            realization=Realization(installed=(("it", replace(installation, content=contents[0])),)),
        )
    assert_refusal(refused.value, "changed-installation", "installed.it")


@pytest.mark.parametrize(
    ("library", "refused"),
    [
        ("tensorflow 2.11.1", True),
        ("tensorflow 2.12.0", False),
        ("tensorflow 2.21.0+local", False),
        ("other 1", False),
    ],
)
def test_what_is_older_than_ranks_can_use_is_refused(library: str, refused: bool) -> None:
    environment = read("tensorflow")
    if not refused:
        installed.check_version(environment, library)
        return
    with pytest.raises(InputError) as error:
        installed.check_version(environment, library)
    assert_refusal(error.value, "too-old", "installed.tensorflow", ["tensorflow 2.12"])


def test_an_old_python_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text(
        f'#!/bin/sh\n{sys.executable} "$@" | sed \'s/"version": "[0-9.]*"/"version": "3.9.18"/\'\n'
    )
    old.chmod(0o755)
    with pytest.raises(InputError) as refused:
        installed.inspect_installation(described(tmp_path, ""), Installed(str(old)))
    assert_refusal(refused.value, "too-old", "installed.it", [old, "3.10"])


def test_what_was_found_is_in_the_site_that_is_read_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGSIDE_CACHE", str(tmp_path / "cache"))
    installation = {"executable": sys.executable, "setup": ["export LOADEDMODULES=Toy/1"]}
    raw = load_yaml(CHECKOUT / "config" / "sites" / "local.yaml") | {
        "setup": ["true"],
        "installed": {"tensorflow": installation},
    }
    (tmp_path / "own.yaml").write_text(json.dumps(raw))
    before = load_site("own", tmp_path)
    assert dict(before.installed)["tensorflow"].behind == ("true", "export LOADEDMODULES=Toy/1")
    assert not installed.inspect_site(before, {"pytorch"}), "it is not asked for"
    assert installed.inspect_site(before, {"tensorflow"}) and not installed.inspect_site(
        before, {"tensorflow"}
    )
    after = load_site("own", tmp_path)
    digests = [environment_digest("tensorflow", "cpu", site.realization) for site in (before, after)]
    assert dict(after.installed)["tensorflow"].content and len(set(digests)) == 2
    raw["installed"]["tensorflow"]["setup"] = ["exit 3"]
    (tmp_path / "own.yaml").write_text(json.dumps(raw))
    with pytest.raises(InputError) as refused:
        installed.inspect_site(load_site("own", tmp_path), {"tensorflow"})
    file = str(tmp_path / "own.yaml")
    assert_refusal(refused.value, "no-answer", "installed.tensorflow", [sys.executable], file=file)


def test_nothing_is_laid_over_what_a_site_has(tmp_path: Path) -> None:
    installation = Realization(installed=(("pytorch", Installed("/opt/bin/python")),))
    assert not read("horovod-pytorch").available(installation) and read("horovod-tensorflow").available(
        installation
    )
    with_both = replace(
        installation, installed=(*installation.installed, ("horovod-pytorch", Installed("/opt/bin/python")))
    )
    assert read("horovod-pytorch").available(with_both) and lineage(
        ["horovod-pytorch"], realization=with_both
    ) == ["horovod-pytorch"]


def test_its_digest_is_of_its_path_and_variables(tmp_path: Path) -> None:
    environment = described(tmp_path, "program: it\n")
    realizations = [
        at_site("/a/it"),
        at_site("/b/it"),
        at_site("/a/it", X="1"),
        replace(at_site("/a/it"), deployment="apptainer"),
    ]
    digests = [digest(environment, realization) for realization in realizations]
    assert len({*digests[:3]}) == 3 and digests[3] == digests[0], "wherever locks are realized"
    assert os.path.isabs(realizations[0].installed[0][1].executable)
