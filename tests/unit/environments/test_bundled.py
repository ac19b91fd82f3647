"""Where a bundle was unpacked, pip installs from it and from nothing else, whatever it is configured for."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.files import CHECKOUT
from common.python import python_abi
from common.shell import capture
from declared.environments import read
from environments import bundled, packages, wheels
from environments.build import build
from environments.identity import digest
from support.tiny_environments import Tiny, sha256, tiny_wheel

NOWHERE = {
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_FIND_LINKS": "http://127.0.0.1:9/",
    "PIP_CERT": "/nowhere",
}


@pytest.fixture
def offline(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """The tiny environments, whose packages lie in a bundle.

    Pip is configured for a server that does not answer.
    """
    monkeypatch.setenv("RINGSIDE_CACHE", str(tiny.cache))
    (tiny.cache / "bundle").mkdir(parents=True)
    shutil.move(tiny.links, tiny.cache / "bundle" / "wheels")
    monkeypatch.delenv("PIP_NO_INDEX")
    for name, value in NOWHERE.items():
        monkeypatch.setenv(name, value)
    return tiny


def test_environments_and_a_source_are_built_from_it(offline: Tiny) -> None:
    described = read("over", containers=offline.containers)
    before = digest(described)
    record = build(described, offline.cache)
    assert record["packages"] == {"leaf": "1.0", "tiny-package": "1.0"} and offline.builds == 1
    assert record["digest"] == before, "where files came from is no part of it"


def test_the_controllers_pip_takes_its_lock_from_it(offline: Tiny, tmp_path: Path) -> None:
    lock = tmp_path / "requirements.txt"
    (wheel,) = (offline.cache / "bundle" / "wheels").glob("*.whl")
    lock.write_text(f"tiny-package==1.0 --hash=sha256:{sha256(wheel)}\n")
    manifest = {"study": "small", "site": "local", "python_abi": python_abi(), "files": {}}

    def call(**locks: str) -> subprocess.CompletedProcess[str]:
        manifest_content = manifest | {"locks": {"requirements.txt": bundled.digest(lock)} | locks}
        (offline.cache / "bundle" / "small-local.json").write_text(json.dumps(manifest_content))
        command = [
            sys.executable,
            "-m",
            "environments.bundled",
            "download",
            "--dest",
            str(tmp_path / "out"),
            "--require-hashes",
        ]
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / "workflow" / "scripts")}
        return capture([*command, "--requirement", str(lock)], env=environment)

    done = call()
    assert done.returncode == 0, done.stderr
    assert [file.name for file in (tmp_path / "out").iterdir()] == [wheel.name]
    refused = call(**{"requirements.txt": "of another commit"})
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1
    assert all(
        name in refused.stderr for name in (str(lock), python_abi(), "small at local", "[not-in-bundle]")
    )


def test_without_a_bundle_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGSIDE_CACHE", str(tmp_path))
    assert bundled.pip_variables(NOWHERE) == {**NOWHERE, "PIP_USER": "0"}


class TestWhatIsFetched:
    def test_all_that_an_environment_installs_and_nothing_twice(self, tiny: Tiny, tmp_path: Path) -> None:
        described, log = read("over", containers=tiny.containers), tmp_path / "log"
        (tmp_path / "fetched").mkdir()
        fetched = tmp_path / "fetched"
        for name in ("base", "over"):
            allowed = packages.fetch(
                read(name, containers=tiny.containers), fetched, {}, log, packages.running_pythons
            )
        assert {file.name for file in fetched.iterdir()} == {path.name for path in tiny.links.iterdir()}
        assert allowed == {described.sources[0].sha256}
        shutil.rmtree(tiny.links)
        log.unlink()
        packages.fetch(described, fetched, {}, log, packages.running_pythons)
        packages.fetch(read("base", containers=tiny.containers), fetched, {}, log, packages.running_pythons)
        assert not log.exists(), "pip was not called"

    def test_a_file_that_is_not_the_locked_one_is_fetched_again(self, tiny: Tiny, tmp_path: Path) -> None:
        (tmp_path / "fetched").mkdir()
        wheel = tiny_wheel(tmp_path / "fetched", "tiny_package", "1.0")
        wheel.write_bytes(wheel.read_bytes()[:-20])
        packages.fetch(
            read("base", containers=tiny.containers),
            wheel.parent,
            {},
            tmp_path / "log",
            packages.running_pythons,
        )
        assert sha256(wheel) == sha256(tiny.links / wheel.name)

    def test_a_wheel_that_was_built_for_it_with_any_compiler(self, filled: Tiny) -> None:
        over = read("over", containers=filled.containers)
        ((wheel, record),) = wheels.cached_wheels(over.sources[0], over, filled.cache)
        assert wheel.name == "leaf-1.0-py3-none-any.whl"
        record_content = json.loads(record.read_text())
        record.write_text(
            json.dumps(
                record_content | {"programs": {"bash": "another"}, "built_against": {"tiny-package": "2"}}
            )
        )
        assert list(wheels.cached_wheels(over.sources[0], over, filled.cache)) == [(wheel, record)]
        record.write_text(json.dumps(record_content | {"abi": "cp399"}))
        assert list(wheels.cached_wheels(over.sources[0], over, filled.cache)) == []


def test_lock_is_fetched_for_every_patch_level_in_its_markers() -> None:
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    lock = (
        f"one==1 ; python_full_version < '{minor}.99' \\\n"
        "    --hash=sha256:aa\n"
        f"one==2 ; python_full_version >= '{minor}.99' \\\n"
        "    --hash=sha256:bb\n"
    )
    targets = packages.running_pythons(lock)
    assert [target.options for target in targets] == [
        (),
        ("--python-version", f"{minor}.0"),
        ("--python-version", f"{minor}.99"),
    ]
    assert [packages.entries(lock, target)[0][:6] for target in targets] == ["one==1", "one==1", "one==2"]
    assert len(packages.running_pythons("one==1 ; python_full_version < '3.99.5' \\\n")) == 1
