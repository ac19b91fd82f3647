"""Find the content of unpacked bundles on a machine without internet, and restrict pip to it.

    bundle/wheels/              the files that pip installs
    bundle/images/              <environment>-<digest>.sif
    bundle/<study>-<site>.json  the manifest of each unpacked bundle (environments.unbundle)

The folder lies in RINGSIDE_CACHE or ~/.cache/ringside, where the Makefile finds it without reading a site.
As a program, this module runs pip for the controller's .venv, which does not exist yet, so it uses only the
standard library.
"""

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.caches import check_trusted
from common.errors import InputError, exit_status
from common.python import python_abi

# Variables that change where pip installs.
PLACES_OF_PIP = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV")
WHEELS, IMAGES = "bundle/wheels", "bundle/images"  # folders of a cache and of a bundle


def bundle_folder() -> Path:
    """Return the folder into which bundles are unpacked; it need not exist."""
    return Path(os.path.expanduser(os.environ.get("RINGSIDE_CACHE") or "~/.cache/ringside")) / "bundle"


def has_bundle() -> bool:
    """Return whether a bundle was unpacked on this machine; then nothing is fetched from a network."""
    return (bundle_folder() / "wheels").is_dir()


def read_manifests() -> list[dict[str, Any]]:
    """Return the manifests of the bundles that were unpacked on this machine.

    Raises:
        InputError: If one of them cannot be read.
    """
    manifests = []
    for file in sorted(bundle_folder().glob("*.json")):
        try:
            manifest = json.loads(file.read_text(encoding="utf-8"))
            # Reading the fields that this module uses raises an error if one is missing.
            _ = [manifest[key] for key in ("study", "site", "python_abi")], dict(manifest["locks"])
            _ = [entry["sha256"] for entry in manifest["files"].values()]
            manifests.append(manifest)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            hint = "unpack the bundle again: ./ringside unbundle FILE"
            raise InputError("unreadable-file", f"cannot be read ({error})", file=file, hint=hint) from None
    return manifests


def pip_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process that calls pip: `variables` without PLACES_OF_PIP.

    With a bundle, all of pip's configuration is replaced, so that pip searches only the bundle's wheels.
    """
    remaining = {key: value for key, value in variables.items() if key not in PLACES_OF_PIP} | {
        "PIP_USER": "0"
    }
    if not has_bundle():
        return remaining
    remaining = {key: value for key, value in remaining.items() if not key.startswith("PIP_")}
    bundle_options = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": (bundle_folder() / "wheels").resolve().as_uri()}
    return {**remaining, "PIP_CONFIG_FILE": os.devnull, "PIP_USER": "0", **bundle_options}


def find_image(environment: str, digest: str) -> Path | None:
    """Return the image of an environment with this digest from a bundle, or None if no bundle has it.

    Raises:
        InputError: If another user could have written the file.
    """
    path = bundle_folder() / "images" / image_name(environment, digest)
    if not path.is_file():
        return None
    check_trusted(path, bundle_folder().parent)
    return path


def image_name(environment: str, digest: str) -> str:
    """Return the file name of an image in a bundle."""
    return f"{environment}-{digest[:12]}.sif"


def digest(file: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def has_lock(name: str, lock: Path) -> bool:
    """Return whether a bundle on this machine has the wheels of a lock for this Python.

    Args:
        name: The lock's path in the checkout.
        lock: The file.
    """
    return any(
        manifest["python_abi"] == python_abi() and manifest["locks"].get(name) == digest(lock)
        for manifest in read_manifests()
    )


def has_file(sha256: str) -> bool:
    """Return whether a bundle on this machine has a file with this SHA-256."""
    return any(
        sha256 == file["sha256"] for manifest in read_manifests() for file in manifest["files"].values()
    )


def missing_error(missing: str) -> InputError:
    """Return the error that no bundle on this machine has `missing`."""
    bundles = [
        f"{manifest['study']} at {manifest['site']} for {manifest['python_abi']}"
        for manifest in read_manifests()
    ]
    return InputError(
        "not-in-bundle",
        f"has no {missing}; it has bundles of {', '.join(bundles) or 'nothing'}",
        file=bundle_folder(),
        hint="make one on a machine with internet (./ringside bundle STUDY --site SITE) and unpack it "
        "here (./ringside unbundle FILE); if this machine has internet, remove the folder",
    )


def main() -> None:
    """Replace this process by pip with the same arguments, the last of which is a lock."""
    lock = Path(sys.argv[-1])
    if has_bundle() and not has_lock(lock.name, lock):
        raise missing_error(f"wheels of this {lock} for {python_abi()}")
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    os.execve(sys.executable, [sys.executable, "-m", "pip", *sys.argv[1:]], pip_variables(variables))  # noqa: S606


if __name__ == "__main__":
    sys.exit(exit_status(main))
