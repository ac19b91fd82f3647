"""Fetch archives of data sets into <cache>/downloads/<data set>/, once for all studies, and verify them.

If the site names a folder, archives come only from that folder. Otherwise they come from the site's mirror,
or else from the addresses of their entry.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.caches import check_trusted
from common.errors import InputError, system_faults
from common.files import display_path, read_json, write_json
from common.redaction import redact
from datasets.archives import Archive
from datasets.lock import checksum_conflict, digests, lock_path, mismatch_hint, read_lock, record_sha256
from datasets.transfer import RetryPolicy, SourceError, WrongFileError, transfer
from declared.datasets import table_of
from declared.site import Site
from environments.steps import build_lock, print_progress


@dataclass(frozen=True)
class Store:
    """The places of archives at a site.

    Attributes:
        downloads: Folder for fetched archives.
        folder: The site's folder of archives, or None.
        mirror: The site's mirror, or None.
        site: The site's file, for messages.
        table: File with the entries of the data sets, next to their lock; None: the table that declares the
            data set.
        retry_policy: Timeouts and retries of transfers.
    """

    downloads: Path
    folder: Path | None
    mirror: str | None
    site: str
    table: Path | None = None
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)

    def entries(self, dataset: str) -> Path:
        """Return the file that declares the data set."""
        return self.table or table_of(dataset)

    def lock(self, dataset: str) -> Path:
        """Return the lock of the data set's archives."""
        return lock_path(self.entries(dataset))


def site_store(site: Site) -> Store:
    """Return the store of a site."""
    return Store(
        site.cache / "downloads", site.datasets.folder, site.datasets.mirror, display_path(site.file)
    )


def archives(dataset: str, entry: Mapping[str, Any], store: Store) -> dict[str, Archive]:
    """Return the verified archives of a data set by name.

    Raises:
        InputError: If an archive is missing, cannot be fetched, or is not the declared one.
    """
    return {declared["name"]: archive(dataset, declared, store) for declared in entry["files"]}


def lock_archives(dataset: str, fetched: Mapping[str, Archive], store: Store) -> None:
    """Record the SHA-256 of archives in the lock; call it only after reading all of them without errors."""
    for name, archive in fetched.items():
        if archive.sha256:
            record_sha256(dataset, name, archive.sha256, store.lock(dataset))


def archive(dataset: str, declared: Mapping[str, Any], store: Store) -> Archive:
    """Return one verified archive, from the site's folder or fetched.

    Args:
        dataset: Name of the data set.
        declared: The archive's entry in the table.
        store: The places of archives.

    Raises:
        InputError: If the archive is missing, cannot be fetched, or is not the declared one.
    """
    name = declared["name"]
    read_lock(store.lock(dataset))  # A broken lock fails here, before the download.
    path, origin = (
        _find_in_folder(dataset, name, store.folder, store.site)
        if store.folder
        else _fetched(dataset, declared, store)
    )
    try:
        sha256 = verified(path, dataset, declared, store)
    except WrongFileError as fault:
        advice = mismatch_hint(fault.key, dataset, name, store.entries(dataset))
        raise InputError(
            "wrong-size" if fault.key == "bytes" else "checksum-mismatch",
            str(fault),
            file=path,
            hint=f"put the published file there; if this is it, {advice}",
        ) from None
    return Archive(path, declared["unpacked_bytes"], origin, sha256)


def verified(path: Path, dataset: str, declared: Mapping[str, Any], store: Store) -> str:
    """Return the SHA-256 of an archive after comparing the file with its entry and the lock.

    Raises:
        WrongFileError: If the file contradicts one of them.
    """
    if path.stat().st_size != declared["bytes"]:
        raise WrongFileError(f"has {path.stat().st_size} bytes; the entry says {declared['bytes']}", "bytes")
    md5, sha256 = digests(path)
    if md5 != declared.get("md5", md5):
        raise WrongFileError(f"its MD5 is {md5}; the entry says {declared['md5']}", "md5")
    if conflict := checksum_conflict(dataset, declared, sha256, store.lock(dataset)):
        raise WrongFileError(*conflict)
    return sha256


def addresses(dataset: str, declared: Mapping[str, Any], mirror: str | None) -> list[str]:
    """Return the addresses of a file in the order in which they are tried; `mirror` is the site's."""
    site_urls = [f"{mirror.rstrip('/')}/{dataset}/{declared['name']}"] if mirror else []
    public_urls = [declared["url"]] if "url" in declared else []
    return list(dict.fromkeys([*site_urls, *public_urls, *declared.get("mirrors", [])]))


def _find_in_folder(dataset: str, name: str, folder: Path, site: str) -> tuple[Path, str]:
    """Return the file in the site's folder, and its path as its origin."""
    for path in (folder / dataset / name, folder / name):
        if path.is_file():
            return path, str(path)
    problem, hint = f"{folder / dataset / name} does not exist", "put it there, or remove the key"
    raise InputError("missing-file", problem, file=site, key="datasets.folder", hint=hint)


def _fetched(dataset: str, declared: Mapping[str, Any], store: Store) -> tuple[Path, str]:
    """Return the file in the cache, fetched if needed, and the address it came from."""
    target = store.downloads / dataset / declared["name"]
    origin = target.with_name(f"{target.name}.origin.json")
    check_trusted(target, store.downloads.parent)
    # In a cache of other users, which is read-only, neither a lock nor a download is possible.
    if target.is_file() and not os.access(target.parent, os.W_OK, effective_ids=True):
        return target, _read_origin(origin)
    with (
        system_faults(target),
        build_lock(target.with_name(f".{target.name}.lock"), f"{dataset}: {target.name}"),
    ):
        if not _is_usable(dataset, target, declared, store):
            write_json(origin, {"from": redact(_fetch(dataset, target, declared, store))})
        return target, _read_origin(origin)


def _is_usable(dataset: str, target: Path, declared: Mapping[str, Any], store: Store) -> bool:
    if not target.is_file():
        return False
    try:
        verified(target, dataset, declared, store)
    except WrongFileError as fault:
        print_progress(f"{target}: {fault}; fetching it again")
        target.unlink()
        return False
    return True


def _fetch(dataset: str, target: Path, declared: Mapping[str, Any], store: Store) -> str:
    """Fetch the file from the first address that has the declared one, and return the address."""
    urls = addresses(dataset, declared, store.mirror)
    faults: dict[str, SourceError] = {}
    for url in urls:
        partial = _partial_file(target, url)
        try:
            transfer(url, partial, declared["bytes"], store.retry_policy, f"{dataset}: {target.name}")
            verified(partial, dataset, declared, store)
        except SourceError as fault:
            if isinstance(fault, WrongFileError):
                partial.unlink(missing_ok=True)
            faults[url] = fault
            continue
        partial.rename(target)
        for candidate in urls:
            _partial_file(target, candidate).unlink(missing_ok=True)
        return url
    raise fetch_error(dataset, target.name, faults, store)


def fetch_error(dataset: str, name: str, faults: Mapping[str, SourceError], store: Store) -> InputError:
    """Return the error that lists what each address answered and what the user can do.

    ``got`` has the answers by address.
    """
    answers = [f"{url}: {fault}" for url, fault in faults.items()] or ["it has no known address"]
    keys = dict.fromkeys(fault.key for fault in faults.values() if isinstance(fault, WrongFileError))
    advice = [
        f"if that is the right file, {mismatch_hint(key, dataset, name, store.entries(dataset))}"
        for key in keys
    ]
    if not all(isinstance(fault, WrongFileError) for fault in faults.values()) or not faults:
        advice.append(
            "run `snakemake datasets` on a machine with internet, or set a folder (datasets: {folder: "
            f"/PATH}}) or a mirror (datasets: {{mirror: URL}}) that has it in {store.site}"
        )
    got = {redact(url): redact(str(fault)) for url, fault in faults.items()}
    problem = f"{name} could not be fetched: {'; '.join(answers)}"
    return InputError("not-fetched", problem, file=dataset, got=got, hint="; ".join(advice))


def _partial_file(target: Path, url: str) -> Path:
    """Return the partial file of an address; each address has one, so that its download can be resumed."""
    return target.with_name(f".{target.name}.{hashlib.sha256(url.encode()).hexdigest()[:8]}.partial")


def _read_origin(file: Path) -> str:
    try:
        return str(read_json(file)["from"])
    except (OSError, ValueError, TypeError, KeyError):
        return "unknown"
