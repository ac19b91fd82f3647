"""State the source of imported measurements, from their import.yaml.

Report and paper state it instead of site, software, order of the runs and digests, which are not known.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from analysis import conditions
from analysis.records import are_times_to_train, distinct_names
from common.notes import Note
from common.text import end_sentence, number_of
from declared.imported import Imported
from report.page_table import PageTable
from report.site_and_software import SHOWN_DIGITS

if TYPE_CHECKING:
    from declared.study import Study

NOT_PLANNED = Note(
    "not-planned",
    "Ringside did not plan or check these runs: their order, what else used the machines, code and "
    "environment are not known. Cells are compared as independent groups.",
)
COMBINED = Note(
    "combined",
    "These are the runs of several campaigns, each of which was planned by itself. Cells of different "
    "campaigns are compared as independent groups. Date, site and software that differ between them are part "
    "of every ratio between campaigns.",
)


def planning_note(imported: Imported) -> Note:
    """Return what is not known about the runs, or that they come from several campaigns."""
    return COMBINED if imported.campaigns else NOT_PLANNED


def source_note(imported: Imported) -> Note:
    """Return the source of the measurements, their licence, and the version that imported them."""
    stated = imported.description.stated
    if imported.campaigns:
        text = f"Runs of several campaigns: {stated.source}. Licence of the measurements: {stated.licence}."
        return Note("source", text, source=stated.source, licence=stated.licence)
    address = f" ({stated.url})" if stated.url else ""
    date = f", measured {stated.measured}" if stated.measured else ""
    text = (
        f"Measured elsewhere: {stated.source}{address}{date}. Licence of the measurements: {stated.licence}. "
        f"Imported by Ringside {imported.description.ringside} from "
        f"{number_of(len(imported.description.files), 'file')}."
    )
    return Note("source", text, source=stated.source, licence=stated.licence)


def facts(imported: Imported, runs: pd.DataFrame) -> list[tuple[str, str]]:
    """Return names and texts that describe source, machines and links."""
    stated = imported.description.stated
    inside = sorted(set(runs["inside_bandwidth_bytes_s"].dropna()))
    pairs = [
        ("source", stated.source),
        ("address", stated.url or ""),
        ("licence", stated.licence),
        ("citation", stated.citation or ""),
        ("measured", stated.measured or ""),
        ("imported by", f"Ringside {version}" if (version := imported.description.ringside) else ""),
        ("epoch", epoch_note(imported, runs)),
        ("devices", conditions.join_names(distinct_names(runs, "devices"))),
        ("links in a node", " or ".join(f"{rate / 1e9:g} GB/s" for rate in inside)),
        ("libraries", conditions.join_names(distinct_names(runs, "library_version"))),
    ]
    return [(name, text) for name, text in pairs if text]


def files(imported: Imported) -> PageTable:
    """Return the imported files with their digests."""
    header = ["file", "read as", "runs", "SHA-256"]
    rows = [
        [file.name, file.format, "" if file.rows is None else str(file.rows), file.sha256[:SHOWN_DIGITS]]
        for file in imported.description.files
    ]
    caption = "Files that were imported; import.yaml has all digits of their SHA-256."
    return PageTable(caption, header, rows, ("file", "read as", "SHA-256"))


def accepted(imported: Imported) -> PageTable:
    """Return the findings of the import checks that were accepted; without rows if there are none."""
    header = ["code", "finding"]
    rows = [[finding.code, finding.finding] for finding in imported.description.accepted]
    return PageTable("What checks found at import, and was accepted.", header, rows, tuple(header))


def accepted_notes(imported: Imported) -> Iterator[str]:
    """Yield a sentence for each accepted finding."""
    for finding in imported.description.accepted:
        text = f"When the measurements were imported, a check found: {end_sentence(finding.finding)}"
        yield Note("accepted-finding", text, finding=finding.code)


def epoch_note(imported: Imported, runs: pd.DataFrame) -> Note:
    """Return the definition of an epoch, since some sources time only steps."""
    if are_times_to_train(runs):
        text = "Epoch times are times to train: of whole runs, until they reach the source's target."
        return Note("times-to-train", text)
    if imported.campaigns:
        return Note("epoch-of-campaigns", "Epoch times are those of the campaigns.")
    samples = sorted({int(count) for count in runs["samples_per_epoch"].dropna()})
    stated = imported.description.stated.samples_per_epoch
    chosen = "" if stated else ", which is the largest global batch"
    count = " or ".join(f"{number:,}" for number in samples)
    text = (
        f"An epoch is the time of {count} samples{chosen}, computed from the times or rates that the source "
        "gives."
        if samples
        else "Epoch times are those that the source gives."
    )
    return Note("epoch-of-samples", text, samples=samples)


def model_size(study: "Study", model: str) -> str:
    """Return the size of an unregistered model that the source states; "" without one."""
    size = study.imported.description.stated.models.get(model) if study.imported else None
    if size is None:
        return ""
    if size.parameters:
        return f"{model}: {size.parameters:,.0f} parameters"
    return f"{model}: {size.gradient_bytes:,.0f} bytes of gradients"
