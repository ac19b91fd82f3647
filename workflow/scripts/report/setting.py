"""Where and with what the runs were made: site, software, data sets, and how to make them again."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import conditions
from analysis.measured import distinct_names
from analysis.tables import DASH, number
from common.errors import InputError
from common.files import CHECKOUT, digest_file, read_json, shown
from common.notes import Note
from datasets.identity import data_digest, data_folder
from declared.datasets import TOKENS, kind, load_dataset
from declared.environments import VARIANTS, Environment, read
from declared.frameworks import load_framework
from declared.site import Site, load_site
from environments.identity import digest
from models.collectives import ALL_REDUCE
from plan.campaign import Campaign
from records.ways import cluster_commands
from report.checkout import State
from report.material import column

GIB = 2**30
LONG = 36  # characters of what stands in one line
BROAD = 130  # characters of a row, with GAP between columns
GAP = 2
SHOWN_DIGITS = 12  # of digests in tables; the table of runs has them whole
SPLITS = ("train", "validation")
Row = list[str]


@dataclass(frozen=True)
class Grid:
    """A small table of the page: its columns, rows of text, and the columns that are set to the left."""

    caption: str
    header: Row
    rows: list[Row]
    left: tuple[str, ...]
    name: str = ""
    notes: tuple[str, ...] = ()

    @property
    def kinds(self) -> list[str]:
        """How each column is set: number, to the right; prose, to the left in lines; or nothing, to the left in one line."""
        return [self._kind(name, place) for place, name in enumerate(self.header)]

    @property
    def is_broad(self) -> bool:
        """Whether it needs small letters."""
        words = [max(map(len, name.split()), default=0) for name in self.header]
        return sum(max(word, min(LONG, self._longest(place))) + GAP for place, word in enumerate(words)) > BROAD

    def _kind(self, name: str, place: int) -> str:
        if name not in self.left:
            return "number"
        return "prose" if self._longest(place) > LONG else ""

    def _longest(self, place: int) -> int:
        return max((len(row[place]) for row in self.rows), default=0)


def site_of(campaign: Campaign, runs: pd.DataFrame) -> Site | None:
    """The site that the runs say they were made at, as its file is now; the campaign's where none has run; None for unknown ones."""
    names = sorted(set(runs["site"].dropna()))
    if not names or names == [campaign.site.name]:
        return campaign.site
    try:
        return load_site(names[0]) if len(names) == 1 else None
    except InputError:
        return None


def facts(site: Site | None, runs: pd.DataFrame) -> list[tuple[str, str]]:
    """The site and its nodes: what the records say, then what the site's file does."""
    ok = runs[runs["status"] == "ok"]
    hosts = distinct_names(runs, "hosts")
    said = [
        ("site", ", ".join(sorted(set(runs["site"].dropna()))) or (site.name if site else "")),
        ("circumstances", conditions.circumstances_note(runs)),
        ("hosts", f"{len(hosts)}: {conditions.join_names(hosts)}" if hosts else ""),
        ("devices", conditions.join_names(distinct_names(runs, "devices"))),
        ("drivers", conditions.join_names(distinct_names(runs, "drivers"))),
        ("memory of a node", node_memory(ok)),
        ("operating system", "; ".join(distinct_names(runs, "systems"))),
        ("cores per rank", _levels(ok["cores_per_rank"])),
        ("links", _rates(ok)),
        ("sessions", f"{runs['session'].nunique()}, {_span(runs)}" if runs["session"].notna().any() else ""),
    ]
    if site is not None:
        said += [
            ("site's file", shown(site.file)),
            ("nodes", f"{site.nodes}, {site.ranks_per_node} rank{'s' * (site.ranks_per_node > 1)} on each"),
            ("cores of a node", f"{site.cores}{_share(site)}"),
            ("network interface", f"{site.interface} ({site.fabric})"),
            ("launched by", f"{site.launcher}, software in {'images' if site.deployment == 'apptainer' else 'virtual environments'}"),
            ("the site's own software", _own_software(ok)),
            ("limits", f"a run ends after {site.time_limit_s:g} s; it is invalid if other processes used more than "
             f"{_foreign_limit(ok, site)} of the processor time, or a hypervisor withheld more than {100 * site.max_steal_share:g} %"),
        ]  # fmt: skip
    return [(name, text) for name, text in said if text]


def _foreign_limit(ok: pd.DataFrame, site: Site) -> str:
    """What other processes might use beside the runs that are there: the limit that was the site's then."""
    limits = sorted(set(ok["max_foreign_cpu_share"].dropna())) or [site.max_foreign_cpu_share]
    return f"{' to '.join(f'{100 * limit:g}' for limit in dict.fromkeys((limits[0], limits[-1])))} %"


def _share(site: Site) -> str:
    """How much of its cores a node may use, where that is not all."""
    shares = ", ".join(f"{share:g}" for share in site.cpu_shares or [site.cpu_share] if share)
    return f", of which {shares} may be used" if shares else ""


def _own_software(runs: pd.DataFrame) -> str:
    """Which frameworks ran in what the site has installed itself, with the environment modules that were loaded for them."""
    own = runs[runs["deployment"] == "installed"]
    modules = {name: "; ".join(sorted(set(some["modules"].dropna()))) for name, some in own.groupby("framework")}
    return ", ".join(f"{name} ({loaded})" if loaded else str(name) for name, loaded in modules.items())


def node_memory(runs: pd.DataFrame) -> str:
    """The memory of the runs' nodes, that of the smallest one of each run; empty where records do not tell."""
    known = runs["node_memory_bytes"].dropna().astype(float)
    return f"{_range(known / GIB)} GiB" if len(known) else ""


def software(runs: pd.DataFrame) -> Grid:
    """What each framework was: versions from the records, and the digests that its runs' keys hold."""
    header = ["framework", "library", "Python", "environment", "gradients go over", "code, by model", "runs"]
    columns = ["framework", "library_version", "python_version", "environment_digest"]
    rows = []
    for (framework, library, python, environment), own in runs.groupby(columns, dropna=False, sort=True):
        transports = sorted(set(own["transport"].dropna()) - {"none"})
        codes = sorted(set(own["code_digest"].dropna()))
        said = [str(framework), _or_dash(library), _or_dash(python), _short(environment)]
        rows.append([*said, ", ".join(transports) or DASH, ", ".join(map(_short, codes)) or DASH, str(len(own))])
    caption = "Versions from the records, and the digests of environment and code that are part of the runs' keys."
    return Grid(caption, header, rows, tuple(header[:-1]))


def sessions(runs: pd.DataFrame) -> Grid:
    """The sessions: when, how many runs, which jobs."""
    header = ["session", "first start (UTC)", "last end (UTC)", "runs", "not ok", "jobs"]
    rows = []
    for session, own in runs[runs["session"].notna()].groupby("session", sort=True):
        jobs = sorted(set(own["job"].dropna()))
        bad = int((own["status"] != "ok").sum())
        start, end = _moment(own["started_at"].dropna().min()), _moment(own["ended_at"].dropna().max())
        rows.append([str(session), start, end, str(len(own)), str(bad), conditions.join_names(jobs) or DASH])
    return Grid("Sessions: invocations or allocations of the campaign.", header, rows, (*header[:3], "jobs"))


def network(sweeps: pd.DataFrame) -> str:
    """Latency and bandwidth of all-reduce as it was swept, in a sentence; empty without a sweep. `sweeps`: the table's data."""
    sums = sweeps[sweeps["collective"] == ALL_REDUCE] if "collective" in sweeps else sweeps
    measured = sums[column(sums, "latency_s").notna()] if len(sums) else sums
    if measured.empty:
        return ""
    latency, rate = column(measured, "latency_s") * 1e3, column(measured, "bandwidth_bytes_s").dropna() / 1e6
    said = f"All-reduce as swept in {len(measured)} settings: latency {_range(latency)} ms"
    return said + (f", bus bandwidth {_range(rate)} MB/s." if len(rate) else ".")


def locks(campaign: Campaign, site: Site | None, runs: pd.DataFrame) -> Grid:
    """The locked environments as they are in this checkout, and whether the runs were made with them."""
    header = ["lock", "SHA-256", "environment", "measured with it"]
    rows = [["requirements.txt", digest_file(CHECKOUT / "requirements.txt"), "the workflow's own", DASH]]
    frameworks = campaign.study.factors["framework"]
    for name in sorted({load_framework(framework).environment for framework in frameworks}):
        for which in [site.variant] if site else VARIANTS:
            environment = read(name, which)
            if not environment.lock.is_file():
                continue
            rows.append(
                [
                    shown(environment.lock),
                    digest_file(environment.lock),
                    name,
                    _used(environment, frameworks, site, runs),
                ]
            )
    caption = "Locks of the software, as they are in the checkout that made this page."
    return Grid(caption, header, rows, tuple(header))


def _used(environment: Environment, frameworks: Sequence[str], site: Site | None, runs: pd.DataFrame) -> str:
    """How many runs hold the digest of the environment as it would be made now."""
    mine = [name for name in frameworks if load_framework(name).environment == environment.name]
    own = runs[runs["framework"].isin(mine) & runs["environment_digest"].notna() & (runs["status"] != "missing")]
    if own.empty or site is None:
        return DASH
    try:
        same = int((own["environment_digest"] == digest(environment, site.realization)).sum())
    except InputError:
        return DASH
    return f"all {same} runs" if same == len(own) else f"{same} of {len(own)} runs"


@dataclass(frozen=True)
class Data:
    """A data set: its title, facts with a name each, and the sums of what was prepared (file, SHA-256)."""

    name: str
    title: str
    facts: list[tuple[str, str]]
    sums: list[tuple[str, str]]


def data_sets(names: Sequence[str], site: Site | None, runs: pd.DataFrame) -> list[Data]:
    """The data sets with licence and citation; sums from the manifests where the prepared files are on this machine."""
    found = []
    for name in names:
        entry = load_dataset(name)
        digests = sorted(set(runs.loc[runs["dataset"] == name, "data_digest"].dropna()))
        sums = _sums(data_folder(site, name)) if site is not None else []
        current = data_digest(name)
        said = [
            ("licence", entry["licence"]),
            ("citation", entry["citation"]),
            ("training samples", f"{entry['train_samples']:,}"),
            ("validation samples", f"{entry['validation_samples']:,}"),
            ("shape", " × ".join(map(str, entry["shape"])) + " tokens" * (kind(entry) == TOKENS)),
            ("vocabulary", f"{entry['vocabulary']:,}" if kind(entry) == TOKENS else ""),
            ("made up", "yes: generated by a program, no benchmark" if drawn(name) else ""),
            ("digest in the runs' keys", ", ".join(map(_short, digests)) + _same(digests, current)),
            ("sums", "" if sums else "the prepared files are not on this machine; the digest above identifies them"),
        ]
        told = [(label, str(text)) for label, text in said if text]
        found.append(Data(name, str(entry["title"]), told, sums if digests == [current] or not digests else []))
    return found


def drawn(name: str) -> bool:
    """Whether a data set is made by a program and not by nature: no result on it is one on a benchmark."""
    entry = load_dataset(name)
    return bool(entry.get("made_up")) or entry["format"] in ("patterns", "fresh")


def _same(digests: list[str], current: str) -> str:
    if not digests:
        return f"none recorded; in this checkout {_short(current)}"
    return " (as in this checkout)" if digests == [current] else f" (in this checkout: {_short(current)})"


def _sums(folder: Path) -> list[tuple[str, str]]:
    """File and SHA-256 of the archives, and of the files prepared from them; nothing where a manifest is absent or broken."""
    try:
        source = read_json(folder / "manifest.json")["source"]
        found = [(file["name"], file["sha256"]) for file in source.get("files", [])]
        for split in SPLITS:
            if (manifest := folder / split / "manifest.json").is_file():
                sums = read_json(manifest)["sha256"]
                found += [(f"{split}/{name}", sha256) for name, sha256 in sums.items()]
        return [(str(name), str(sha256)) for name, sha256 in found]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


@dataclass(frozen=True)
class Again:
    """How to make it again: the commit in words, and command lines with what each does."""

    commit: Note
    commands: list[tuple[str, str]]


def again(campaign: Campaign, site: Site | None, records: str, state: State) -> Again:
    """What a reader types to get the same, from the same commit."""
    name = campaign.study.name
    at = site.name if site else campaign.site.name
    commands = []
    if state.commit:
        commands.append((f"git checkout {state.commit}", "the workflow, the study and the locks as they were"))
    if campaign.published is None:
        run = cluster_commands(site.launcher, name, at).split(", or ") if site else []
        commands += [(way, "run what has no record yet") for way in run[:1] if way]
        commands.append(
            (
                f"./ringside report {name} --site {at}",
                "make records, figures, tables and this page; run what is missing",
            )
        )
        there = f"./ringside report {name} --site {at} --records available"
        commands.append((there, "from the records that are there, training nothing"))
    else:
        there = f"./ringside report {name} --site {at} --records {records}"
        commands.append((there, "from the published tables, training nothing"))
    return Again(_commit(state), commands)


def _commit(state: State) -> Note:
    if state.commit is None:
        return Note(
            "no-commit", "The checkout that made this page is not under version control, so there is no commit to name."
        )
    if not state.changed:
        return Note("clean-commit", f"Made from commit {state.commit}, without any change.", commit=state.commit)
    return Note(
        "changed-commit",
        f"Made from commit {state.commit} with changes that are not in it: {conditions.join_names(state.changed)}. Commit them and "
        "make the page again before you publish it.",
        commit=state.commit,
        changed=state.changed,
    )


def _levels(values: pd.Series) -> str:
    return ", ".join(f"{value:g}" for value in sorted(set(values.dropna().astype(float))))


def _rates(ok: pd.DataFrame) -> str:
    rates = sorted(set(ok["bandwidth_bytes_s"].dropna()))
    return f"{' or '.join(f'{rate / 1e6:g}' for rate in rates)} MB/s in each direction" if rates else ""


def _span(runs: pd.DataFrame) -> str:
    return f"from {_moment(runs['started_at'].dropna().min())} to {_moment(runs['ended_at'].dropna().max())} UTC"


def _moment(time: Any) -> str:
    """A time of a record, to the second."""
    return DASH if pd.isna(time) else str(time).replace("T", " ").partition(".")[0].removesuffix("Z")


def _range(values: pd.Series) -> str:
    low, high = number(float(values.min())), number(float(values.max()))
    return low if low == high else f"{low} to {high}"


def _short(digest: Any) -> str:
    return DASH if pd.isna(digest) else str(digest)[:SHOWN_DIGITS]


def _or_dash(value: Any) -> str:
    return DASH if pd.isna(value) else str(value)
