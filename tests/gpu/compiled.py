"""Compile libraries that stand in a driver's place."""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from common.files import locked
from support.workers import shared_folder


def compile_library(
    source: Path, soname: str, factory: pytest.TempPathFactory, unsupported: Iterable[str] = ()
) -> Path:
    """Compile a library once for all workers of pytest, in a folder of its own for LD_LIBRARY_PATH; return it.

    Args:
        source: The C file.
        soname: Name of the library.
        factory: pytest's.
        unsupported: Functions that the file may lack, and that return 2, `not supported`, then.
    """
    folder = shared_folder(factory) / source.stem
    folder.mkdir(exist_ok=True)
    library = folder / soname
    with locked(folder / "lock", lambda: None):
        if not library.exists():
            rest = folder / "unsupported.c"
            rest.write_text(
                "".join(f"__attribute__((weak)) int {name}(void) {{ return 2; }}\n" for name in unsupported)
            )
            partial = library.with_suffix(".partial")
            options = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
            files = (source, rest, f"-Wl,-soname,{soname}", "-o", partial)
            subprocess.run(["cc", *options, *files], check=True)
            os.replace(partial, library)
    return library
