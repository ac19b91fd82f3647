"""What bundles have brought to this machine, which has no internet: where it lies, and how pip then looks in there alone.

    bundle/wheels/              the files that pip installs
    bundle/images/              <environment>-<digest>.sif
    bundle/<study>-<site>.json  the manifest of each bundle that was unpacked (environments.unbundle)

The folder lies in RINGSIDE_CACHE or ~/.cache/ringside, where the Makefile finds it without reading a site. Standard library
only: as a program it is pip for the controller's .venv, which is not there yet.
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

PLACES_OF_PIP = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV")
WHEELS, IMAGES = "bundle/wheels", "bundle/images"  # in a cache, and in a bundle


def folder() -> Path:
    """Where unpacked bundles are looked for, whether there is one or not."""
    return Path(os.path.expanduser(os.environ.get("RINGSIDE_CACHE") or "~/.cache/ringside")) / "bundle"


def there() -> bool:
    """Whether a bundle was unpacked here: then nothing is asked of a network."""
    return (folder() / "wheels").is_dir()


def manifests() -> list[dict[str, Any]]:
    """What the bundles that were unpacked here say of themselves. InputError when one cannot be read."""
    found = []
    for file in sorted(folder().glob("*.json")):
        try:
            manifest = json.loads(file.read_text(encoding="utf-8"))
            _ = [manifest[key] for key in ("study", "site", "python_abi")], dict(manifest["locks"])
            _ = [each["sha256"] for each in manifest["files"].values()]
            found.append(manifest)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            hint = "unpack the bundle again: ./ringside unbundle FILE"
            raise InputError("unreadable-file", f"cannot be read ({error})", file=file, hint=hint) from None
    return found


def pip_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """`variables` of a process for pip, which installs where it is told to, whatever modules of a cluster have set; where a bundle is, it
    finds nothing else, whatever it is configured for."""
    kept = {key: value for key, value in variables.items() if key not in PLACES_OF_PIP} | {"PIP_USER": "0"}
    if not there():
        return kept
    kept = {key: value for key, value in kept.items() if not key.startswith("PIP_")}
    found = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": (folder() / "wheels").resolve().as_uri()}
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_USER": "0", **found}


def image(environment: str, digest: str) -> Path | None:
    """The image of an environment with this digest, if a bundle has brought it. InputError where another user could have put it there."""
    path = folder() / "images" / image_name(environment, digest)
    if not path.is_file():
        return None
    check_trusted(path, folder().parent)
    return path


def image_name(environment: str, digest: str) -> str:
    """How the image of an environment with this digest is called in a bundle."""
    return f"{environment}-{digest[:12]}.sif"


def digest(file: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def has_lock(name: str, lock: Path) -> bool:
    """Whether a bundle here brings what `lock`, called `name` in the checkout, has for this Python."""
    return any(each["python_abi"] == python_abi() and each["locks"].get(name) == digest(lock) for each in manifests())


def has_file(sha256: str) -> bool:
    """Whether a bundle here brings a file with this SHA-256."""
    return any(sha256 == file["sha256"] for each in manifests() for file in each["files"].values())


def lacking(what: str) -> InputError:
    """What to say and to do when no bundle here has `what`."""
    of = ", ".join(f"{each['study']} at {each['site']} for {each['python_abi']}" for each in manifests()) or "nothing"
    return InputError(
        "not-in-bundle",
        f"has no {what}; the bundles there are of {of}",
        file=folder(),
        hint="make another where there is internet (./ringside bundle STUDY --site SITE) and unpack it here (./ringside unbundle FILE); "
        "if there is internet here, remove that folder",
    )


def main() -> None:
    """Call pip with the arguments of this program, for the lock that is the last of them."""
    lock = Path(sys.argv[-1])
    if there() and not has_lock(lock.name, lock):
        raise lacking(f"wheels of this {lock} for {python_abi()}")
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    os.execve(sys.executable, [sys.executable, "-m", "pip", *sys.argv[1:]], pip_variables(variables))  # noqa: S606


if __name__ == "__main__":
    sys.exit(exit_status(main))
