"""Describe where runs were measured: site, software and data sets, and how to reproduce them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import conditions
from analysis.records import distinct_names
from analysis.tables import DASH, number
from common.errors import InputError
from common.files import CHECKOUT, digest_file, display_path, read_json
from common.notes import Note
from common.text import number_of
from common.units import DATA_RATES, LINK_RATES, TIMES, in_one_unit
from datasets.identity import data_digest, data_folder
from declared.datasets import TOKENS, find_dataset, kind
from declared.devices import GIB
from declared.environments import VARIANTS, read
from declared.frameworks import describe_framework, load_framework
from declared.site import Site, load_site
from models.collectives import ALL_REDUCE
from network.fit import MAX_FIT_DEVIATION, deviation_note, missing_benchmarks_note
from plan.campaign import Campaign
from records.next_commands import cluster_commands
from report.checkout import State
from report.material import column
from report.page_table import PageTable

SHOWN_DIGITS = 12  # Digits of digests in tables; details of a run have all.
SPLITS = ("train", "validation")


def site_of(campaign: Campaign, runs: pd.DataFrame) -> Site | None:
    """Return the site that the runs recorded, or the campaign's site before any run.

    None if the runs name several sites or one without a file here, and for imported measurements.
    """
    if campaign.study.imported:
        return None
    names = sorted(set(runs["site"].dropna()))
    if not names or names == [campaign.site.name]:
        return campaign.site
    try:
        return load_site(names[0]) if len(names) == 1 else None
    except InputError:
        return None


def facts(site: Site | None, runs: pd.DataFrame) -> list[tuple[str, str]]:
    """Return names and texts of facts on the site, first from the records, then from the site's file."""
    ok = runs[runs["status"] == "ok"]
    hosts = distinct_names(runs, "hosts")
    # Emulated nodes are processes on one machine, so its cores and memory are there once.
    node = "the shared machine" if site and site.placement == "emulated" else "a node"
    rates = sorted(set(ok["bandwidth_bytes_s"].dropna()))
    pairs = [
        ("site", ", ".join(sorted(set(runs["site"].dropna()))) or (site.name if site else "")),
        ("hosts", f"{len(hosts)}: {conditions.join_names(hosts)}" if hosts else ""),
        ("devices", conditions.join_names(distinct_names(runs, "devices"))),
        ("drivers", conditions.join_names(distinct_names(runs, "drivers"))),
        (f"memory of {node}", node_memory(ok)),
        ("operating system", "; ".join(distinct_names(runs, "systems"))),
        ("cores per rank", _levels(ok["cores_per_rank"])),
        (f"cores of {node}", node_cores(ok, site)),
        ("links", f"{in_one_unit(rates, LINK_RATES, between=' or ')} in each direction" if rates else ""),
        ("sessions", str(runs["session"].nunique() or "")),
    ]
    if site is not None:
        pairs += [
            ("site's file", display_path(site.file)),
            ("nodes", f"{site.nodes}, {site.ranks_per_node} rank{'s' * (site.ranks_per_node > 1)} on each"),
            ("network interface", f"{site.interface} ({site.fabric})"),
            ("launched by", (
                f"{site.launcher}, software in "
                f"{'images' if site.deployment == 'apptainer' else 'virtual environments'}"
            )),
            ("the site's own software", _site_software(ok)),
            ("limits", f"a run ends after {site.time_limit_s:g} s; it is invalid if other processes used "
             f"more than {_other_cpu_limit_text(ok, site)} of the CPU time, or CPU steal was more "
             f"than {100 * site.max_steal_share:g} %"),
        ]  # fmt: skip
    return [(name, text) for name, text in pairs if text]


def measured_when(runs: pd.DataFrame) -> str:
    """Return from when to when runs were measured; "" without recorded times."""
    times = pd.to_datetime(
        pd.concat([runs["started_at"], runs["ended_at"]]), utc=True, format="ISO8601"
    ).dropna()
    if times.empty:
        return ""
    first, last = times.min(), times.max()
    end = f"{last:%H:%M}" if first.date() == last.date() else f"{last:%Y-%m-%d %H:%M}"
    return f"{first:%Y-%m-%d %H:%M} to {end} UTC"


def _other_cpu_limit_text(ok: pd.DataFrame, site: Site) -> str:
    """Return the limit on CPU time of other processes that applied to the runs, as text."""
    limits = sorted(set(ok["max_other_cpu_share"].dropna())) or [site.max_other_cpu_share]
    return f"{' to '.join(f'{100 * limit:g}' for limit in dict.fromkeys((limits[0], limits[-1])))} %"


def _site_software(runs: pd.DataFrame) -> str:
    """Return the frameworks that the site itself provides, with their environment modules."""
    installed = runs[runs["deployment"] == "installed"]
    modules = {
        name: "; ".join(sorted(set(framework_runs["modules"].dropna())))
        for name, framework_runs in installed.groupby("framework")
    }
    return ", ".join(f"{name} ({loaded})" if loaded else str(name) for name, loaded in modules.items())


def node_cores(runs: pd.DataFrame, site: Site | None) -> str:
    """Return the recorded cores of a node, or else the site's, with the shares that runs can use."""
    recorded = _levels(runs["node_cores"]) or (str(site.cores) if site else "")
    shares = ", ".join(f"{share:g}" for share in site.cpu_shares or [site.cpu_share] if share) if site else ""
    return f"{recorded}, of which runs can use {shares}" if recorded and shares else recorded


def node_memory(runs: pd.DataFrame) -> str:
    """Return the memory of the nodes, of each run the smallest, as a range; "" if not recorded."""
    bytes_of_nodes = runs["node_memory_bytes"].dropna().astype(float)
    return f"{number_range(bytes_of_nodes / GIB)} GiB" if len(bytes_of_nodes) else ""


def software(runs: pd.DataFrame) -> PageTable:
    """Return versions of each framework from the records, and the digests in the keys of its runs."""
    header = ["framework", "library", "Python", "environment", "transport", "code, by model", "runs"]
    columns = ["framework", "library_version", "python_version", "environment_digest"]
    rows = []
    for names, framework_runs in runs.groupby(columns, dropna=False, sort=True):
        transports = ", ".join(sorted(set(framework_runs["transport"].dropna()) - {"none"})) or DASH
        codes = ", ".join(map(_short, sorted(set(framework_runs["code_digest"].dropna())))) or DASH
        *versions, environment = (DASH if pd.isna(name) else str(name) for name in names)
        rows.append([*versions, environment[:SHOWN_DIGITS], transports, codes, str(len(framework_runs))])
    caption = (
        "Versions from the records, and the digests of environment and code that are part of the runs' keys."
    )
    return PageTable(caption, header, rows, tuple(header[:-1]))


def sessions(runs: pd.DataFrame) -> PageTable:
    """Return the sessions with their times, numbers of runs and jobs."""
    header = ["session", "first start (UTC)", "last end (UTC)", "runs", "not ok", "jobs"]
    rows = []
    for session, session_runs in runs[runs["session"].notna()].groupby("session", sort=True):
        jobs = sorted(set(session_runs["job"].dropna()))
        n_bad = int((session_runs["status"] != "ok").sum())
        start = _moment(session_runs["started_at"].dropna().min())
        end = _moment(session_runs["ended_at"].dropna().max())
        counts = [str(len(session_runs)), str(n_bad)]
        rows.append([str(session), start, end, *counts, conditions.join_names(jobs) or DASH])
    return PageTable(
        "Sessions: invocations or allocations of the campaign.", header, rows, (*header[:3], "jobs")
    )


def network(benchmarks: pd.DataFrame) -> str:
    """Return a sentence on bandwidth and latency of all-reduce from the table `network`; "" without rows."""
    allreduces = (
        benchmarks[benchmarks["collective"] == ALL_REDUCE] if "collective" in benchmarks else benchmarks
    )
    measured = allreduces[column(allreduces, "latency_s").notna()] if len(allreduces) else allreduces
    if measured.empty:
        return ""
    rate, deviation = (column(measured, name).dropna() for name in ("achieved_bytes_s", "deviation"))
    rates = in_one_unit((rate.min(), rate.max()), DATA_RATES, digits=3)
    text = (
        f"Collective benchmark of all-reduce in {number_of(len(measured), 'setting')}: measured bus "
        f"bandwidth of the largest message {rates}"
    )
    latency = column(measured[deviation <= MAX_FIT_DEVIATION], "latency_s")
    if len(latency):
        latencies = in_one_unit(tuple(dict.fromkeys((latency.min(), latency.max()))), TIMES, digits=3)
        scope = "" if len(latency) == len(measured) else f" in the {len(latency)} with a good fit"
        text += f", fitted latency {latencies}{scope}"
    return f"{text}. {deviation_note(deviation)}"


def failed_benchmarks(benchmarks: pd.DataFrame) -> str:
    """Return a sentence on the benchmarks in the table `network` that did not succeed; "" for none."""
    if benchmarks.empty or (benchmarks["status"] == "ok").all():
        return ""
    return missing_benchmarks_note(
        benchmarks if "collective" in benchmarks else benchmarks.assign(collective=ALL_REDUCE)
    )


def locks(campaign: Campaign, site: Site | None) -> PageTable:
    """Return the table of the locks of the study's environments in this checkout, with their SHA-256."""
    header = ["lock", "SHA-256", "environment"]
    rows = [["requirements.txt", digest_file(CHECKOUT / "requirements.txt"), "the workflow's own"]]
    frameworks = [
        name for name in campaign.study.factors["framework"] if describe_framework(name).environment
    ]
    for name in sorted({load_framework(framework).environment for framework in frameworks}):
        for variant in [site.variant] if site else VARIANTS:
            environment = read(name, variant)
            if not environment.lock.is_file():
                continue
            rows.append([display_path(environment.lock), digest_file(environment.lock), name])
    caption = "Locks of the software in the checkout that made this page."
    return PageTable(caption, header, rows, tuple(header))


@dataclass(frozen=True)
class Data:
    """A data set: its title, named facts, and the SHA-256 sums of its files."""

    name: str
    title: str
    facts: list[tuple[str, str]]
    sums: list[tuple[str, str]]


def data_sets(names: Sequence[str], site: Site | None, runs: pd.DataFrame) -> list[Data]:
    """Return the registered data sets with licence and citation, and SHA-256 sums if they are prepared."""
    data_sets = []
    for name in names:
        entry = find_dataset(name)
        if entry is None:
            continue
        digests = sorted(set(runs.loc[runs["dataset"] == name, "data_digest"].dropna()))
        sums = _read_sums(data_folder(site, name)) if site is not None else []
        current = data_digest(name)
        pairs = [
            ("licence", entry["licence"]),
            ("citation", entry["citation"]),
            ("training samples", f"{entry['train_samples']:,}"),
            ("validation samples", f"{entry['validation_samples']:,}"),
            ("shape", " × ".join(map(str, entry["shape"])) + " tokens" * (kind(entry) == TOKENS)),
            ("vocabulary", f"{entry['vocabulary']:,}" if "vocabulary" in entry else ""),
            ("generated", "yes, by a program: no benchmark data set" if is_generated(name) else ""),
            ("SHA-256 of the folder's files", entry.get("sha256", "")),
            ("digest in the runs' keys", ", ".join(map(_short, digests)) + _checkout_text(digests, current)),
            ("sums", "" if sums else "the prepared files are not on this machine"),
        ]
        nonempty = [(label, str(text)) for label, text in pairs if text]
        data_sets.append(
            Data(name, str(entry["title"]), nonempty, sums if digests == [current] or not digests else [])
        )
    return data_sets


def is_generated(name: str) -> bool:
    """Return whether a program generates the data set, so that its results are no benchmark results."""
    entry = find_dataset(name) or {"format": ""}
    return bool(entry.get("made_up")) or entry["format"] in ("patterns", "fresh")


def _checkout_text(digests: list[str], current: str) -> str:
    if not digests:
        return f"none recorded; in this checkout {_short(current)}"
    return " (as in this checkout)" if digests == [current] else f" (in this checkout: {_short(current)})"


def _read_sums(folder: Path) -> list[tuple[str, str]]:
    """Return name and SHA-256 of archives and prepared files; empty if a manifest is missing or broken."""
    try:
        source = read_json(folder / "manifest.json")["source"]
        file_sums = [(file["name"], file["sha256"]) for file in source.get("files", [])]
        for split in SPLITS:
            if (manifest := folder / split / "manifest.json").is_file():
                sums = read_json(manifest)["sha256"]
                file_sums += [(f"{split}/{name}", sha256) for name, sha256 in sums.items()]
        return [(str(name), str(sha256)) for name, sha256 in file_sums]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


@dataclass(frozen=True)
class Reproduction:
    """How to reproduce the report: a note on the commit, and command lines with their effects."""

    commit: Note
    commands: list[tuple[str, str]]


def reproduction(campaign: Campaign, site: Site | None, records: str, state: State) -> Reproduction:
    """Return the commands that reproduce the report from the same commit."""
    name = campaign.study.name
    site_name = site.name if site else campaign.site.name
    commands = []
    if state.commit:
        commands.append(
            (f"git checkout {state.commit}", "workflow, study and locks as they were when this page was made")
        )
    if campaign.study.imported:
        commands.append((f"./ringside report {name}", "from the imported tables"))
    elif campaign.published_folder is None:
        run = cluster_commands(site.launcher, name, site_name).split(", or ") if site else []
        commands += [(way, "run what has no record yet") for way in run[:1] if way]
        commands.append(
            (
                f"./ringside report {name} --site {site_name}",
                "build records, figures, tables and this page; run what is missing",
            )
        )
        command = f"./ringside report {name} --site {site_name} --records available"
        commands.append((command, "from existing records, without training"))
    else:
        command = f"./ringside report {name} --site {site_name} --records {records}"
        commands.append((command, "from the published tables, without training"))
        if not campaign.is_combined:
            commands.append((f"./ringside run {name} --site {site_name}", "measure everything again"))
    return Reproduction(_commit(state), commands)


def _commit(state: State) -> Note:
    if state.commit is None:
        return Note("no-commit", "The checkout that made this page is not under version control.")
    facts = {"commit": state.commit, "changed": state.changed}
    if not state.changed:
        return Note("clean-commit", f"Made from commit {state.commit}, without any change.", **facts)
    text = (
        f"Made from commit {state.commit} with changes that are not in it: "
        f"{conditions.join_names(state.changed)}. Commit them and make the page again before you publish it."
    )
    return Note("changed-commit", text, **facts)


def _levels(values: pd.Series) -> str:
    return ", ".join(f"{value:g}" for value in sorted(set(values.dropna().astype(float))))


def _moment(time: Any) -> str:
    """Return a time from a record as text, to the second."""
    return DASH if pd.isna(time) else str(time).replace("T", " ").partition(".")[0].removesuffix("Z")


def number_range(values: pd.Series) -> str:
    """Return the smallest and the largest value as text; one number if they are equal."""
    low, high = number(float(values.min())), number(float(values.max()))
    return low if low == high else f"{low} to {high}"


def _short(digest: Any) -> str:
    return DASH if pd.isna(digest) else str(digest)[:SHOWN_DIGITS]
