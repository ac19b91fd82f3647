"""Steps of builds: commands with a log, locks against concurrent builds, and pip with required hashes."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from common.errors import InputError
from common.files import hold_lock
from common.redaction import redact_file, redact_log
from environments import bundled


def print_progress(message: str) -> None:
    """Print a line on stderr, with secrets hidden."""
    print(f"ringside: {redact_log(message)}", file=sys.stderr, flush=True)


def build_lock(path: Path, task: str) -> contextlib.AbstractContextManager[None]:
    """Return a context that holds the lock file `path`, so that only one process at a time builds `task`."""
    return hold_lock(path, lambda: print_progress(f"{task}: waiting for another process that is building it"))


def run_logged(
    command: Sequence[str | Path],
    task: str,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float | None = None,
) -> None:
    """Run a command, and append its output to `log` with secrets hidden.

    If this process is interrupted, the command's process group is killed.

    Args:
        command: The program and its arguments.
        task: What it does, for errors.
        log: The file for its output.
        env: Its environment; None: that of this process.
        cwd: Its working folder; None: that of this process.
        timeout_s: Its time limit, s; None: no limit.

    Raises:
        InputError: If the command fails. It names the log.
        subprocess.TimeoutExpired: If it takes longer than `timeout_s`; its process group is killed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        start = output.tell()
        output.write(f"\n$ {' '.join(map(str, command))}\n".encode())
        output.flush()
        process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=cwd,
            process_group=0,
        )
        try:
            process.wait(timeout_s)
        except BaseException:  # Stopping this process also has to stop compilers that the command started.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        finally:
            redact_file(log, start)
    if process.returncode != 0:
        reason = _last_error(log, start)
        raise InputError(
            "command-failed", f"{task} failed: {reason}", got=reason, hint=f"the full output is in {log}"
        )


def _last_error(log: Path, start: int) -> str:
    with open(log, "rb") as file:
        file.seek(start)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no output"])[-1][:300]


class Stopwatch:
    """Seconds per named step, on the monotonic clock."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to `name`."""
        start = time.monotonic()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0) + time.monotonic() - start, 2)


def isolated_variables(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's variables and `extra`, without PYTHON*, which affect another Python's imports."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return {**variables, **(extra or {})}


def make_venv(folder: Path, log: Path) -> Path:
    """Make a virtual environment without packages, even without pip, and return its interpreter."""
    run_logged(
        [sys.executable, "-m", "venv", "--without-pip", folder],
        "making a virtual environment",
        log,
        isolated_variables(),
    )
    return folder / "bin" / "python"


def site_packages(venv: Path) -> Path:
    """Return the packages' folder of a virtual environment with this interpreter's version of Python."""
    return venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def add_parents(venv: Path, parents: Sequence[Path]) -> None:
    """Make the packages of `parents` importable in `venv`, after its own packages."""
    lines = [f"{site_packages(parent)}\n" for parent in parents]
    (site_packages(venv) / "parents.pth").write_text("".join(lines), encoding="utf-8")


def run_pip(python: Path, arguments: Sequence[str | Path], task: str, log: Path) -> None:
    """Run the controller's pip for another interpreter, with a bundle or else with pip's configuration."""
    head: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "--no-input",
        "--disable-pip-version-check",
    ]
    run_logged([*head, *arguments], task, log, bundled.pip_variables(isolated_variables()))


def pip_install(python: Path, requirements: Path, task: str, log: Path, *options: str) -> None:
    """Install exactly the wheels whose hashes `requirements` lists, without their dependencies."""
    exact_files = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--ignore-installed"]
    output = ["--no-compile", "--progress-bar", "off"]
    run_pip(python, ["install", *exact_files, *output, *options, "-r", requirements], task, log)


def compile_bytecode(python: Path, folder: Path, log: Path) -> None:
    """Byte-compile all modules in `folder` on all cores; pip would use one.

    Modules with the syntax of a newer Python are skipped.
    """
    command = [python, "-m", "compileall", "-q", "-j", "0", folder]
    with open(log, "ab") as output:
        subprocess.run(
            list(map(str, command)),
            check=False,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=isolated_variables(),
        )
