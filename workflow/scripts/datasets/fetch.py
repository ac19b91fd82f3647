"""Archives of data sets, fetched once for all studies into <cache>/downloads/<data set>/, and verified before they are opened.

Where a file is taken from: the site's folder, and then from nowhere else; or the site's mirror, then the entry's addresses.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.caches import check_trusted
from common.errors import InputError, system_faults
from common.files import read_json, shown, write_json
from common.redaction import redact
from datasets.archives import Archive
from datasets.lock import digests, lock_of, objection, read_lock, record_sha256, remedy
from datasets.transfer import Another, Elsewhere, Patience, forget, transfer
from declared.datasets import table_of
from declared.site import Site
from environments.steps import build_lock, print_progress


@dataclass(frozen=True)
class Store:
    """Where archives are kept (`downloads`) and looked for. `site` is the file in which a person can change that.

    `table`: the file with the data sets' entries, beside which their lock lies; None: the one that has the data set's.
    """

    downloads: Path
    folder: Path | None
    mirror: str | None
    site: str
    table: Path | None = None
    patience: Patience = field(default_factory=Patience)

    def entries(self, dataset: str) -> Path:
        """The file that has the data set's entry."""
        return self.table or table_of(dataset)

    def lock(self, dataset: str) -> Path:
        """The lock that holds the data set's archives."""
        return lock_of(self.entries(dataset))


def store(site: Site) -> Store:
    """The site's."""
    return Store(site.cache / "downloads", site.datasets.folder, site.datasets.mirror, shown(site.file))


def archives(dataset: str, entry: Mapping[str, Any], kept: Store) -> dict[str, Archive]:
    """The data set's archives by name, all there and verified. InputError in one line when one cannot be had."""
    return {declared["name"]: archive(dataset, declared, kept) for declared in entry["files"]}


def hold_to(dataset: str, found: Mapping[str, Archive], kept: Store) -> None:
    """Keep the SHA-256 of archives at their first use; to be called when they were read as a whole, and were good."""
    for name, archive in found.items():
        if archive.sha256:
            record_sha256(dataset, name, archive.sha256, kept.lock(dataset))


def archive(dataset: str, declared: Mapping[str, Any], kept: Store) -> Archive:
    """One archive (`declared`: its entry in the table), from the site's folder or fetched."""
    name = declared["name"]
    read_lock(kept.lock(dataset))  # a broken one is found now, not after the download
    path, origin = (
        _in_folder(dataset, name, kept.folder, kept.site) if kept.folder else _fetched(dataset, declared, kept)
    )
    try:
        sha256 = verified(path, dataset, declared, kept)
    except Another as fault:
        advice = remedy(fault.key, dataset, name, kept.entries(dataset))
        raise InputError(
            "wrong-size" if fault.key == "bytes" else "checksum-mismatch",
            str(fault),
            file=path,
            hint=f"put the published file there; if this is it, {advice}",
        ) from None
    return Archive(path, declared["unpacked_bytes"], origin, sha256)


def verified(path: Path, dataset: str, declared: Mapping[str, Any], kept: Store) -> str:
    """The file's SHA-256. Another when it is not the one declared, or not the one that the lock holds."""
    if path.stat().st_size != declared["bytes"]:
        raise Another(f"has {path.stat().st_size} bytes, the entry says {declared['bytes']}", "bytes")
    md5, found = digests(path)
    if md5 != declared.get("md5", md5):
        raise Another(f"its MD5 is {md5}, the entry says {declared['md5']}", "md5")
    if said := objection(dataset, declared, found, kept.lock(dataset)):
        raise Another(*said)
    return found


def addresses(dataset: str, declared: Mapping[str, Any], mirror: str | None) -> list[str]:
    """Where the file is asked for, in this order."""
    ours = [f"{mirror.rstrip('/')}/{dataset}/{declared['name']}"] if mirror else []
    public = [declared["url"]] if "url" in declared else []
    return list(dict.fromkeys([*ours, *public, *declared.get("mirrors", [])]))


def _in_folder(dataset: str, name: str, folder: Path, site: str) -> tuple[Path, str]:
    """The file in the site's folder, and that as its origin."""
    for path in (folder / dataset / name, folder / name):
        if path.is_file():
            return path, str(path)
    problem, hint = f"there is no {folder / dataset / name}", "put it there, or remove the key"
    raise InputError("missing-file", problem, file=site, key="datasets.folder", hint=hint)


def _fetched(dataset: str, declared: Mapping[str, Any], kept: Store) -> tuple[Path, str]:
    """The file in the cache, fetched unless it is there whole, and the address that it came from."""
    target = kept.downloads / dataset / declared["name"]
    origin = target.with_name(f"{target.name}.origin.json")
    check_trusted(target, kept.downloads.parent)
    if target.is_file() and not os.access(target.parent, os.W_OK, effective_ids=True):  # a cache of others
        return target, _read_origin(origin)
    with system_faults(target), build_lock(target.with_name(f".{target.name}.lock"), f"{dataset}: {target.name}"):
        found = _read_origin(origin)
        if not _usable(dataset, target, declared, kept):
            found = redact(_fetch(dataset, target, declared, kept))
        write_json(origin, {"from": found})  # anew: an older one may have a password
        return target, found


def _usable(dataset: str, target: Path, declared: Mapping[str, Any], kept: Store) -> bool:
    if not target.is_file():
        return False
    try:
        verified(target, dataset, declared, kept)
    except Another as fault:
        print_progress(f"{target}: {fault}; fetching it again")
        target.unlink()
        return False
    return True


def _fetch(dataset: str, target: Path, declared: Mapping[str, Any], kept: Store) -> str:
    """Fetch the file from the first address that has it as declared, and return that."""
    urls = addresses(dataset, declared, kept.mirror)
    faults: dict[str, Elsewhere] = {}
    for url in urls:
        partial = _partial(target, url)
        try:
            transfer(url, partial, declared["bytes"], kept.patience, f"{dataset}: {target.name}")
            verified(partial, dataset, declared, kept)
        except Elsewhere as fault:
            if isinstance(fault, Another):
                forget(partial)
            faults[url] = fault
            continue
        partial.rename(target)
        for other in urls:
            forget(_partial(target, other))
        return url
    raise could_not(dataset, target.name, faults, kept)


def could_not(dataset: str, name: str, faults: Mapping[str, Elsewhere], kept: Store) -> InputError:
    """Return the error with what every address answered, and what a person can do about it; `got`: the answers by address."""
    answers = [f"{url}: {fault}" for url, fault in faults.items()] or ["it has no known address"]
    keys = dict.fromkeys(fault.key for fault in faults.values() if isinstance(fault, Another))
    advice = [f"if that is the right file, {remedy(key, dataset, name, kept.entries(dataset))}" for key in keys]
    if not all(isinstance(fault, Another) for fault in faults.values()) or not faults:
        advice.append(
            f"run `snakemake datasets` where there is internet, or name in {kept.site} a folder that has it "
            "(datasets: {folder: /PATH}) or a mirror (datasets: {mirror: URL})"
        )
    got = {redact(url): redact(str(fault)) for url, fault in faults.items()}
    problem = f"{name} could not be fetched: {'; '.join(answers)}"
    return InputError("not-fetched", problem, file=dataset, got=got, hint="; ".join(advice))


def _partial(target: Path, url: str) -> Path:
    """What came from each address is kept apart, so that a cut download goes on where it was whatever was tried since."""
    return target.with_name(f".{target.name}.{hashlib.sha256(url.encode()).hexdigest()[:8]}.partial")


def _read_origin(file: Path) -> str:
    try:
        return redact(str(read_json(file)["from"]))
    except (OSError, ValueError, TypeError, KeyError):
        return "unknown"
