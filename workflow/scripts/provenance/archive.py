"""Pack everything behind a study's figures into one file, from which they can be rebuilt without training.

    <study>/README.md, remake       how to rebuild
            figures/, tables/, records/, manifest.json    products, and digests of their sources
            appendix.md, appendix.tex, CITATION.cff, ro-crate-metadata.json    descriptions
            ringside/               the workflow at that time, with the records in results/<study>/

The same content gives the same file, byte by byte.
"""

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import pandas as pd

from common.errors import InputError
from common.files import CHECKOUT, digest_file, display_path, load_yaml, source_files, written_whole
from common.options import run_program
from common.redaction import redact_log
from common.tables import read_table
from common.templates import render
from declared.commands import command_names, load_command
from declared.imported import IMPORT_FILE
from declared.study import Study
from declared.user_models import is_user_model, load_user_model
from plan.batch_sizes import batch_size_file
from plan.campaign import MEMORY_ESTIMATES, Campaign, measured_campaign
from plan.decisions import DECISION_FOLDERS
from plan.strategies import strategy_file
from provenance import appendix
from provenance.citation import format_citation
from provenance.crate import build_crate
from provenance.manifest import read_manifest
from report import elsewhere
from report.checkout import GIT_LIMIT_S, checkout_state
from runs.attempts import OLDER_SUPERVISOR_FILE, SUPERVISOR_FILE

TEMPLATES = Path(__file__).parent
WORKFLOW = "ringside"
REBUILD_HINT = "rebuild it: ./ringside run"
# Without git, private files cannot be distinguished, so only these files, and files with CHECKOUT_SUFFIXES in
# these folders, are archived.
CHECKOUT_PATHS = (
    "Snakefile", "Makefile", "ringside", "README.md", "LICENSE", "CITATION.cff", "CONTRIBUTING.md",
    "pyproject.toml", "mkdocs.yml", "requirements.in", "requirements.txt", ".gitignore", "config/config.yaml",
    "config/slurm.yaml", "config/oar.yaml", "config/pbs.yaml", "config/flux.yaml", "config/README.md",
    "config/schemas", "rules", "workflow", "containers", "profiles", "tests", "docs", "slurm", "oar", "pbs",
    "flux",
)  # fmt: skip
CHECKOUT_SUFFIXES = (
    ".py", ".smk", ".yaml", ".md", ".txt", ".in", ".csv", ".png", ".svg", ".jinja", ".css", ".js", ".tex",
    ".bib", ".rst", ".def", ".log", "",
)  # fmt: skip
LOG_SUFFIXES = (".log", ".txt")
# Files of a run that only matter while it runs.
SKIPPED_NAMES = (".lock", SUPERVISOR_FILE, OLDER_SUPERVISOR_FILE)


def archive_members(campaign: Campaign, manifest: Path) -> dict[str, bytes | Path]:
    """Return the archive's content: name in the archive -> a file, or the content of one.

    Raises:
        InputError: If the manifest is of another study, its tables or records have changed, or a
            configuration file has a password or a token.
    """
    content = read_manifest(manifest)
    if content["study"] != campaign.study.name:
        raise InputError(
            "other-study",
            f"is of study {content['study']}",
            file=manifest,
            got=content["study"],
            hint=REBUILD_HINT,
        )
    certified = {
        campaign.runs_csv.parent / name: sha256 for name, sha256 in content["sources"]["tables"].items()
    }
    certified |= {Path(name): sha256 for name, sha256 in content["sources"]["records"].items()}
    if changed := [
        file for file, sha256 in certified.items() if not file.is_file() or digest_file(file) != sha256
    ]:
        raise InputError(
            "checksum-mismatch",
            f"differs from its SHA-256 in {display_path(manifest)}",
            file=changed[0],
            hint=REBUILD_HINT,
        )
    runs = read_table(campaign.runs_csv, "runs")
    study, site = campaign.study, campaign.site.name
    records = "available" if campaign.published_folder is None else "../records"
    checkout_files = workflow_files(campaign)
    refuse_secrets(checkout_files)
    members: dict[str, bytes | Path] = {f"{WORKFLOW}/{name}": CHECKOUT / name for name in checkout_files}
    products = {file: Path(file) for product in content["products"].values() for file in product["files"]}
    members |= {str(path.relative_to(campaign.results)): path for path in products.values()}
    tables = {
        name: campaign.runs_csv.parent / name for name in content["sources"]["tables"] if name != "design.csv"
    }
    members |= {f"records/{name}": path for name, path in tables.items()}
    if study.imported and not study.imported.campaigns:
        members[f"records/{IMPORT_FILE}"] = CHECKOUT / study.imported.folder / IMPORT_FILE
    if campaign.published_folder is None:
        members |= {f"{WORKFLOW}/{path}": redacted_log(path) for path in run_files(campaign.results)}
    fields = {"study": study.name, "site": site, "records": records, "workflow": WORKFLOW}
    checkout = checkout_state()
    origin = f"* {elsewhere.source_note(study.imported)}\n" if study.imported else ""
    sections = list(appendix.appendix_sections(campaign, runs, checkout))
    date = _last_end(runs)[:10] or None
    texts = {
        "README.md": render(
            TEMPLATES / "README.md.jinja", title=study.title, question=study.question, **fields
        )
        + origin,
        "remake": render(TEMPLATES / "remake.jinja", **fields),
        "appendix.md": appendix.to_markdown(study.title, sections),
        "appendix.tex": appendix.to_latex(sections),
        "CITATION.cff": format_citation(study, date, checkout.commit),
        "manifest.json": manifest.read_text(encoding="utf-8"),
    }
    members |= {name: text.encode() for name, text in texts.items()}
    crate = archive_crate(
        study, runs, members, {"ringside": checkout.commit, "snakemake": version("snakemake")}, site
    )
    members["ro-crate-metadata.json"] = (json.dumps(crate, indent=2, ensure_ascii=False) + "\n").encode()
    return dict(sorted(members.items()))


def _last_end(runs: pd.DataFrame) -> str:
    """Return when the last run ended, or "" if no record has it."""
    return max(runs["ended_at"].dropna(), default="")


def archive_crate(
    study: Study,
    runs: pd.DataFrame,
    members: Mapping[str, object],
    versions: Mapping[str, str | None],
    site: str,
) -> dict[str, object]:
    """Return the content of ro-crate-metadata.json for an archive with these members."""
    inputs = {
        f"{WORKFLOW}/config/studies/{study.name}.yaml": "the study",
        f"{WORKFLOW}/config/sites/{site}.yaml": "the site",
        f"{WORKFLOW}/requirements.txt": "the lock of the workflow's own libraries",
    }
    results = {
        name: describe_member(name)
        for name in members
        if name.split("/")[0] in ("figures", "tables", "records")
    }
    other_files = {
        name: describe_member(name)
        for name in members
        if "/" not in name and name != "ro-crate-metadata.json"
    }
    if any(name.startswith(f"{WORKFLOW}/results/{study.name}/runs/") for name in members):
        results[f"{WORKFLOW}/results/{study.name}/runs/"] = "the records of all runs"
    other_files[f"{WORKFLOW}/"] = "the workflow at the time of the archive"
    existing = {name: description for name, description in inputs.items() if name in members}
    return build_crate(study, runs, existing, results, other_files, f"{WORKFLOW}/Snakefile", versions)


def describe_member(name: str) -> str:
    """Return the description of a member, such as `figure overview.pdf`."""
    folder, _, file = name.rpartition("/")
    return f"{folder.removesuffix('s')} {file}" if folder else file


def workflow_files(campaign: Campaign) -> list[str]:
    """Return the files of the workflow: those that git tracks, and those of the study and its site.

    The latter need not be tracked: study, strategies, batch sizes, site, data sets, imported measurements,
    and users' commands and models.
    """
    strategies = strategy_file(campaign.study.name, campaign.site.name)
    imported = campaign.study.imported
    study_files = [
        campaign.study.file,
        campaign.site.file,
        strategies,
        batch_size_file(campaign.study.name, campaign.site.name),
        *(CHECKOUT / "config").glob("datasets*.yaml"),
        *(sorted((CHECKOUT / imported.folder).glob("*")) if imported else ()),
        *((CHECKOUT / file for file in imported.source_files) if imported else ()),
        *command_files(campaign),
    ]
    if checkout_state().commit:
        command = ["git", "-C", str(CHECKOUT), "ls-files", "-z"]
        process = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=True, timeout=GIT_LIMIT_S
        )
        names = [name for name in process.stdout.split("\0") if name]
    else:
        paths = [CHECKOUT / name for name in CHECKOUT_PATHS]
        files = [
            file
            for path in paths
            for file in (source_files(path) if path.is_dir() and not path.is_symlink() else [path])
        ]
        names = [
            str(file.relative_to(CHECKOUT))
            for file in files
            if file.suffix in CHECKOUT_SUFFIXES or file in paths
        ]
    names += [str(file.relative_to(CHECKOUT)) for file in study_files]
    return sorted({name for name in names if (CHECKOUT / name).is_symlink() or (CHECKOUT / name).is_file()})


def command_files(campaign: Campaign) -> Iterator[Path]:
    """Yield the files of the study's commands and PyTorch modules, and the files that these name."""
    for name in campaign.study.factors["framework"]:
        if name in command_names():
            command = load_command(name)
            yield from (command.file, *(CHECKOUT / file for file in command.files))
    for model in map(load_user_model, filter(is_user_model, campaign.study.factors["model"])):
        yield from (model.declaration, *model.sources)


def run_files(results: Path) -> Iterator[Path]:
    """Yield the campaign's own files, and those of its runs, decisions, benchmarks and timings."""
    names = ("campaign.json", "design.csv", MEMORY_ESTIMATES)
    yield from (file for name in names if (file := results / name).is_file())
    for folder in (results / name for name in ("runs", *DECISION_FOLDERS, "network", "costs")):
        for file in sorted(folder.rglob("*")):
            if (
                file.is_file()
                and not file.is_symlink()
                and not file.name.startswith(".")
                and file.name not in SKIPPED_NAMES
            ):
                yield file


def redacted_log(file: Path) -> Path | bytes:
    """Return the content of a log with secrets hidden; the path itself if it has none or is not a log."""
    if file.suffix not in LOG_SUFFIXES:
        return file
    content = file.read_bytes()
    redacted = redact_log(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    return file if redacted == content else redacted


def refuse_secrets(names: Iterable[str]) -> None:
    """Raise InputError if any configuration file has a password or a token, even an unused one."""
    for name in names:
        if name.startswith("config/") and name.endswith(".yaml"):
            load_yaml(CHECKOUT / name)  # This raises the InputError.


def write_archive(contents: Mapping[str, bytes | Path], top: str, date_s: float, out: Path) -> None:
    """Write a compressed tar of `contents` below the folder `top`, without owners, all dated `date_s`."""
    with (
        written_whole(out) as partial,
        open(partial, "wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in contents.items():
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.mtime = date_s
            if isinstance(content, Path) and content.is_symlink():
                entry.type, entry.linkname = tarfile.SYMTYPE, str(content.readlink())
                archive.addfile(entry)
                continue
            data = content.read_bytes() if isinstance(content, Path) else content
            is_executable = isinstance(content, Path) and content.stat().st_mode & 0o100
            entry.size, entry.mode = len(data), 0o755 if is_executable or name == "remake" else 0o644
            archive.addfile(entry, io.BytesIO(data))


def main(*, study: str, site: str, records: str, manifest: Path, out: Path) -> None:
    """Write the archive of a study whose figures and manifest exist.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        records: campaign, available, or the folder with published tables
        manifest: manifest.json
        out: the archive, .tar.gz
    """
    campaign = measured_campaign(study, site, records)
    contents = archive_members(campaign, manifest)
    missing = [
        content for content in contents.values() if isinstance(content, Path) and not os.path.lexists(content)
    ]
    if missing:
        raise InputError("missing-file", "does not exist", file=missing[0], hint=REBUILD_HINT)
    last_end = _last_end(read_table(campaign.runs_csv, "runs"))
    date_s = int(datetime.fromisoformat(last_end).timestamp()) if last_end else 0
    write_archive(contents, study, date_s, out)
    print(f"{out}: {len(contents):,} files, {out.stat().st_size / 1e6:.1f} MB")
    if not campaign.study.authors:
        print(
            f"{campaign.study.file.name} names no authors, so CITATION.cff has 'The authors of "
            f"{campaign.study.name}'; add the key authors"
        )


if __name__ == "__main__":
    sys.exit(run_program(main))
