"""`.venv` is made on first use from a lock with hashes, remade when it is out of date, and never while a
campaign uses it.
"""

import ast
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import InputError
from common.files import CHECKOUT
from common.shell import capture
from environments import controller
from environments.controller import STAMP, check_line, is_current, is_in_use, make_environment

NEEDED = ("common/__init__.py", "common/caches.py", "common/errors.py", "common/python.py", "common/redaction.py", "environments/__init__.py",
          "environments/bundled.py", "environments/controller.py")  # fmt: skip
PROGRAM = (
    "import json, os, sys, tiny; print(json.dumps([sys.argv[1:], dict(os.environ), sys.prefix, "
    "tiny.__file__]))"
)
HOSTILE = "a 'b' \"c\" $(touch pwned) `touch pwned`; {d"


def small_checkout(folder: Path) -> Path:
    """Write a checkout whose lock is one wheel that lies in it, and whose command prints what it was
    given.
    """
    for name in NEEDED:
        target = folder / "workflow" / "scripts" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / "workflow" / "scripts" / name, target)
    shutil.copy(CHECKOUT / "ringside", folder)
    program = folder / "workflow" / "scripts" / "ringside"
    program.mkdir()
    (program / "__main__.py").write_text(PROGRAM)
    wheel = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("tiny.py", "")
        packed.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        packed.writestr(
            "tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        packed.writestr("tiny-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (folder / "requirements.txt").write_text(f"./{wheel.name} --hash=sha256:{digest}\n")
    return folder


def call(checkout: Path, *arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Call the command of a checkout; with settings of a caller's Python and pip that must not matter."""
    foreign = {
        "PIP_TARGET": "/nowhere",
        "PIP_REQUIRE_VIRTUALENV": "1",
        "RINGSIDE_CACHE": str(checkout / "cache"),
    }
    variables = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    command = [python, str(checkout / "ringside"), *arguments]
    return capture(command, cwd=checkout, env={**variables, **foreign})


@pytest.fixture(scope="module")
def used_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkout, with a name that a shell would take apart, in which the command was called once."""
    checkout = small_checkout(tmp_path_factory.mktemp("made") / HOSTILE)
    done = call(checkout, "plan", "my study", "--", "-n")
    assert done.returncode == 0, done.stderr
    (checkout / "printed.json").write_text(done.stdout)
    return checkout


@pytest.mark.slow
class TestFirstUse:
    def test_arguments_and_variables_reach_the_command(self, used_checkout: Path) -> None:
        arguments, variables, prefix, tiny = json.loads((used_checkout / "printed.json").read_text())
        assert arguments == ["plan", "my study", "--", "-n"]
        assert prefix == str(used_checkout / ".venv") and tiny.startswith(
            str(used_checkout / ".venv" / "lib")
        )
        assert variables["PYTHONPATH"] == str(used_checkout / "workflow" / "scripts")
        assert not {"PIP_TARGET", "PIP_REQUIRE_VIRTUALENV"} & set(variables)
        assert is_current(used_checkout) and not list(used_checkout.parent.rglob("pwned"))

    def test_an_activated_environment_has_its_profile(self, used_checkout: Path, tmp_path: Path) -> None:
        script = '. "$1/.venv/bin/activate" && printf "%s|%s" "$SNAKEMAKE_PROFILE" "$PYTHONPATH"'
        done = capture(
            ["bash", "-c", script, "-", str(used_checkout)], cwd=tmp_path, check=True
        )  # activate of venv itself expands what the path holds (CVE-2024-9287)
        assert done.stdout == f"{used_checkout}/profiles/local|"
        (packages,) = used_checkout.glob(".venv/lib/python3*/site-packages")
        assert (
            packages / "ringside.pth"
        ).read_text() == f"{used_checkout}/workflow/scripts\n{check_line(used_checkout)}\n"
        assert list(packages.glob("__pycache__/tiny.*.pyc")), "compiled at once"

    def test_the_second_time_nothing_is_installed(self, used_checkout: Path) -> None:
        before = (used_checkout / ".venv" / STAMP).stat().st_ino
        done = call(used_checkout, "status")
        assert done.returncode == 0 and "installing" not in done.stderr
        assert (used_checkout / ".venv" / STAMP).stat().st_ino == before

    def test_it_is_remade_by_the_python_that_it_removes(self, used_checkout: Path) -> None:
        """Where .venv is activated, `env python3` is that of .venv."""
        (used_checkout / ".venv" / "left").touch()
        later = time.time() + 5
        os.utime(used_checkout / "requirements.txt", (later, later))
        done = call(used_checkout, "status", python=str(used_checkout / ".venv" / "bin" / "python"))
        assert done.returncode == 0 and done.stderr.count("\n") == 1 and "installing" in done.stderr
        assert is_current(used_checkout) and not (used_checkout / ".venv" / "left").exists()
        base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        assert os.path.realpath(used_checkout / ".venv" / "bin" / "python") == base


@pytest.mark.slow
def test_two_at_once_make_one(tmp_path: Path) -> None:
    checkout = small_checkout(tmp_path / "checkout")
    command = [sys.executable, str(checkout / "ringside"), "status"]
    processes = [
        subprocess.Popen(command, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    errors = "".join(error for _, error in printed)
    assert errors.count("installing") == 1 and errors.count("waiting") == 1


@pytest.mark.slow
def test_a_wheel_of_other_content_is_refused(tmp_path: Path) -> None:
    checkout = small_checkout(tmp_path / "checkout")
    lock = checkout / "requirements.txt"
    lock.write_text(lock.read_text()[:-65] + "0" * 64 + "\n")
    done = call(checkout, "status")
    assert done.returncode == 2 and "[not-installed]" in done.stderr.splitlines()[-1]
    assert not is_current(checkout), "the next call begins again"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose .venv looks as if it were made."""
    (tmp_path / "requirements.txt").touch()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / ".venv" / STAMP).write_text(os.path.realpath(sys.executable))
    assert is_current(tmp_path)
    return tmp_path


def lose_python(checkout: Path) -> None:
    (checkout / ".venv" / "bin" / "python").unlink()
    (checkout / ".venv" / "bin" / "python").symlink_to("/nowhere/python3")


def change_python(checkout: Path) -> None:
    (checkout / ".venv" / "bin" / "python").unlink()
    (checkout / ".venv" / "bin" / "python").symlink_to("/bin/sh")


def lose_stamp(checkout: Path) -> None:
    """As a kill in the middle of the installation does."""
    (checkout / ".venv" / STAMP).unlink()


def renew_lock(checkout: Path) -> None:
    later = time.time() + 5
    os.utime(checkout / "requirements.txt", (later, later))


@pytest.mark.parametrize("happen", [lose_python, change_python, lose_stamp, renew_lock])
def test_what_is_out_of_date_is_remade(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, happen: Callable[[Path], None]
) -> None:
    remade: list[Path] = []
    monkeypatch.setattr(controller, "_make", remade.append)
    make_environment(checkout)
    assert not remade
    happen(checkout)
    make_environment(checkout)
    assert remade == [checkout]


def test_a_running_campaign_keeps_its_environment(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(controller, "_make", lambda _: pytest.fail("it was remade"))
    renew_lock(checkout)
    (checkout / ".snakemake").mkdir()
    with open(checkout / ".snakemake" / "ringside.lock", "w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        make_environment(checkout)
        assert capsys.readouterr().err.count("\n") == 1
    assert not is_in_use(checkout)


def test_a_link_is_removed_and_not_what_it_leads_to(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_folder = tmp_path_factory.mktemp("other") / "venv"
    (checkout / ".venv").rename(other_folder)
    (checkout / ".venv").symlink_to(other_folder)
    renew_lock(checkout)
    monkeypatch.setattr(controller, "base_python", lambda: "/bin/false")
    with pytest.raises(InputError) as refused:
        make_environment(checkout)
    assert refused.value.code == "no-venv" and "python3-venv" in refused.value.hint
    assert (other_folder / "bin" / "python").exists() and (other_folder / controller.STAMP).exists()
    assert not (checkout / ".venv").exists()


def test_python_of_another_user_is_one_line(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_python(checkout)
    controller.refuse_inaccessible(checkout)  # this user's own: it is remade
    monkeypatch.setattr(os, "access", lambda path, mode, **_: Path(path).name == STAMP and mode == os.R_OK)
    with pytest.raises(InputError) as refused:
        make_environment(checkout)
    assert refused.value.code == "not-executable"
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    controller.refuse_inaccessible(checkout)  # without a .venv, it is another mistake


def test_a_key_stroke_installs_nothing(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "prepare", lambda _: pytest.fail("it was installed"))
    monkeypatch.setenv(controller.COMPLETION_VARIABLE, "complete_bash")
    lose_stamp(checkout)
    controller.main([], checkout)


def test_an_old_python_is_one_line() -> None:
    program = (
        "import sys; sys.version_info = (3, 9, 2); sys.argv = ['ringside']; import runpy; "
        "runpy.run_path('ringside')"
    )
    command = [sys.executable, "-S", "-c", program]
    done = capture(command, cwd=CHECKOUT)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "[old-python]" in done.stderr


@pytest.mark.parametrize("file", ["ringside", "workflow/scripts/environments/controller.py"])
def test_an_old_python_can_read_as_far_as_the_check(file: str) -> None:
    ast.parse((CHECKOUT / file).read_text(), feature_version=(3, 6))


def test_check_before_snakemake_leaves_no_module_behind(tmp_path: Path) -> None:
    program = tmp_path / "snakemake"
    program.write_text(
        f"import sys\nsys.path.insert(0, {str(CHECKOUT / 'workflow' / 'scripts')!r})\n"
        f"{check_line(CHECKOUT)}\n"
        "print('runpy' in sys.modules, [name for name in sys.modules if name.partition('.')[0] in ('common', 'plan')])\n"
    )
    variables = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = capture([sys.executable, program], cwd=tmp_path, env=variables, check=True)
    assert done.stdout == "True []\n"
