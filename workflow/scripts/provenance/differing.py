"""List the sources that have changed since a study's figures were made, from the figures' manifest."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from common.errors import InputError
from common.notes import Note
from plan.campaign import Campaign
from provenance.manifest import read_manifest
from provenance.sources import collect_sources

MAX_NAMED = 3
TITLES = {
    "study": "the study",
    "site": "the site, keys that affect measurements",
    "locks": "locked software",
    "code": "code",
    "data": "data",
}


def list_changes(campaign: Campaign, manifest: Path, code: Sequence[str]) -> list[str]:
    """Return a heading and a line for each group of sources that differs from a manifest; [] if none does.

    Args:
        campaign: The campaign.
        manifest: The manifest; without it, the result is [].
        code: The files of the programs that make the figures now.
    """
    if not manifest.exists():
        return []
    try:
        content = read_manifest(manifest)
    except InputError as error:
        return [str(error)]
    lines = compare_sources(content["sources"], collect_sources(campaign, code))
    if lines:
        text = (
            f"{campaign.study.name}: changed since its figures were made; dependent outputs will be rebuilt:"
        )
        lines.insert(0, Note("figures-outdated", text, study=campaign.study.name))
    return lines


def compare_sources(
    before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """Return a line for each group of sources in which something was changed, added or removed."""
    lines: list[str] = []
    for group, title in TITLES.items():
        old, new = before.get(group, {}), now.get(group, {})
        # A campaign of records has groups that one of published tables lacks, and the manifest can be of the
        # other.
        if group not in before or group not in now:
            continue
        changed = [name for name in new if name in old and new[name] != old[name]]
        added, removed = (
            [name for name in first if name not in second] for first, second in ((new, old), (old, new))
        )
        with_values = [f"{name} {old[name]} → {new[name]}" for name in changed]
        parts = [
            join_names(with_values if group == "site" else changed, ""),
            join_names(added, "added: "),
            join_names(removed, "no longer used: "),
        ]
        if any(parts):
            text = f"  {title}: {'; '.join(part for part in parts if part)}"
            lines.append(
                Note("changed-sources", text, group=group, changed=changed, added=added, removed=removed)
            )
    return lines


def join_names(names: Sequence[str], prefix: str) -> str:
    """Return the first names and the number of further ones, after `prefix`; "" without names."""
    n_more = len(names) - MAX_NAMED
    return prefix * bool(names) + ", ".join(names[:MAX_NAMED]) + (f" and {n_more} more" if n_more > 0 else "")
