"""Compile libraries that tests load, once for all workers of pytest."""

import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from common.files import hold_lock
from support.workers import shared_folder


def compile_once(library: Path, command: Sequence[str | Path], text: str = "") -> None:
    """Compile a library, unless it exists, by a command without its `-o`, which reads `text` from a pipe."""
    with hold_lock(library.with_suffix(".lock"), lambda: None):
        if not library.exists():
            partial = library.with_suffix(".partial")
            subprocess.run([*command, "-o", partial], input=text, text=True, check=True)
            os.replace(partial, library)


def compile_library(
    source: Path, soname: str, factory: pytest.TempPathFactory, unsupported: Iterable[str] = ()
) -> Path:
    """Compile a library in a driver's place, in a folder of its own for LD_LIBRARY_PATH; return it.

    Args:
        source: The C file.
        soname: Name of the library.
        factory: pytest's.
        unsupported: Functions that the file may lack, and that return 2, `not supported`, then.
    """
    folder = shared_folder(factory) / source.stem
    folder.mkdir(exist_ok=True)
    options = (
        "-std=gnu11",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        f"-Wl,-soname,{soname}",
    )
    rest = "".join(f"__attribute__((weak)) int {name}(void) {{ return 2; }}\n" for name in unsupported)
    compile_once(folder / soname, ["cc", *options, source, "-x", "c", "-"], rest)
    return folder / soname
