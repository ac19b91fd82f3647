"""List what has changed since a study's figures were made: their manifest against the checkout."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.notes import Note
from datasets.identity import data_digest
from declared.frameworks import load_framework
from environments.identity import environment_digest
from plan.campaign import Campaign
from plan.identity import code_digest
from provenance.manifest import read
from provenance.sources import collect_sources

MAX_NAMED = 3
TITLES = {
    "study": "the study",
    "site": "the site, keys that affect measurements",
    "locks": "locked software",
    "code": "code",
    "data": "data",
}
PUBLISHED = {
    "environment": "environments than this checkout has",
    "code": "code than this checkout has",
    "data": "data",
}


def list_changes(campaign: Campaign, manifest: Path, code: Sequence[str]) -> list[str]:
    """Return a line for each group of sources that differs from what the figures were made from.

    `code`: the files that make the figures now. Without a manifest there are no lines.
    """
    if not manifest.exists():
        return []
    try:
        content = read(manifest)
    except InputError as error:
        return [str(error)]
    lines = compare_sources(content["sources"], collect_sources(campaign, code))
    if lines:
        text = (
            f"{campaign.study.name}: changed since its figures were made; dependent outputs will be rebuilt:"
        )
        lines.insert(0, Note("figures-outdated", text, study=campaign.study.name))
    return lines + (compare_measured(content, campaign) if campaign.published else [])


def compare_sources(
    before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """Return a line for each group of sources in which something was changed, added or removed."""
    lines: list[str] = []
    for group, title in TITLES.items():
        old, new = before.get(group, {}), now.get(group, {})
        # A manifest may be of records, and the campaign of published tables, or vice versa.
        if group not in before or group not in now:
            continue
        changed = [name for name in new if name in old and new[name] != old[name]]
        added, removed = (
            [name for name in first if name not in second] for first, second in ((new, old), (old, new))
        )
        parts = [
            join_names([describe_change(name, old, new, group) for name in changed], ""),
            join_names(added, "added: "),
            join_names(removed, "no longer used: "),
        ]
        if any(parts):
            text = f"  {title}: {'; '.join(part for part in parts if part)}"
            lines.append(
                Note("changed-sources", text, group=group, changed=changed, added=added, removed=removed)
            )
    return lines


def describe_change(name: str, old: Mapping[str, str], new: Mapping[str, str], group: str) -> str:
    """Return the name of a changed source, with both values if it is a key of the site."""
    return f"{name} {old[name]} → {new[name]}" if group == "site" else name


def compare_measured(content: Mapping[str, Any], campaign: Campaign) -> list[str]:
    """Return a line per kind of digest that differs from that of published runs."""
    now: dict[str, Callable[[str], str]] = {
        "code": lambda name: code_digest(*name.split()),
        "data": data_digest,
    }
    if content["sites"] == [campaign.site.name]:
        now["environment"] = lambda name: environment_of(name, campaign)
    lines: list[str] = []
    for kind, digest in now.items():
        if differing := [
            name
            for name, digests in content["measured_with"][kind].items()
            if digests != [current_digest(digest, name)]
        ]:
            text = (
                f"{campaign.study.name}: the published runs were measured with other {PUBLISHED[kind]}: "
                f"{join_names(differing, '')}"
            )
            lines.append(Note("measured-otherwise", text, kind=kind, names=differing))
    return lines


def environment_of(framework: str, campaign: Campaign) -> str:
    """Return the digest of a framework's environment at the campaign's site."""
    environment = load_framework(framework).environment
    return environment_digest(environment, campaign.site.variant, campaign.site.realization)


def current_digest(digest: Callable[[str], str], name: str) -> str:
    """Return the current digest, empty if the source no longer exists."""
    try:
        return digest(name)
    except (InputError, KeyError, ValueError):  # It no longer exists.
        return ""


def join_names(names: Sequence[str], prefix: str) -> str:
    """Return the first names, and the number of the others."""
    n_more = len(names) - MAX_NAMED
    return prefix * bool(names) + ", ".join(names[:MAX_NAMED]) + (f" and {n_more} more" if n_more > 0 else "")
