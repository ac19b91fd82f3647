"""Patch a source distribution, and compile it into a wheel.

Standard library only: environments.wheels imports this module, and builds of images run a copy of it:

    python compiling.py SOURCE.json SDIST --parent SITE_PACKAGES --out FOLDER

SOURCE.json holds name, version, sha256, flags (name -> value) and patches (file, find, replace).
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

COMMAND = ("setup.py", "bdist_wheel", "--dist-dir")  # arguments of Python; the folder follows


def patched_tree(archive: Path, patches: Iterable[Mapping[str, str]], folder: Path) -> Path:
    """Unpack a source distribution into a new `folder`, patch it, and return the folder of its sources.

    Raises:
        ValueError: If a patch does not fit.
    """
    shutil.unpack_archive(archive, folder)
    (tree,) = folder.iterdir()
    apply_patches(tree, patches)
    return tree


def apply_patches(tree: Path, patches: Iterable[Mapping[str, str]]) -> None:
    """Apply each patch to its file in `tree`.

    Raises:
        ValueError: If the text to replace does not occur exactly once.
    """
    for patch in patches:
        file = tree / patch["file"]
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        if (count := text.count(patch["find"])) != 1:
            raise ValueError(
                f"patches: {patch['find']!r} stands {count} times in {patch['file']}; expected exactly once"
            )
        file.write_text(text.replace(patch["find"], patch["replace"]), encoding="utf-8")


def build_variables(flags: Mapping[str, str], programs: Path, parent: Path) -> dict[str, str]:
    """Return the environment variables of a build, with only a few of this machine's.

    Args:
        flags: Variables for the compiler; {parent} in a value stands for the parent's site-packages.
        programs: The folder of the Python that builds.
        parent: The parent's site-packages.
    """
    machine = {key: os.environ[key] for key in ("HOME", "LD_LIBRARY_PATH", "TMPDIR") if key in os.environ}
    return {
        **machine,
        "LC_ALL": "C.UTF-8",
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}",
        **{key: value.replace("{parent}", str(parent)) for key, value in flags.items()},
    }


def compile_wheel(source: Mapping[str, Any], sdist: Path, parent: Path, out: Path) -> None:
    """Compile a source distribution into a wheel in `out`, with the running Python.

    Raises:
        ValueError: If the file does not have the described SHA-256, or a patch does not fit.
        subprocess.CalledProcessError: If the compilation fails.
    """
    if (digest := hashlib.sha256(sdist.read_bytes()).hexdigest()) != source["sha256"]:
        raise ValueError(f"{sdist.name}: has the SHA-256 {digest}, expected {source['sha256']}")
    with tempfile.TemporaryDirectory() as scratch:
        tree = patched_tree(sdist, source["patches"], Path(scratch) / "tree")
        variables = build_variables(source["flags"], Path(sys.executable).parent, parent)
        subprocess.run([sys.executable, *COMMAND, str(out)], cwd=tree, env=variables, check=True)


def main() -> None:
    """Compile the source that the command line names."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("source", type=Path, help="its description, SOURCE.json")
    parser.add_argument("sdist", type=Path, help="the source distribution")
    parser.add_argument("--parent", type=Path, required=True, help="the packages that it is built against")
    parser.add_argument("--out", type=Path, required=True, help="the wheel's folder")
    options = parser.parse_args()
    try:
        compile_wheel(
            json.loads(options.source.read_text()), options.sdist, options.parent, options.out.resolve()
        )
    except (ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
