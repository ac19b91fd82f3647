"""Make the controller's environment, `.venv`, on first use or when it is out of date, and enter it.

`./ringside` and the Makefile call this module with any Python, so it uses only the standard library, and only
the grammar of Python 3.6, with which an older Python reaches the check of its version.
"""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036 (the calling Python can be older than pyproject.toml allows)
    sys.exit(
        f"ringside: Python 3.11 or newer is needed, {sys.executable} is {sys.version.split()[0]}; name "
        "another, as in `python3.11 ringside` or `make PYTHON=python3.11` [old-python]"
    )

import contextlib
import errno
import fcntl
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from common.errors import InputError, exit_status, system_faults
from environments import bundled

CHECKOUT = Path(__file__).resolve().parents[3]
SCRIPTS = Path("workflow", "scripts")
STAMP = ".made-of-requirements"  # written last, so a .venv without it is incomplete
FOREIGN_VARIABLES = ("PYTHONHOME", *bundled.PLACES_OF_PIP)
COMPLETION_VARIABLE = "_RINGSIDE_COMPLETE"  # set by the shell when it asks for completions
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def is_current(checkout: Path) -> bool:
    """Return whether `.venv` is complete, has its Python, and is not older than requirements.txt."""
    venv = checkout / ".venv"
    stamp, python = venv / STAMP, venv / "bin" / "python"
    try:
        made_with = stamp.read_text(encoding="utf-8")
        is_newer = stamp.stat().st_mtime_ns >= (checkout / "requirements.txt").stat().st_mtime_ns
    except OSError:
        return False
    # After an upgrade of the system, the same link can lead to another version of Python.
    return is_newer and os.access(python, os.X_OK) and made_with in ("", os.path.realpath(python))


def refuse_inaccessible(checkout: Path) -> None:
    """Raise InputError if `.venv` belongs to another user and this user cannot run its Python."""
    stamp, python = checkout / ".venv" / STAMP, checkout / ".venv" / "bin" / "python"
    if os.access(stamp, os.R_OK) and not os.access(python, os.X_OK) and not os.access(checkout, os.W_OK):
        problem = "its Python belongs to another user, and you cannot run it"
        raise InputError("not-executable", problem, file=".venv", hint="work in a clone of your own")


def make_environment(checkout: Path) -> None:
    """Make `.venv` unless it is current, one process at a time.

    While a campaign uses an outdated `.venv`, only print that it will be rebuilt later.

    Raises:
        InputError: If this Python cannot make virtual environments, pip fails, or `.venv` belongs to another
            user.
    """
    if is_current(checkout):
        return
    refuse_inaccessible(checkout)
    with system_faults(checkout / ".venv"), _only_one(checkout):
        if is_current(checkout):
            return
        if is_in_use(checkout):
            note = (
                "requirements.txt is newer than .venv, but a running campaign uses .venv; it will be rebuilt "
                "after the campaign"
            )
            print(f"ringside: {note}", file=sys.stderr)
            return
        _make(checkout)


@contextlib.contextmanager
def _only_one(checkout: Path) -> Iterator[None]:
    """Hold a lock against other processes that make `.venv`, where the file system has locks."""
    with open(checkout / "requirements.txt", "ab") as locked:  # a file that always exists
        try:
            fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("ringside: another process is making .venv; waiting for it", file=sys.stderr)
            fcntl.flock(locked, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        yield


def is_in_use(checkout: Path) -> bool:
    """Return whether `.venv` is complete and a Snakemake holds this checkout's lock (plan.ownership)."""
    venv = checkout / ".venv"
    if not (venv / STAMP).exists() or not os.access(venv / "bin" / "python", os.X_OK):
        return False
    try:
        with open(checkout / ".snakemake" / "ringside.lock", "rb") as lock_file:
            fcntl.flock(lock_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _make(checkout: Path) -> None:
    venv = checkout / ".venv"
    print(
        "ringside: installing the controller's environment into .venv (once; a few minutes)", file=sys.stderr
    )
    date_ns = (checkout / "requirements.txt").stat().st_mtime_ns
    if venv.is_symlink():  # Another checkout can be using its target.
        venv.unlink()
    elif venv.exists():
        (venv / STAMP).unlink(missing_ok=True)
        shutil.rmtree(venv)
    python = venv / "bin" / "python"
    variables = process_variables(checkout, os.environ)
    done = _run([base_python(), "-m", "venv", str(venv)], checkout, variables)
    if done.returncode:
        problem = f"{base_python()} cannot make virtual environments"
        raise InputError("no-venv", problem, hint="on Debian: apt-get install python3-venv")
    lock = ["--require-hashes", "--requirement", "requirements.txt"]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    pip = [str(python), "-m", "environments.bundled", "install", *quiet, *lock]
    if subprocess.run(pip, cwd=checkout, env=variables, check=False).returncode:
        problem = "pip could not install what requirements.txt lists; its last lines above say why"
        raise InputError("not-installed", problem, file=".venv", hint="run the same command again")
    # 0 stands for all cores.
    _run([str(python), "-m", "compileall", "-q", "-j", "0", str(venv / "lib")], checkout, variables)
    _finish(checkout, venv, date_ns)


def _run(
    command: list[str], folder: Path, variables: Mapping[str, str]
) -> "subprocess.CompletedProcess[bytes]":
    """Run a program and discard its output."""
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, check=False)


def _finish(checkout: Path, venv: Path, date_ns: int) -> None:
    """Add this checkout's modules, plan.before_snakemake and the local profile to `.venv`, and stamp it."""
    profile = shlex.quote(str(checkout / "profiles" / "local"))
    with open(venv / "bin" / "activate", "a", encoding="utf-8") as activate:
        activate.write(f"unset PYTHONPATH\nexport SNAKEMAKE_PROFILE={profile}\n")
    (packages,) = venv.glob("lib/python3*/site-packages")
    (packages / "ringside.pth").write_text(
        f"{checkout / SCRIPTS}\n{check_line(checkout)}\n", encoding="utf-8"
    )
    draft = venv / f"{STAMP}.new"
    draft.write_text(os.path.realpath(venv / "bin" / "python"), encoding="utf-8")
    os.utime(draft, ns=(date_ns, date_ns))
    os.replace(draft, venv / STAMP)


def check_line(checkout: Path) -> str:
    """Return the line of a .pth file that runs plan.before_snakemake whenever `.venv` starts Snakemake."""
    program = str(checkout / SCRIPTS / "plan" / "before_snakemake.py")
    starts_snakemake = 'any(part.endswith("snakemake") for part in sys.orig_argv[1:3])'
    return f'import sys; {starts_snakemake} and __import__("runpy").run_path({program!r})'


def base_python() -> str:
    """Return a Python outside of virtual environments: the running one can be in the old `.venv`."""
    return getattr(sys, "_base_executable", "") or sys.executable


def process_variables(checkout: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` for this checkout, without FOREIGN_VARIABLES, which modules of a cluster can set."""
    kept_variables = {name: value for name, value in variables.items() if name not in FOREIGN_VARIABLES}
    return {**kept_variables, "PYTHONPATH": str(checkout / SCRIPTS), "PIP_USER": "0"}


def enter(checkout: Path, arguments: list[str]) -> NoReturn:
    """Replace this process by `python -m ringside` of `.venv`."""
    python = str(checkout / ".venv" / "bin" / "python")
    os.execve(python, [python, "-m", "ringside", *arguments], process_variables(checkout, os.environ))  # noqa: S606


def main(arguments: list[str], checkout: Path = CHECKOUT) -> None:
    """Run `./ringside ARGUMENTS`: unpack a bundle with this Python, run other commands in `.venv`."""
    if arguments[:1] == ["unbundle"]:  # The bundle can contain the packages of .venv.
        from environments import unbundle

        return unbundle.main(arguments[1:])
    if COMPLETION_VARIABLE in os.environ and not is_current(checkout):
        return None  # Pressing the tab key must not install anything.
    prepare(checkout)
    enter(checkout, arguments)


def prepare(checkout: Path = CHECKOUT) -> None:
    """Make `.venv` unless it is current; the Makefile calls this."""
    try:
        make_environment(checkout)
    except KeyboardInterrupt:
        sys.exit("ringside: interrupted; run the same command again")


if __name__ == "__main__":
    sys.exit(exit_status(prepare))
