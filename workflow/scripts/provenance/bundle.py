"""Pack everything that a study needs at a site without internet; `ringside unbundle` unpacks it there.

A bundle contains the wheels of the controller, the wheels and sources of the study's environments (or their
images, at a site with images), and the archives of data sets. Files that the cache already has are not
fetched again. The same content gives the same bundle, byte by byte.
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
from common.files import CHECKOUT, digest_file, display_path, load_yaml, written_whole
from common.python import python_abi
from common.text import format_bytes, number_of
from datasets.fetch import archives, site_store
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
from plan.campaign import Campaign, load_merged_config, plan_campaign
from report.checkout import checkout_state

CONTROLLER = CHECKOUT / "requirements.txt"
MANYLINUX = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
NO_GLIBC = (2, 0)


@dataclass
class Content:
    """The content of a bundle.

    Attributes:
        files: Files by their paths in a cache.
        locks: SHA-256 of the locks whose files are included, by path.
    """

    files: dict[str, Path] = field(default_factory=dict)
    locks: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, files: Mapping[str, Path]) -> None:
        """Add `files`, and print their number and size."""
        self.files |= files
        self.report(
            f"{name}: {number_of(len(files), 'file')}, "
            f"{format_bytes(sum(file.stat().st_size for file in files.values()))}"
        )

    def report(self, line: str) -> None:
        """Print a line of progress."""
        print_progress(f"bundle: {line}")


def list_environments(campaign: Campaign) -> list[Environment]:
    """Return the environments of the study at the site, including those of tools that it needs."""
    is_needed = {"extrap": campaign.study.extra_p, "planner": bool(timings.required_timings(campaign.runs))}
    tool_environments = [read(name) for name, needed in is_needed.items() if needed]
    return [read(name, campaign.site.variant) for name in campaign.environments] + tool_environments


def check_available(campaign: Campaign) -> None:
    """Raise InputError if this machine lacks a wheel for its Python, or Apptainer for an image."""
    for environment in list_environments(campaign):
        match environment.deployment(campaign.site.realization):
            case "venv":
                for wheel in environment.wheels:
                    recorded_sha256(wheel, environment.description, python_abi())
            case "apptainer" if not brings_own_image(environment, campaign):
                check_machine(environment, campaign.site.realization)


def collect_content(campaign: Campaign) -> Content:
    """Return the content of the bundle, after fetching and building what the cache lacks."""
    content, site = Content(), campaign.site
    fetched = site.cache / "fetched" / python_abi()
    log = site.cache / "fetched" / "fetch.log"
    indexes = {"torch_index": site.torch_index or ""}
    fetched.mkdir(parents=True, exist_ok=True)
    with build_lock(fetched.with_name(f".{fetched.name}.lock"), "wheels for a bundle"):
        content.report(f"fetching files that {fetched} lacks; log: {log}")
        allowed = fetch_lock(CONTROLLER, fetched, running_pythons, log)
        content.locks[display_path(CONTROLLER)] = digest_file(CONTROLLER)
        content.add("the controller", select_files(fetched, allowed))
        for environment in list_environments(campaign):
            add_environment(content, environment, campaign, fetched, indexes, log)
    for dataset in campaign.datasets:
        add_dataset(content, dataset, campaign)
    return content


def add_environment(
    content: Content,
    environment: Environment,
    campaign: Campaign,
    fetched: Path,
    indexes: Mapping[str, str],
    log: Path,
) -> None:
    """Add wheels, sources or image of an environment."""
    site, name = campaign.site, environment.name
    deployment = environment.deployment(site.realization)
    if deployment == "installed" or brings_own_image(environment, campaign):
        content.report(f"{name}: not included, the site has it ({display_path(site.file)}: {deployment})")
    elif deployment == "apptainer":
        build(environment, site.cache, indexes, site.realization)
        image_digest = digest(environment, site.realization)
        path = site.cache / "environments" / name / image_digest[:12] / IMAGE
        content.add(f"{name}, an image", {f"{bundled.IMAGES}/{bundled.image_name(name, image_digest)}": path})
    else:
        allowed = fetch(environment, fetched, indexes, log, running_pythons)
        for lock in [environment.lock, *([environment.build_lock] if environment.sources else [])]:
            content.locks[display_path(lock)] = digest_file(lock)
        content.add(name, select_files(fetched, allowed))
        for source in environment.sources:
            pairs = [file for pair in cached_wheels(source, environment, site.cache) for file in pair]
            content.add(
                f"{source.name}, built on this machine",
                {f"wheels/{file.parent.name}/{file.name}": file for file in pairs},
            )


def add_dataset(content: Content, dataset: str, campaign: Campaign) -> None:
    """Add the archives of a data set."""
    entry, archive_store = load_dataset(dataset), site_store(campaign.site)
    if "folder" in entry:
        content.report(f"{dataset}: not included, the site needs the folder {entry['folder']}")
    elif "files" not in entry:
        content.report(f"{dataset}: needs no files")
    elif archive_store.folder:
        content.report(f"{dataset}: not included, the site has it ({archive_store.site}: datasets.folder)")
    else:
        paths = [archive.path for archive in archives(dataset, entry, archive_store).values()]
        origins = [
            origin for path in paths if (origin := path.with_name(f"{path.name}.origin.json")).is_file()
        ]
        content.add(dataset, {f"downloads/{dataset}/{path.name}": path for path in [*paths, *origins]})


def brings_own_image(environment: Environment, campaign: Campaign) -> bool:
    """Return whether the site provides the environment's image as a file."""
    brought = environment.brought(campaign.site.realization)
    return bool(brought) and not is_address(str(brought))


def select_files(fetched: Path, allowed: Iterable[str]) -> dict[str, Path]:
    """Return the fetched files whose SHA-256 is allowed, by their names in a bundle."""
    digests = set(allowed)
    files = [file for file in sorted(fetched.iterdir()) if file.is_file() and digest_file(file) in digests]
    return {f"{bundled.WHEELS}/{file.name}": file for file in files}


def glibc_of(wheel: str) -> tuple[int, int]:
    """Return the oldest glibc that a wheel's name allows."""
    needed = []
    for tag in parse_wheel_filename(wheel)[3]:
        policy, _, rest = tag.platform.partition("_")
        if policy == "manylinux":
            needed.append((int(rest.split("_")[0]), int(rest.split("_")[1])))
        else:
            needed.append(MANYLINUX.get(policy, NO_GLIBC))
    return min(needed)


def build_manifest(content: Content, campaign: Campaign) -> dict[str, Any]:
    """Return the bundle's manifest: study, site, requirements on the machine, and SHA-256 of files."""
    wheels = [
        name.rpartition("/")[2]
        for name in content.files
        if name.startswith(bundled.WHEELS) and name.endswith(".whl")
    ]
    # A wheel has to be unpacked before its wheel.json, which marks it as complete.
    ordered = sorted(content.files, key=lambda name: (name.endswith("/wheel.json"), name))
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
        "commit": checkout_state().commit or "",
        "cache": load_yaml(campaign.site.file)["cache"],
        "locks": dict(sorted(content.locks.items())),
        "files": files,
    }


def pack(content: Mapping[str, Any], files: Mapping[str, Path], out: Path) -> None:
    """Write an uncompressed tar of the manifest and its files, in this order, without dates and owners."""
    text = (json.dumps(content, indent=1) + "\n").encode()
    with written_whole(out) as partial, tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as bundle:
        bundle.addfile(tar_entry(MANIFEST, len(text)), io.BytesIO(text))
        for name, entry in content["files"].items():
            with open(files[name], "rb") as file:
                bundle.addfile(tar_entry(name, entry["bytes"]), file)


def tar_entry(name: str, size_bytes: int) -> tarfile.TarInfo:
    """Return the header of a file in the tar."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size_bytes, 0o644
    return entry


def make_bundle(study: str = "", site: str = "") -> None:
    """Pack everything that a study needs at a site into results/<study>/<study>-<site>.bundle.tar.

    Raises:
        InputError: If the site can run no cell of the study, or something is not available.
    """
    config = load_config(load_merged_config(study, site))
    campaign = plan_campaign(load_study(config.study), load_site(config.site))
    if not campaign.record_paths:
        raise InputError(
            "nothing-to-run",
            f"cannot run any cell of {campaign.study.name}, so there is nothing to pack",
            file=campaign.site.file,
        )
    check_available(campaign)
    out = campaign.results / f"{campaign.study.name}-{campaign.site.name}.bundle.tar"
    with system_faults(out):
        with follow_modes(campaign.site.cache):
            parts = collect_content(campaign)
        content = build_manifest(parts, campaign)
        print_progress(f"bundle: writing {out}")
        pack(content, parts.files, out)
    print(
        f"{out}: {number_of(len(parts.files), 'file')}, {format_bytes(out.stat().st_size)}; "
        f"there: ./ringside unbundle {out.name}"
    )
