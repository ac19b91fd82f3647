"""What has changed since the figures of a study were made: their manifest against the checkout as it is."""

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
from provenance.sources import sources

NAMED = 3
SHORT = 12  # digits of a digest
TITLES = {
    "study": "the study",
    "site": "the site, where it is measured",
    "locks": "locked software",
    "code": "code",
    "data": "data",
}
PUBLISHED = {
    "environment": "environments than this checkout has",
    "code": "code than this checkout has",
    "data": "data",
}


def differing(campaign: Campaign, manifest: Path, code: Sequence[str]) -> list[str]:
    """A line for each group of sources that are not what the figures of `manifest` were made of; none where there are no figures.

    `code`: the files that make the figures now.
    """
    if not manifest.exists():
        return []
    try:
        said = read(manifest)
    except InputError as error:
        return [str(error)]
    lines = changes(said["sources"], sources(campaign, code))
    if lines:
        text = f"{campaign.study.name}: changed since its figures were made; what stands on it is made again:"
        lines.insert(0, Note("figures-outdated", text, study=campaign.study.name))
    return lines + (measured_otherwise(said, campaign) if campaign.published else [])


def changes(before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a line for each group of sources of which something differs, was added or is gone."""
    lines: list[str] = []
    for group, title in TITLES.items():
        old, new = before.get(group, {}), now.get(group, {})
        if group not in before or group not in now:  # of another mode
            continue
        changed = [name for name in new if name in old and new[name] != old[name]]
        added, removed = ([name for name in one if name not in other] for one, other in ((new, old), (old, new)))
        parts = [
            _named([_with_value(name, old, new, group) for name in changed], ""),
            _named(added, "added: "),
            _named(removed, "no longer used: "),
        ]
        if any(parts):
            text = f"  {title}: {'; '.join(part for part in parts if part)}"
            lines.append(Note("changed-sources", text, group=group, changed=changed, added=added, removed=removed))
    return lines


def _with_value(name: str, old: Mapping[str, str], new: Mapping[str, str], group: str) -> str:
    return f"{name} {old[name]} → {new[name]}" if group == "site" else name


def measured_otherwise(said: Mapping[str, Any], campaign: Campaign) -> list[str]:
    """Of published tables, whose manifest says `said`: what was measured with other digests than this checkout has, by kind."""
    now: dict[str, Callable[[str], str]] = {
        "code": lambda name: code_digest(*name.split()),
        "data": data_digest,
    }
    if said["sites"] == [campaign.site.name]:
        now["environment"] = lambda name: environment_of(name, campaign)
    lines: list[str] = []
    for kind, digest in now.items():
        if other := [name for name, had in said["measured_with"][kind].items() if had != [_now(digest, name)]]:
            text = f"{campaign.study.name}: the published runs were measured with other {PUBLISHED[kind]}: {_named(other, '')}"
            lines.append(Note("measured-otherwise", text, kind=kind, names=other))
    return lines


def environment_of(framework: str, campaign: Campaign) -> str:
    """The digest of a framework's environment at the campaign's site."""
    of = load_framework(framework).environment
    return environment_digest(of, campaign.site.variant, campaign.site.realization)


def _now(digest: Callable[[str], str], name: str) -> str:
    try:
        return digest(name)
    except (InputError, KeyError, ValueError):  # it is not here any more
        return ""


def _named(names: Sequence[str], before: str) -> str:
    more = len(names) - NAMED
    return before * bool(names) + ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
