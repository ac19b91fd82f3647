"""Bundles of small files, packed as ./ringside bundle packs them, and the checkout with their locks."""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.files import digest_file
from common.python import python_abi
from environments.unbundle import FORMAT
from provenance.bundle import pack

WHEEL_FOLDER = "wheels/0123456789ab"


@dataclass
class Bundle:
    """A bundle to pack in `folder`.

    Attributes:
        folder: Where it is packed.
        files: Path in a cache -> file to pack.
        changes: Entries of the manifest that differ from a valid one.
    """

    folder: Path
    files: dict[str, Path] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def checkout(self) -> Path:
        """The checkout with the lock that the bundle is made for."""
        return self.folder / "checkout"

    @property
    def tar(self) -> Path:
        """The packed bundle."""
        return self.folder / "small-local.bundle.tar"

    def content(self) -> dict[str, bytes]:
        """Return the content of each file by its path in a cache."""
        return {name: path.read_bytes() for name, path in self.files.items()}

    def manifest(self) -> dict[str, Any]:
        """Return the manifest, with `changes` applied."""
        files = {
            name: {"bytes": path.stat().st_size, "sha256": digest_file(path)}
            for name, path in self.files.items()
        }
        return {
            "format": FORMAT,
            "study": "small",
            "site": "local",
            "variant": "cpu",
            "deployment": "venv",
            "python_abi": python_abi(),
            "glibc": "2.17",
            "commit": "0123456789abcdef",
            "cache": "~/.cache/ringside",
            "locks": {"requirements.txt": digest_file(self.checkout / "requirements.txt")},
            "files": files,
        } | self.changes

    def pack(self) -> Path:
        """Pack the bundle and return its path."""
        pack(self.manifest(), self.files, self.tar)
        return self.tar


def bundle(folder: Path, count: int = 5, size_bytes: int = 30_000) -> Bundle:
    """Return a bundle with `count` wheels, a built wheel, an archive of a data set and an image.

    Its checkout is written, too.
    """
    new_bundle = Bundle(folder)
    names = [f"bundle/wheels/package_{number}-1.0-py3-none-any.whl" for number in range(count)]
    names += ["bundle/images/pytorch-0123456789ab.sif", "downloads/cifar-10/cifar-10-binary.tar.gz"]
    for name in [
        *names,
        f"{WHEEL_FOLDER}/horovod-0.28.1-cp311-cp311-linux_x86_64.whl",
        f"{WHEEL_FOLDER}/wheel.json",
    ]:
        new_bundle.files[name] = folder / "sources" / name
        new_bundle.files[name].parent.mkdir(parents=True, exist_ok=True)
        new_bundle.files[name].write_bytes(hashlib.shake_128(name.encode()).digest(size_bytes))
    new_bundle.checkout.mkdir()
    (new_bundle.checkout / "requirements.txt").write_text("one==1 --hash=sha256:00\n")
    return new_bundle


def in_cache(cache: Path) -> dict[str, bytes]:
    """Return the content of all files in a cache by path, except locks."""
    paths = [Path(folder, name) for folder, _, names in os.walk(cache) for name in names]
    return {str(path.relative_to(cache)): path.read_bytes() for path in paths if path.name != ".lock"}
