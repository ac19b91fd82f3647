"""Archives of data sets, fetched once for all studies into <cache>/downloads/<data set>/, and verified before they are opened.

Where a file is taken from: the site's folder, and then from nowhere else; or the site's mirror, then the entry's addresses.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import shown, write_json
from datasets.archives import Archive
from datasets.lock import LOCK, digests, locked_sha256, record_sha256
from datasets.transfer import Elsewhere, Patience, forget, transfer
from environments.steps import building, say
from plan.site import Site


@dataclass(frozen=True)
class Store:
    """Where archives are kept (`downloads`) and looked for. `site` is the file in which a person can change that."""

    downloads: Path
    folder: Path | None
    mirror: str | None
    site: str
    lock: Path = LOCK
    patience: Patience = field(default_factory=Patience)


def store(site: Site) -> Store:
    """The site's."""
    return Store(site.cache / "downloads", site.datasets.folder, site.datasets.mirror, shown(site.file))


def archives(dataset: str, entry: Mapping[str, Any], kept: Store) -> dict[str, Archive]:
    """The data set's archives by name, all there and verified. InputError in one line when one cannot be had."""
    return {declared["name"]: archive(dataset, declared, kept) for declared in entry["files"]}


def archive(dataset: str, declared: Mapping[str, Any], kept: Store) -> Archive:
    """One archive (`declared`: its entry in the table), from the site's folder or fetched; its SHA-256 goes to the lock."""
    name = declared["name"]
    path, origin = (
        _in_folder(dataset, name, kept.folder, kept.site) if kept.folder else _fetched(dataset, declared, kept)
    )
    why, sha256 = objection(path, declared, locked_sha256(dataset, name, kept.lock))
    if why:
        raise InputError(f"{path}: {why}; put the published file there")
    record_sha256(dataset, name, sha256, kept.lock)
    return Archive(path, declared["unpacked_bytes"], origin, sha256)


def objection(path: Path, declared: Mapping[str, Any], sha256: str | None) -> tuple[str | None, str]:
    """Why the file is not the one declared (None where it is), and its SHA-256. `sha256`: what the lock says, if it does."""
    if path.stat().st_size != declared["bytes"]:
        return f"has {path.stat().st_size} bytes, the entry says {declared['bytes']}", ""
    md5, found = digests(path)
    if md5 != declared.get("md5", md5):
        return f"its MD5 is {md5}, the entry says {declared['md5']}", found
    if found != (sha256 or found):
        return f"its SHA-256 is {found}, table.lock.yaml says {sha256}", found
    return None, found


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
    raise InputError(
        f"{site}: datasets.folder: there is no {folder / dataset / name}; put it there, or take the key out"
    )


def _fetched(dataset: str, declared: Mapping[str, Any], kept: Store) -> tuple[Path, str]:
    """The file in the cache, fetched unless it is there whole, and the address that it came from."""
    target = kept.downloads / dataset / declared["name"]
    origin = target.with_name(f"{target.name}.origin.json")
    try:
        with building(target.with_name(f".{target.name}.lock"), f"{dataset}: {target.name}"):
            if not _usable(dataset, target, declared, kept):
                write_json(origin, {"from": _fetch(dataset, target, declared, kept)})
            return target, _read_origin(origin)
    except OSError as error:
        raise InputError(f"{error.filename or target}: {error.strerror}; correct it, then start again") from None


def _usable(dataset: str, target: Path, declared: Mapping[str, Any], kept: Store) -> bool:
    if not target.is_file():
        return False
    why, _ = objection(target, declared, locked_sha256(dataset, target.name, kept.lock))
    if why:
        say(f"{target}: {why}; fetching it again")
        target.unlink()
    return not why


def _fetch(dataset: str, target: Path, declared: Mapping[str, Any], kept: Store) -> str:
    """Fetch the file from the first address that has it as declared, and return that."""
    urls = addresses(dataset, declared, kept.mirror)
    said = []
    for url in urls:
        partial = _partial(target, url)
        try:
            transfer(url, partial, declared["bytes"], kept.patience, f"{dataset}: {target.name}")
        except Elsewhere as fault:
            said.append(f"{url}: {fault}")
            continue
        why, _ = objection(partial, declared, locked_sha256(dataset, target.name, kept.lock))
        if why is None:
            partial.rename(target)
            for other in urls:
                forget(_partial(target, other))
            return url
        forget(partial)
        said.append(f"{url}: {why}")
    raise InputError(could_not(dataset, target.name, said, kept.site))


def could_not(dataset: str, name: str, said: Sequence[str], site: str) -> str:
    """What every address answered, and what a person can do."""
    answers = "; ".join(said) or "no address of it is known"
    return (
        f"{dataset}: {name} cannot be had: {answers}; run `snakemake datasets` where there is internet, or name in {site} a "
        "folder that has it (datasets: {folder: /PATH}) or a mirror (datasets: {mirror: URL})"
    )


def _partial(target: Path, url: str) -> Path:
    """What came from each address is kept apart, so that a cut download goes on where it was whatever was tried since."""
    return target.with_name(f".{target.name}.{hashlib.sha256(url.encode()).hexdigest()[:8]}.partial")


def _read_origin(file: Path) -> str:
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["from"])
    except (OSError, ValueError, TypeError, KeyError):
        return "unknown"
