"""The report of a study: one page that carries all that it shows, made of what earlier stages made and of the records.

No number is made here that a table does not have, apart from those that hold the twelve rules against the study.
"""

import base64
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis import conditions
from analysis.measured import Records, missing_cells, one_line, unsuccessful
from common.errors import InputError
from common.files import write_text
from common.options import run_program
from common.tables import read_table
from declared.figures import Declared
from figures import panels, style
from figures.view import build_view
from plan.campaign import Campaign, add_campaign_arguments, measured_campaign
from report import answer, content, design, every_run, libraries, quality, setting, twelve_rules
from report.checkout import State
from report.every_run import Table
from report.libraries import Libraries
from report.material import Made, Material, column, current, made, picture
from report.packing import block, json_element, json_text
from report.setting import Grid
from report.text import clean
from report.twelve_rules import Verdict

PAGE, STYLE, PROGRAM = "page.html.jinja", "page.css", "page.js"
RUNS_IN_BLOCK = 16  # that are opened together: neighbours are alike, so that they are small together
SECTIONS = ("design", "environment", "data", "figures", "failures", "runs", "reproduce")
MOST_REASONS = 50
RUNS_OF_A_REASON = 3
OVERVIEW = Declared("overview", "overview")  # series and their colours are those of this figure
OTHER_COLOUR = style.MUTED  # of runs that do not count
# Who may open it: top-level await, DecompressionStream and <dialog>.
BROWSERS = "Chrome or Edge 89, Firefox 113, Safari 16.4 or newer"


def page(material: Material, campaign: Campaign, records: str, state: State, carried: Libraries) -> str:
    """The page as HTML."""
    runs = material.runs
    verdicts = twelve_rules.judged(material)
    table = every_run.table(material)
    program = (Path(__file__).parent / PROGRAM).read_text(encoding="utf-8")
    found = design.exclusions(material.study)
    return _template().render(
        study=material.study,
        title=" ".join(material.study.title.split()),
        question=" ".join(material.study.question.split()),
        published=campaign.published,
        run_ids=set(runs["run_id"]),
        answer=answer.answer(material),
        marks=list(quality.marks(material, verdicts)),
        left_out=content.left_out(material.left_out),
        factors=design.factors(material.study),
        exclusions=found,
        replication=design.replication(runs, material.study.replicates),
        kept_order=design.kept_order(runs),
        seeds=design.seeds(runs),
        shortfall=conditions.shortfall_note(runs),
        facts=setting.facts(material.site, runs),
        software=setting.software(runs),
        sessions=setting.sessions(runs),
        network=setting.network(material.data("network")),
        locks=setting.locks(campaign, material.site, runs),
        data_sets=setting.data_sets(material.study.factors["dataset"], material.site, runs),
        verdicts=[(rule, linked(verdict, material)) for rule, verdict in verdicts],
        has_network="network" in material.tables,
        summary=twelve_rules.summary(verdicts),
        pictures=material.pictures,
        methods=conditions.methods_notes(runs, column(material.data("effects"), "within_blocks")),
        explained=[
            (name, one.table.title, one.table.apart) for name, one in material.tables.items() if one.table.apart
        ],
        tables=[grid_of(one) for one in material.tables.values()],
        sources={one.name: block(json_text({"csv": one.csv, "latex": one.latex})) for one in material.tables.values()},
        reasons=reasons(material),
        missing=missing_cells(runs),
        counts=runs["status"].value_counts().sort_index().to_dict(),
        again=setting.again(campaign, material.site, records, state),
        browsers=BROWSERS,
        versions=carried.versions,
        page_data=json_element(page_data(material, table)),
        blocks=blocks(every_run.details(material, campaign)),
        tables_script=block(carried.tables),
        charts_scripts=[block(text) for text in carried.charts],
        style=Markup((Path(__file__).parent / STYLE).read_text(encoding="utf-8")),  # noqa: S704 (ours)
        tables_style=Markup(carried.tables_style),  # noqa: S704 (checked when loaded)
        program=Markup(program),  # noqa: S704 (ours)
        program_hash=base64.b64encode(sha256(program.encode()).digest()).decode(),
        series=build_view(runs, OVERVIEW).series_description,
    )


def page_data(material: Material, table: Table) -> dict[str, Any]:
    """What the page's program draws: the table of runs, each run's series, the colours of series and of other groups."""
    by_clock = every_run.order(material.every_run)[1]
    seen = build_view(material.runs, OVERVIEW)
    return {
        **table.to_json(),
        "in_block": RUNS_IN_BLOCK,
        "order": "run, in the order in which they started" if by_clock else "run, in the planned order",
        "series": every_run.series(material).tolist(),
        "series_title": seen.series_description.partition(" (")[0],
        "colours": {one.name: one.style.colour for one in seen.series},
        "palette": [look.colour for look in style.TREATMENT_STYLES],
        "other_colour": OTHER_COLOUR,
        "log_from": panels.LOG_FROM_RATIO,
    }


def blocks(details: Iterable[dict[str, Any]]) -> list[Markup]:
    """The runs' details, compressed, RUNS_IN_BLOCK together."""
    left = iter(details)
    return [block(json_text(some)) for some in iter(lambda: list(islice(left, RUNS_IN_BLOCK)), [])]


def linked(verdict: Verdict, material: Material) -> Verdict:
    """A verdict with its links as far as they lead anywhere on this page."""
    there = {
        *SECTIONS,
        *(f"table-{name}" for name in material.tables),
        *(f"figure-{one.name}" for one in material.pictures),
    }
    return replace(verdict, links=tuple(link for link in verdict.links if link[0] in there))


def reasons(material: Material) -> list[tuple[str, str, int, list[str]]]:
    """Status, reason, number of runs and the first of them, for what did not succeed; the most frequent first."""
    bad = unsuccessful(material.every_run)
    groups = bad.assign(reason=[one_line(reason) or "no reason is given" for reason in bad["reason"]])
    found = [
        (str(status), str(reason), len(own), own["run_id"].head(RUNS_OF_A_REASON).tolist())
        for (status, reason), own in groups.groupby(["status", "reason"], sort=True)
    ]
    return sorted(found, key=lambda group: -group[2])[:MOST_REASONS]


def grid_of(one: Made) -> Grid:
    """A table of an earlier stage, as the page shows it."""
    shown = one.table.display
    rows = [list(row) for row in shown.itertuples(index=False, name=None)]
    return Grid(one.table.title, list(shown), rows, tuple(one.table.words), one.name, tuple(one.table.below))


def _template() -> Any:
    """The page's template, which escapes all text, and cleans it of what no page should hold."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=lambda value: clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(PAGE)


def material_of(campaign: Campaign, files: Records, figures: Sequence[Path], tables: Sequence[Path]) -> Material:
    """Read what a report is made of."""
    runs = files.runs
    pictures, every = [picture(stem) for stem in figures], [made(stem) for stem in tables]
    empty = {one.name: content.why_not_drawn(one.caption) for one in pictures}
    empty |= {one.name: content.why_empty(one.table) for one in every}
    return Material(
        study=campaign.study,
        site=setting.site_of(campaign, runs),
        runs=runs,
        every_run=files.every_run,
        epochs=current(read_table(files.epochs_csv, "epochs"), files.every_run),
        pictures=[one for one in pictures if not empty[one.name]],
        tables={one.name: one for one in every if not empty[one.name]},
        left_out={name: why for name, why in empty.items() if why},
        phases=current(files.table("phases"), files.every_run),
    )


def main(
    *,
    study: str,
    site: str,
    records: str,
    runs: Path,
    epochs: Path,
    figures: Sequence[Path],
    tables: Sequence[Path],
    phases: Path | None = None,
    checkout: str,
    out: Path,
) -> None:
    """Make the report of a study.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        records: campaign, available, or the folder with published tables
        runs: runs.csv of the study
        epochs: epochs.csv of the study
        figures: figures, without suffix
        tables: tables, without suffix
        phases: phases.csv, where there are traced runs
        checkout: the state of the checkout (report.checkout), as JSON
        out: report.html
    """
    try:
        state = State.from_json(checkout)
    except ValueError as error:
        raise InputError("wrong-type", str(error), file="--checkout") from None
    campaign = measured_campaign(study, site, records)
    files = Records(runs, epochs, {"phases": phases})
    material = material_of(campaign, files, figures, tables)
    write_text(out, page(material, campaign, records, state, libraries.load()))


if __name__ == "__main__":
    sys.exit(run_program(main))
