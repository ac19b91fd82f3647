"""One file with all that a study needs at a site without internet, where `ringside unbundle` puts it into the cache (environments.unbundle).

What it holds: the wheels of the controller and of the study's environments, sources of Horovod and its wheels that are kept, or the
images where the site has images; the archives of the data sets. What is in the cache already is not fetched again. The same
content makes the same file, byte by byte.
"""

import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

from common.caches import follow_modes
from common.errors import InputError, system_faults
from common.files import CHECKOUT, digest_file, load_yaml, shown, written_whole
from common.python import python_abi
from common.text import number_of, size
from datasets.fetch import archives, store
from declared.configuration import load_config
from declared.datasets import load_dataset
from declared.environments import Environment, is_address, read
from declared.site import load_site
from declared.study import load_study
from environments import bundled
from environments.build import build, check_machine
from environments.identity import digest
from environments.image import IMAGE
from environments.packages import fetch, fetch_lock, running_pythons
from environments.steps import build_lock, print_progress
from environments.unbundle import FORMAT, MANIFEST
from environments.wheels import cached_wheels, recorded_sha256
from plan import timings
from plan.campaign import Campaign, configured, planned
from report.checkout import state

CONTROLLER = CHECKOUT / "requirements.txt"
MANYLINUX = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
NO_GLIBC = (2, 0)


@dataclass
class Content:
    """What goes into a bundle: `files` by their names in it (places in a cache), the locks that they fulfil."""

    files: dict[str, Path] = field(default_factory=dict)
    locks: dict[str, str] = field(default_factory=dict)

    def add(self, what: str, files: Mapping[str, Path]) -> None:
        """Take `files`, and say what they are."""
        self.files |= files
        self.tell(
            f"{what}: {number_of(len(files), 'file')}, {size(sum(file.stat().st_size for file in files.values()))}"
        )

    def tell(self, line: str) -> None:
        """One line for the person who waits."""
        print_progress(f"bundle: {line}")


def environments(campaign: Campaign) -> list[Environment]:
    """The environments that the study needs at the site, with what it compares predictions with, and what finds strategies."""
    tools = {"extrap": campaign.study.extra_p, "planner": bool(timings.wanted(campaign.runs))}
    wanted = [read(name) for name, is_wanted in tools.items() if is_wanted]
    return [read(name, campaign.site.variant) for name in campaign.environments] + wanted


def check(campaign: Campaign) -> None:
    """InputError when a part cannot be had on this machine: a wheel for this Python, Apptainer for an image."""
    for environment in environments(campaign):
        match environment.deployment(campaign.site.realization):
            case "venv":
                for wheel in environment.wheels:
                    recorded_sha256(wheel, environment.description, python_abi())
            case "apptainer" if not _is_own(environment, campaign):
                check_machine(environment, campaign.site.realization)


def collect(campaign: Campaign) -> Content:
    """Fetch and build what the bundle is to hold, but for what the cache has."""
    content, site = Content(), campaign.site
    fetched = site.cache / "fetched" / python_abi()
    log = site.cache / "fetched" / "fetch.log"
    indexes = {"torch_index": site.torch_index or ""}
    fetched.mkdir(parents=True, exist_ok=True)
    with build_lock(fetched.with_name(f".{fetched.name}.lock"), "wheels for a bundle"):
        content.tell(f"fetching what {fetched} does not have; log: {log}")
        allowed = fetch_lock(CONTROLLER, fetched, running_pythons, log)
        content.locks[shown(CONTROLLER)] = digest_file(CONTROLLER)
        content.add("the controller", _of(fetched, allowed))
        for environment in environments(campaign):
            _add_environment(content, environment, campaign, fetched, indexes, log)
    for dataset in campaign.datasets:
        _add_dataset(content, dataset, campaign)
    return content


def _add_environment(
    content: Content,
    environment: Environment,
    campaign: Campaign,
    fetched: Path,
    indexes: Mapping[str, str],
    log: Path,
) -> None:
    site, name = campaign.site, environment.name
    deployment = environment.deployment(site.realization)
    if deployment == "installed" or _is_own(environment, campaign):
        content.tell(f"{name}: not in it, since the site has it ({shown(site.file)}: {deployment})")
    elif deployment == "apptainer":
        build(environment, site.cache, indexes, site.realization)
        wanted = digest(environment, site.realization)
        path = site.cache / "environments" / name / wanted[:12] / IMAGE
        content.add(f"{name}, an image", {f"{bundled.IMAGES}/{bundled.image_name(name, wanted)}": path})
    else:
        allowed = fetch(environment, fetched, indexes, log, running_pythons)
        for lock in [environment.lock, *([environment.build_lock] if environment.sources else [])]:
            content.locks[shown(lock)] = digest_file(lock)
        content.add(name, _of(fetched, allowed))
        for source in environment.sources:
            pairs = [file for pair in cached_wheels(source, environment, site.cache) for file in pair]
            content.add(
                f"{source.name} as it was built here",
                {f"wheels/{file.parent.name}/{file.name}": file for file in pairs},
            )


def _add_dataset(content: Content, dataset: str, campaign: Campaign) -> None:
    entry, kept_at = load_dataset(dataset), store(campaign.site)
    if "files" not in entry:
        content.tell(f"{dataset}: needs no file")
    elif kept_at.folder:
        content.tell(f"{dataset}: not in it, since the site has it ({kept_at.site}: datasets.folder)")
    else:
        found = [archive.path for archive in archives(dataset, entry, kept_at).values()]
        origins = [origin for path in found if (origin := path.with_name(f"{path.name}.origin.json")).is_file()]
        content.add(dataset, {f"downloads/{dataset}/{path.name}": path for path in [*found, *origins]})


def _is_own(environment: Environment, campaign: Campaign) -> bool:
    """Whether the site brings the environment's image as a file of its own."""
    brought = environment.brought(campaign.site.realization)
    return bool(brought) and not is_address(str(brought))


def _of(fetched: Path, allowed: Iterable[str]) -> dict[str, Path]:
    """The fetched files whose SHA-256 is allowed, by their names in a bundle."""
    wanted = set(allowed)
    files = [file for file in sorted(fetched.iterdir()) if file.is_file() and digest_file(file) in wanted]
    return {f"{bundled.WHEELS}/{file.name}": file for file in files}


def glibc_of(wheel: str) -> tuple[int, int]:
    """The oldest glibc that a wheel's name allows."""
    needed = []
    for tag in parse_wheel_filename(wheel)[3]:
        policy, _, rest = tag.platform.partition("_")
        if policy == "manylinux":
            needed.append((int(rest.split("_")[0]), int(rest.split("_")[1])))
        else:
            needed.append(MANYLINUX.get(policy, NO_GLIBC))
    return min(needed)


def manifest(content: Content, campaign: Campaign) -> dict[str, Any]:
    """What the bundle says of itself: for whom it is, of what it was made, and the SHA-256 of every file."""
    wheels = [
        name.rpartition("/")[2] for name in content.files if name.startswith(bundled.WHEELS) and name.endswith(".whl")
    ]
    ordered = sorted(
        content.files, key=lambda name: (name.endswith("/wheel.json"), name)
    )  # a kept wheel before what says so
    files = {
        name: {"bytes": content.files[name].stat().st_size, "sha256": digest_file(content.files[name])}
        for name in ordered
    }
    return {
        "format": FORMAT,
        "study": campaign.study.name,
        "site": campaign.site.name,
        "variant": campaign.site.variant,
        "deployment": campaign.site.deployment,
        "python_abi": python_abi(),
        "glibc": ".".join(map(str, max(map(glibc_of, wheels), default=NO_GLIBC))),
        "commit": state().commit or "",
        "cache": load_yaml(campaign.site.file)["cache"],
        "locks": dict(sorted(content.locks.items())),
        "files": files,
    }


def pack(described: Mapping[str, Any], files: Mapping[str, Path], out: Path) -> None:
    """A tar of the manifest and the files that it names, in its order, without dates and owners. Not compressed: wheels are."""
    text = (json.dumps(described, indent=1) + "\n").encode()
    with written_whole(out) as partial, tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as bundle:
        bundle.addfile(_entry(MANIFEST, len(text)), io.BytesIO(text))
        for name, told in described["files"].items():
            with open(files[name], "rb") as file:
                bundle.addfile(_entry(name, told["bytes"]), file)


def _entry(name: str, size_bytes: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size_bytes, 0o644
    return entry


def make_bundle(study: str = "", site: str = "") -> None:
    """Pack all that a study needs at a site into results/<study>/<study>-<site>.bundle.tar, for a machine without internet."""
    config = load_config(configured(study, site))
    campaign = planned(load_study(config.study), load_site(config.site))
    if not campaign.records:
        raise InputError(
            "nothing-to-run",
            f"can run nothing of {campaign.study.name}, so there is nothing to pack",
            file=shown(campaign.site.file),
        )
    check(campaign)
    out = campaign.results / f"{campaign.study.name}-{campaign.site.name}.bundle.tar"
    with system_faults(out):
        with follow_modes(campaign.site.cache):
            content = collect(campaign)
        described = manifest(content, campaign)
        print_progress(f"bundle: writing {out}")
        pack(described, content.files, out)
    print(
        f"{out}: {number_of(len(content.files), 'file')}, {size(out.stat().st_size)}; there: ./ringside unbundle {out.name}"
    )
