"""List the packages of an environment, and fetch the files that an environment installs."""

import json
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.markers import Marker

from common.files import digest_file, display_path, write_text
from common.python import python_abi
from declared.environments import IMAGE_ABI, Environment
from environments.steps import make_venv, pip_install, run_pip
from environments.wheels import recorded_sha256, sdist, try_sources

# An environment's Python runs this program. It prints name and version of each importable distribution.
LIST_PACKAGES = (
    "import importlib.metadata as m, json; "
    "print(json.dumps([[d.metadata['Name'], d.version] for d in m.distributions()]))"
)
# An environment's Python runs this program. It prints the Python's version, ABI and path.
DESCRIBE_PYTHON = (
    "import json, platform, sys, sysconfig; "
    "machine = sysconfig.get_platform().replace('-', '_').replace('.', '_'); "
    "abi = f'cp{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}-{machine}'; "
    "print(json.dumps({'version': platform.python_version(), 'abi': abi, 'executable': sys.executable}))"
)
ONLY_WHEELS = ("--only-binary", ":all:")
GLIBC = (2, 36)  # version in Debian bookworm, the base of images


def parse_packages(output: str) -> dict[str, str]:
    """Return versions by package from the output of LIST_PACKAGES."""
    # Python imports the first of two distributions with one name, so it has to overwrite the second.
    pairs = reversed(json.loads(output.strip().splitlines()[-1]))
    names = {re.sub("[-_.]+", "-", name).lower(): version for name, version in pairs if name}
    return dict(sorted(names.items()))


ENTRY = re.compile(r"^(?=[A-Za-z0-9])", re.MULTILINE)  # the beginning of an entry of a lock
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Target:
    """A Python for which files are fetched.

    Attributes:
        abi: Its ABI and platform.
        options: pip's options that select its files.
        markers: Values of markers in locks that differ from those of the running Python.
    """

    abi: str
    options: tuple[str, ...] = ()
    markers: Mapping[str, str] = field(default_factory=dict)


def running_pythons(lock: str) -> list[Target]:
    """Return the running Python, and patch levels of it for which a lock has different versions.

    A machine without internet can have another patch level than the one on which a bundle is made.
    """
    running = platform.python_version()
    minor = running.rpartition(".")[0]
    named = re.findall(rf"python_full_version [<>=!]+ '({re.escape(minor)}\.\d+)'", lock)
    other_versions = sorted({f"{minor}.0", *named} - {running}) if named else []
    markers = {"implementation_version", "python_full_version"}
    return [
        Target(python_abi()),
        *(
            Target(python_abi(), ("--python-version", version), dict.fromkeys(markers, version))
            for version in other_versions
        ),
    ]


def image_pythons(_lock: str = "") -> list[Target]:
    """Return the Python of images, which need not be the running one."""
    version = IMAGE_ABI.split("-")[0].removeprefix("cp")
    python = f"{version[0]}.{version[1:]}"
    tags = [f"manylinux_{GLIBC[0]}_{minor}_x86_64" for minor in range(5, GLIBC[1] + 1)]
    tags += ["manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64", "linux_x86_64"]
    options = ["--python-version", version, "--implementation", "cp"]
    options += [part for tag in tags for part in ("--platform", tag)]
    return [
        Target(IMAGE_ABI, tuple(options), {"python_version": python, "python_full_version": f"{python}.0"})
    ]


Targets = Callable[[str], Sequence[Target]]  # text of a lock -> the Pythons to fetch its files for


def entries(lock: str, target: Target) -> list[str]:
    """Return a lock's entries for a Python, without markers: pip would evaluate them for the controller's."""
    selected = []
    for entry in filter(None, ENTRY.split(lock)):
        marked = re.match(r"(\S+) ; ([^\\\n]*)", entry)
        if marked and not Marker(marked[2]).evaluate(dict(target.markers)):
            continue
        selected.append(f"{marked[1]} {entry[marked.end() :]}" if marked else entry)
    return selected


def fetch_lock(lock: Path, folder: Path, targets: Targets, log: Path, *options: str) -> set[str]:
    """Fetch the files of a lock that are missing in `folder`.

    Returns:
        The SHA-256 of all files of the lock for these Pythons.
    """
    allowed: set[str] = set()
    text = lock.read_text(encoding="utf-8")
    for target in targets(text):
        present = {digest_file(file) for file in folder.iterdir() if file.is_file()}
        locked = [(entry, set(HASH.findall(entry))) for entry in entries(text, target)]
        missing = [entry for entry, hashes in locked if hashes and not hashes & present]
        if missing:
            with tempfile.TemporaryDirectory(prefix="ringside-") as scratch:
                requirements = Path(scratch) / lock.name
                write_text(requirements, "".join(missing))
                _download(requirements, f"fetching {display_path(lock)}", folder, target, log, *options)
        allowed |= {sha256 for _, hashes in locked for sha256 in hashes}
    return allowed


def fetch(
    environment: Environment,
    folder: Path,
    indexes: Mapping[str, str],
    log: Path,
    targets: Targets = image_pythons,
) -> set[str]:
    """Fetch the files of an environment that are missing in `folder`, with this machine's pip configuration.

    pip checks the recorded hash of each file now, and again when it is installed.

    Args:
        environment: The environment.
        folder: The folder for the files.
        indexes: Addresses of wheel indexes by the name of the site's setting.
        log: The file for pip's output.
        targets: Returns the Pythons to fetch for.

    Returns:
        The SHA-256 of all files that the environment can install.
    """
    target = targets("")[0]

    def download(requirements: Path, task: str, *options: str) -> None:
        _download(requirements, task, folder, target, log, *ONLY_WHEELS, *options)

    allowed: set[str] = set()
    for lock in [environment.lock, *([environment.build_lock] if environment.sources else [])]:
        allowed |= fetch_lock(lock, folder, targets, log, *ONLY_WHEELS)
    present = {digest_file(file) for file in folder.iterdir() if file.is_file()}
    for wheel in environment.wheels:
        sha256 = recorded_sha256(wheel, environment.description, target.abi)
        if sha256 not in present:
            try_sources(wheel, sha256, "fetching", indexes, log, download)
        allowed.add(sha256)
    for source in environment.sources:
        if source.sha256 not in present:
            with tempfile.TemporaryDirectory(prefix="ringside-") as scratch:
                tools = make_venv(Path(scratch) / "tools", log)
                pip_install(
                    tools, environment.build_lock, f"installing {display_path(environment.build_lock)}", log
                )
                shutil.copy(sdist(source, tools, Path(scratch), log), folder)
        allowed.add(source.sha256)
    return allowed


def _download(requirements: Path, task: str, folder: Path, target: Target, log: Path, *options: str) -> None:
    settings = ["--no-deps", "--require-hashes", "--progress-bar", "off", *target.options, *options]
    run_pip(Path(sys.executable), ["download", *settings, "-d", folder, "-r", requirements], task, log)
