"""Realize an environment as an Apptainer image, built from its recipe or provided by the site, and test it.

Images are built without privileges, in a user namespace. First, pip with this machine's configuration fetches
the files that the recipe installs. The build sees only a folder with these files, not the configuration.
"""

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from common.errors import InputError
from common.files import CHECKOUT, digest_file, file_signature, node_name, read_json, write_text
from common.redaction import find_secret
from common.shell import capture
from declared.environments import COMPLETE_FILE, Environment, Realization, is_address
from environments import bundled, container, selftest
from environments.container import PROGRAM, Bind, command_in_image
from environments.identity import digest
from environments.packages import DESCRIBE_PYTHON, LIST_PACKAGES, fetch, parse_packages
from environments.recipe import PACKAGES, recipe
from environments.record import BuiltEnvironment, RealizedEnvironment
from environments.steps import Stopwatch, isolated_variables, run_logged

IMAGE = "image.sif"
# Compared with gzip: half the build time, faster to open, the same size.
COMPRESSION = "-comp zstd -Xcompression-level 3"


def check_machine(environment: Environment, realization: Realization) -> None:
    """Check that this machine has Apptainer, and the file or base from which the image is made.

    Raises:
        InputError: If something is missing.
    """
    container.check_machine(environment.name)
    brought = environment.brought(realization)
    if bundled.find_image(environment.name, digest(environment, realization)):
        return
    if not brought and (environment.spack or environment.parent):
        return
    key, source = (f"brought.{environment.name}", brought) if brought else ("base", realization.base)
    if not is_address(source) and not Path(source).exists():
        raise InputError(
            "missing-file", f"there is no {source}", file="the site", key=f"images.{key}", got=source
        )
    _with_mirror(source)


def read_complete_record(folder: Path) -> BuiltEnvironment | None:
    """Return the record of a complete folder; None if the folder is incomplete or its image has changed."""
    try:
        record: BuiltEnvironment = read_json(folder / COMPLETE_FILE)
        image = record["image"]
        return record if image and digest_file(folder / IMAGE) == image["sha256"] else None
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def realize(
    environment: Environment,
    folder: Path,
    parent: BuiltEnvironment | None,
    realization: Realization,
    indexes: Mapping[str, str],
    watch: Stopwatch,
    log: Path,
) -> RealizedEnvironment:
    """Make the image in `folder`, test it, and return the realized part of environment.json.

    The image comes from a bundle, from the site, or from a build, in this order.
    """
    brought = environment.brought(realization)
    draft = folder / f"{IMAGE}.{os.getpid()}.partial"
    try:
        with _scratch() as scratch:
            if packed := bundled.find_image(environment.name, digest(environment, realization)):
                with watch.step("take"):
                    _link(packed, draft)
            elif brought:
                with watch.step("take"):
                    _copy_brought(brought, draft, scratch, log)
            else:
                _build(environment, draft, parent, realization, indexes, scratch, watch, log)
        with watch.step("selftest"):
            files = [str(selftest.DRIVER), str(environment.selftest)]
            program = ["python3", *files, "--limit", f"{environment.selftest_limit_s:g}"]
            command = command_in_image(draft, program, map(Bind, files), environment.variables)
            tested = selftest.run(command, environment.variables, environment.name, log)
        outputs = [
            _run_python(draft, program, environment.name, log) for program in (DESCRIBE_PYTHON, LIST_PACKAGES)
        ]
        draft.replace(folder / IMAGE)  # only after the test
    finally:
        draft.unlink(missing_ok=True)
    version = capture([PROGRAM, "--version"], check=True).stdout.strip()
    return {
        "variables": environment.variables,
        "python": json.loads(outputs[0].splitlines()[-1]),
        "image": {
            "path": str(folder / IMAGE),
            "sha256": digest_file(folder / IMAGE),
            "written": file_signature(folder / IMAGE),
            "source": {"path": brought, "written": file_signature(Path(brought))}
            if brought and Path(brought).is_file()
            else None,
            "base": brought or (environment.spack.base if environment.spack else realization.base),
            "made_by": version,
        },
        "prefixes": [],
        "packages": parse_packages(outputs[1]),
        "wheels": {},
        "selftest": tested,
    }


def _build(
    environment: Environment,
    draft: Path,
    parent: BuiltEnvironment | None,
    realization: Realization,
    indexes: Mapping[str, str],
    scratch: Path,
    watch: Stopwatch,
    log: Path,
) -> None:
    """Build the image `draft` from its recipe, and write the recipe next to it."""
    bind_options: list[str] = []
    if environment.origin == "locks":
        mounted = scratch / "mounted"
        packages = mounted / Path(PACKAGES).name
        packages.mkdir(parents=True)
        with watch.step("fetch"):
            fetch(environment, packages, indexes, log)
        bind_options = ["--bind", f"{mounted}:{Path(PACKAGES).parent}:ro"]
    definition = draft.with_name("recipe.def")
    parent_image = parent["image"]["path"] if parent and parent["image"] else None
    base = realization.base if environment.spack or parent_image else _with_mirror(realization.base)
    text = recipe(environment, base, parent_image, digest(environment, realization))
    write_text(definition, text)
    with watch.step("build"):
        options = ["--fakeroot", "--notest", "--force", f"--mksquashfs-args={COMPRESSION}", *bind_options]
        _apptainer(
            ["build", *options, draft, definition], f"building the image {environment.name}", scratch, log
        )


def _copy_brought(source: str, draft: Path, scratch: Path, log: Path) -> None:
    """Copy an image that the site provides: a file, an unpacked folder, or an image in a registry."""
    if Path(source).is_file():
        shutil.copyfile(source, draft)
    else:
        _apptainer(
            ["build", "--fakeroot", "--force", draft, source], f"taking the image {source}", scratch, log
        )


def _link(packed: Path, draft: Path) -> None:
    """Link the image of a bundle, or copy it if the file system has no hard links."""
    try:
        os.link(packed.resolve(), draft)
    except OSError:
        shutil.copyfile(packed, draft)


def _apptainer(arguments: Sequence[str | Path], task: str, scratch: Path, log: Path) -> None:
    run_logged(
        [PROGRAM, *arguments], task, log, isolated_variables({"APPTAINER_TMPDIR": str(scratch)}), CHECKOUT
    )


def _run_python(image: Path, program: str, name: str, log: Path) -> str:
    """Return the output of a Python program in the image.

    Raises:
        InputError: If the program fails.
    """
    done = capture(command_in_image(image, ["python3", "-c", program]), env=isolated_variables())
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        problem, hint = f"its python3 fails: {last[:300]}", f"its build log is {log}"
        raise InputError("no-answer", problem, file=f"the image of {name}", got=last, hint=hint)
    return done.stdout


def _with_mirror(base: str) -> str:
    """Return the base `debootstrap` with the Debian mirror of this machine's apt, any other unchanged."""
    if base != "debootstrap":
        return base
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Identifier: Packages", "Label: Debian"]
    try:
        mirrors = capture([*command, "Component: main"]).stdout.split()
    except FileNotFoundError:
        mirrors = []
    if not mirrors:
        problem, hint = "this machine's apt names no Debian archive", "write debootstrap:MIRROR"
        raise InputError(
            "not-possible-here", problem, file="the site", key="images.base", got=base, hint=hint
        )
    if secret := find_secret(mirrors[0]):
        problem, hint = (
            f"apt's address of Debian has {secret}, which the image would contain",
            "write debootstrap:MIRROR",
        )
        raise InputError("secret-in-file", problem, file="the site", key="images.base", hint=hint)
    return f"debootstrap:{mirrors[0]}"


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a scratch folder for Apptainer, after removing those of killed processes on this machine.

    A process locks its folder, so an unlocked one belongs to a process that has ended.
    """
    parent = Path(os.environ.get("APPTAINER_TMPDIR") or tempfile.gettempdir())
    prefix = f"ringside-image-{node_name()}-{os.getuid()}-"
    for leftover in parent.glob(f"{prefix}*"):
        # Another user could create a folder with this name whose `lock` links to a file of this user.
        if leftover.lstat().st_uid != os.getuid():
            continue
        with contextlib.suppress(OSError), open(leftover / "lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    with open(folder / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
