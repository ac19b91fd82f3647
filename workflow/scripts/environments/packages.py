"""What is installed in an environment, and the files that are installed in one."""

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from packaging.markers import Marker

from common.files import shown, write_text
from declared.environments import IMAGE_ABI, Environment
from environments.steps import make_venv, pip, pip_install
from environments.wheels import from_index, recorded_sha256, sdist

# Run by an environment's Python: name and version of every distribution that it sees.
LIST = (
    "import importlib.metadata as m, json; "
    "print(json.dumps([[d.metadata['Name'], d.version] for d in m.distributions()]))"
)
# Run by a Python that is not ours: what it is.
ABOUT = (
    "import json, platform, sys, sysconfig; "
    "machine = sysconfig.get_platform().replace('-', '_').replace('.', '_'); "
    "abi = f'cp{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}-{machine}'; "
    "print(json.dumps({'version': platform.python_version(), 'abi': abi, 'executable': sys.executable}))"
)
GLIBC = (2, 36)  # of Debian bookworm: the images' base


def listed(said: str) -> dict[str, str]:
    """Name -> version, from the last line that LIST printed; of two with one name, the one that is imported."""
    found = reversed(json.loads(said.strip().splitlines()[-1]))
    names = {re.sub("[-_.]+", "-", name).lower(): version for name, version in found if name}
    return dict(sorted(names.items()))


def for_images(lock: str) -> str:
    """The entries of a lock that are for the Python of images, without markers: pip would judge them by the controller's Python."""
    version = IMAGE_ABI.split("-")[0].removeprefix("cp")
    python = f"{version[0]}.{version[1:]}"
    kept = []
    for entry in re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE):
        found = re.match(r"(\S+) ; ([^\\\n]*)", entry)
        if found and not Marker(found[2]).evaluate({"python_version": python, "python_full_version": f"{python}.0"}):
            continue
        kept.append(f"{found[1]} {entry[found.end() :]}" if found else entry)
    return "".join(kept)


def fetch(environment: Environment, folder: Path, indexes: Mapping[str, str], log: Path) -> None:
    """Fetch all files that an image of the environment installs into `folder`, as pip is configured on this machine.

    Every file is bound to its recorded hash, here and again where it is installed.
    """
    platforms = [f"manylinux_{GLIBC[0]}_{minor}_x86_64" for minor in range(5, GLIBC[1] + 1)]
    platforms += ["manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64", "linux_x86_64"]
    version = IMAGE_ABI.split("-")[0].removeprefix("cp")
    target = ["--python-version", version, "--implementation", "cp"]
    target += [part for platform in platforms for part in ("--platform", platform)]
    exactly = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--progress-bar", "off"]

    def download(requirements: Path, what: str, *options: str) -> None:
        python = Path(sys.executable)
        pip(python, ["download", *exactly, *target, *options, "-d", folder, "-r", requirements], what, log)

    with tempfile.TemporaryDirectory(prefix="ringside-") as scratch:
        for lock in [environment.lock, *([environment.build_lock] if environment.sources else [])]:
            write_text(Path(scratch) / lock.name, for_images(lock.read_text(encoding="utf-8")))
            download(Path(scratch) / lock.name, f"fetching {shown(lock)}")
        for wheel in environment.wheels:
            sha256 = recorded_sha256(wheel, environment.description, IMAGE_ABI)
            from_index(wheel, sha256, "fetching", indexes, log, download)
        for source in environment.sources:
            tools = make_venv(Path(scratch) / "tools", log)
            pip_install(tools, environment.build_lock, f"installing {shown(environment.build_lock)}", log)
            shutil.copy(sdist(source, tools, Path(scratch), log), folder)
