"""The lock of a killed Snakemake is distinguished from that of a running one."""

import getpass
import os
import pwd
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import InputError
from common.files import CHECKOUT
from environments import controller
from plan import ownership, unlock

HOLD = (
    "import sys, time; from pathlib import Path; from plan.ownership import hold; "
    "print(hold(Path(sys.argv[1])), flush=True); time.sleep(60)"
)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".snakemake" / "locks").mkdir(parents=True)
    yield tmp_path / ".snakemake"
    ownership.release()


@pytest.fixture
def holder(state: Path) -> Iterator[subprocess.Popen[str]]:
    scripts = str(Path(ownership.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(state)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": scripts},
    )
    assert process.stdout is not None and process.stdout.readline() == "True\n"
    yield process
    process.kill()
    process.wait()


def leave_lock(state: Path) -> Path:
    lock = state / "locks" / "0.output.lock"
    lock.write_text("results/small/design.csv\n")
    return lock


def test_a_lock_without_a_holder_is_stale(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ownership.refuse_stale(state)
    ownership.release()
    lock = leave_lock(state)
    with pytest.raises(InputError) as refused:
        ownership.refuse_stale(state)
    assert (refused.value.code, refused.value.file) == ("stale-lock", ".snakemake/locks")
    assert "./ringside unlock" in refused.value.hint
    unlock.main(if_stale=True)
    assert not lock.exists() and capsys.readouterr().out
    ownership.refuse_stale(state)


def test_a_living_holders_lock_is_kept_until_it_is_killed(state: Path, holder: subprocess.Popen[str]) -> None:
    lock = leave_lock(state)
    ownership.refuse_stale(state)  # Snakemake itself says that it is locked
    unlock.main(if_stale=True)
    with pytest.raises(InputError) as refused:
        unlock.main()
    assert (refused.value.code, refused.value.file) == ("already-running", ".snakemake/locks")
    assert lock.exists()
    holder.kill()
    holder.wait()
    unlock.main()
    assert not lock.exists()


def test_a_second_snakemake_is_refused_and_does_not_wait(state: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(InputError) as refused:
        ownership.claim(state)
    assert refused.value.code == "already-running"
    holder.kill()
    holder.wait()
    ownership.claim(state)


def test_results_of_somebody_else_are_refused() -> None:
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results", "small")
        ownership.raise_if_unwritable(results)
        os.chmod(folder, stat.S_IRUSR | stat.S_IXUSR | stat.S_IXOTH)
        os.seteuid(65534 if user == 0 else user)
        try:
            with pytest.raises(InputError) as refused:
                ownership.raise_if_unwritable(results)
            assert (refused.value.code, refused.value.file) == ("not-writable", folder)
        finally:
            os.seteuid(user)
            os.chmod(folder, stat.S_IRWXU)


@pytest.mark.parametrize(("profile", "chosen"), [(None, "profiles/local"), ("", ""), ("mine", "mine")])
def test_snakemake_has_the_profile_of_this_machine(
    profile: str | None, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    monkeypatch.chdir(CHECKOUT)
    if profile is not None:
        monkeypatch.setenv("SNAKEMAKE_PROFILE", profile)
    unlock.choose_profile()
    assert os.environ["SNAKEMAKE_PROFILE"].removeprefix(f"{CHECKOUT}/") == chosen
    monkeypatch.delenv("SNAKEMAKE_PROFILE")
    monkeypatch.chdir(tmp_path)
    unlock.choose_profile()
    assert "SNAKEMAKE_PROFILE" not in os.environ, "another checkout has profiles of its own"


def plain_snakemake(
    tmp_path: Path, program: str = "snakemake", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Call Snakemake by a Python that begins as that of `.venv` does."""
    venv = tmp_path / "venv"
    packages = venv / "lib" / "python3.11" / "site-packages"
    for folder in (packages, venv / "bin"):
        folder.mkdir(parents=True)
    controller._finish(CHECKOUT, venv, 0)
    script = tmp_path / program
    script.write_text(
        f"import site\nsite.addsitedir({str(packages)!r})\nfrom snakemake.cli import main\nmain()\n"
    )
    command = [sys.executable, script, "--version"]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **variables}
    )


def test_plain_snakemake_names_the_cache_it_cannot_write_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = plain_snakemake(tmp_path, XDG_CACHE_HOME=str(tmp_path / "file"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert str(tmp_path / "file") in done.stderr and "[unwritable-cache]" in done.stderr


def test_other_programs_are_not_checked(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = plain_snakemake(tmp_path, "other.py", XDG_CACHE_HOME=str(tmp_path / "file"))
    assert (done.returncode, done.stderr) == (0, "")


def test_state_that_is_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    unlock.check_folders()
    (tmp_path / ".snakemake").touch()
    with pytest.raises(InputError) as refused:
        unlock.check_folders()
    assert (refused.value.code, refused.value.file) == ("not-a-folder", ".snakemake")


def test_unwritable_checkout_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "access", lambda path, mode, **_: mode != os.W_OK)
    with pytest.raises(InputError) as refused:
        unlock.check_folders()
    assert refused.value.code == "not-writable"


def unknown_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a user whom the machine does not know, without a home, as in many containers."""
    for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)


def test_user_without_a_name_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown_user(monkeypatch)
    monkeypatch.setenv("LOGNAME", "")
    unlock.name_user()
    assert getpass.getuser() == str(os.getuid())


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system, which needs root")
def test_a_cache_that_snakemake_cannot_write_to_is_named(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=True)
    try:
        (tmp_path / "filled").write_bytes(bytes(1 << 16))
        with pytest.raises(InputError) as refused:
            unlock.check_cache(tmp_path / "snakemake")
        assert refused.value.code == "unwritable-cache" and refused.value.file == str(tmp_path / "snakemake")
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
