"""Render the report of a study as one page that embeds everything that it shows.

Most numbers come from tables, captions and records. The answer and the charts estimate means and intervals by
`analysis.cell_means`, as tables and figures do, and the twelve rules compute numbers of their own.
"""

import base64
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from analysis import conditions
from analysis.intervals import SIGNIFICANCE_LEVEL
from analysis.records import Records, missing_cells, out_of_memory_cells, unsuccessful
from common.files import write_text
from common.options import run_program
from common.run_status import RunStatus
from common.tables import read_table
from common.text import number_of
from declared.datasets import find_dataset
from declared.figure_specs import FigureSpec, from_json
from figures import style, value_axis
from figures.view import build_view
from plan.campaign import Campaign, measured_campaign
from records.next_commands import CampaignArguments, repeat_commands
from report import content, design, elsewhere, every_run, libraries, quality, site_and_software, twelve_rules
from report.anonymous import NOT_ANONYMOUS, Anonymizer, build_anonymizer
from report.answer_section import build_answer_section
from report.charts import Chart, HeatMap, build_charts
from report.checkout import State
from report.dark import dark_colour
from report.every_run import RunTable
from report.libraries import Libraries
from report.material import (
    Material,
    Picture,
    StageTable,
    column,
    current_rows,
    group_failures,
    read_picture,
    read_table_files,
)
from report.packing import block, json_element, json_text
from report.page_table import PageTable
from report.text import clean, replace_names
from report.twelve_rules import Verdict

PAGE, STYLE, PROGRAMS = (
    "page.html.jinja",
    "page.css",
    ("page.js", "page_tables.js", "page_figures.js", "page_start.js"),
)
RUNS_IN_BLOCK = 16  # Runs compressed together, because neighbouring runs are similar.
SECTIONS = ("design", "environment", "data", "figures", "failures", "runs", "reproduce")
MAX_REASONS = 50
RUNS_PER_REASON = 3
PAGE_ROWS = 10  # The page's program shows tables of more than LONG_ROWS rows in pages of this length.
LONG_ROWS = 15
MAX_OPEN_FIGURES = 4  # Figures shown unfolded: the first one, then the paper's, except tall ones.
TALL_PX = 700
OPEN_TABLES = ("cells", "effects")
CODE = re.compile(r"`([^`<>]+)`")
FIRST_NUMBER = re.compile(r"[−-]?\d[\d,]*(?:\.\d+)?(?:e[−+-]?\d+)?")
OVERVIEW = FigureSpec("overview", "overview")  # The table of runs has its series and colours.
OTHER_COLOUR = style.MUTED  # Colour of runs that did not succeed.
# The page's program needs top-level await, DecompressionStream and <dialog>, its style sheet light-dark().
BROWSERS = "Chrome or Edge 123, Firefox 120, Safari 17.5 or newer"


def render_page(
    material: Material,
    campaign: Campaign,
    source: str,
    state: State,
    carried: Libraries,
    anonymizer: Anonymizer = NOT_ANONYMOUS,
) -> str:
    """Return the page as HTML.

    Args:
        material: What the report is based on.
        campaign: The campaign.
        source: Where its records are from: campaign, available, or the folder with published tables.
        state: The state of the checkout.
        carried: The libraries that the page embeds.
        anonymizer: Replaces the names of an anonymous study.
    """
    runs, imported = material.runs, material.study.imported
    verdicts = twelve_rules.judge_all(material)
    table = every_run.run_table(material)
    program = "\n".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in PROGRAMS)
    exclusions = design.exclusions(material.study)
    charts = build_charts(material)
    marks = list(quality.marks(material, verdicts))
    tables = [
        page_table(order_comparisons(table, material.study.answer_factors) if name == "effects" else table)
        for name, table in material.tables.items()
    ]
    tables.sort(key=lambda table: table.name not in OPEN_TABLES)
    pictures = order_pictures(material)
    figure_numbers = {picture.name: number for number, picture in enumerate(pictures, 1)}
    table_numbers = {table.name: number for number, table in enumerate(tables, 1)}
    anchors = {f"figure-{name}": number for name, number in figure_numbers.items()}
    anchors |= {f"table-{name}": number for name, number in table_numbers.items()}
    return _template(anonymizer.scrub, anchors).render(
        study=material.study,
        title=" ".join(material.study.title.split()),
        question=" ".join(material.study.question.split()),
        published=campaign.published_folder,
        run_ids=set(runs["run_id"]),
        answer=build_answer_section(material),
        marks=marks,
        consequences=quality.consequences(marks),
        left_out=content.left_out(material.left_out),
        factors=design.factors(material.study),
        exclusions=exclusions,
        replication=design.replication(runs, material.study.replicates),
        kept_order=design.kept_order(runs),
        seeds=design.seeds(runs),
        source=elsewhere.source_note(imported) if imported else "",
        source_tables=[elsewhere.accepted(imported), elsewhere.files(imported)] if imported else [],
        circumstances=conditions.circumstances_note(runs),
        facts=elsewhere.facts(imported, runs) if imported else site_and_software.facts(material.site, runs),
        software=site_and_software.software(runs),
        sessions=site_and_software.sessions(runs),
        network=site_and_software.network(material.data("network")),
        locks=None if imported else site_and_software.locks(campaign, material.site),
        data_sets=site_and_software.data_sets(material.study.factors["dataset"], material.site, runs),
        verdicts=[(rule, keep_valid_links(verdict, material)) for rule, verdict in verdicts],
        has_network="network" in material.tables,
        summary=twelve_rules.summary(verdicts),
        pictures=pictures,
        methods=conditions.methods_notes(runs, column(material.data("effects"), "within_blocks")),
        table_endnotes={name: table.table.endnotes for name, table in material.tables.items()},
        tables=tables,
        figure_numbers=figure_numbers,
        table_numbers=table_numbers,
        open_figures=open_figures(material),
        open_tables=set(OPEN_TABLES),
        long_rows=LONG_ROWS,
        charts=charts,
        charts_data={
            name: block(json_text(anonymizer.scrub_all(asdict(chart)))) for name, chart in charts.items()
        },
        files={
            f"{picture.name}.{suffix}": block(data)
            for picture in material.pictures
            for suffix, data in picture.files.items()
        },
        sources={
            name: block(json_text(anonymizer.scrub_all({"csv": csv})))
            for name, csv in (
                *((table.name, table.csv) for table in material.tables.values()),
                ("runs", material.runs_csv),
            )
        },
        reasons=failure_reasons(material),
        repeated=conditions.join_names(material.every_run.query("attempt > 1")["run_id"].tolist()),
        failed_benchmarks=site_and_software.failed_benchmarks(material.data("network")),
        repeat=repeat_command(material, campaign),
        missing=missing_cells(runs),
        out_of_memory=out_of_memory_cells(runs),
        status_counts=count_statuses(runs),
        measured=site_and_software.measured_when(runs),
        reproduction=site_and_software.reproduction(campaign, material.site, source, state),
        browsers=BROWSERS,
        versions=carried.versions,
        page_data=json_element(anonymizer.scrub_all(page_data(material, table, charts))),
        blocks=run_blocks(map(anonymizer.scrub_all, every_run.run_details(material, campaign))),
        tables_script=block(carried.tables),
        charts_scripts=[block(text) for text in carried.charts],
        style=Markup((Path(__file__).parent / STYLE).read_text(encoding="utf-8")),  # noqa: S704 (ours)
        tables_style=Markup(carried.tables_style),  # noqa: S704 (checked when loaded)
        program=Markup(program),  # noqa: S704 (ours)
        program_hash=base64.b64encode(sha256(program.encode()).digest()).decode(),
        sort_key=sort_key,
    )


def page_data(material: Material, table: RunTable, charts: Mapping[str, Chart | HeatMap]) -> dict[str, Any]:
    """Return the data of the page's program: the table of runs, the series of each run, and colours."""
    by_clock = every_run.run_order(material.every_run)[1]
    unclocked = "order of the table" if material.study.imported else "planned order"
    view = build_view(material.runs, OVERVIEW)
    colours = {series.name: series.style.colour for series in view.series}
    palette = [series_style.colour for series_style in style.TREATMENT_STYLES]
    drawn = {line.colour for chart in charts.values() for line in chart.series}
    return {
        **asdict(table),
        "in_block": RUNS_IN_BLOCK,
        "order": f"run, in the {'order in which they started' if by_clock else unclocked}",
        "series": every_run.series_names(material).tolist(),
        "series_title": view.series_description.partition(" (")[0],
        "colours": colours,
        "palette": palette,
        "dark_colours": {
            colour: dark_colour(colour)
            for colour in sorted({*colours.values(), *palette, *drawn, OTHER_COLOUR})
        },
        "other_colour": OTHER_COLOUR,
        "log_from": value_axis.LOG_FROM_RATIO,
        "page_rows": PAGE_ROWS,
    }


def order_pictures(material: Material) -> list[Picture]:
    """Return the figures in the order of the page: the first one, others shown unfolded, the rest."""
    opened = open_figures(material)
    first, later = material.pictures[:1], material.pictures[1:]
    return [*first, *sorted(later, key=lambda picture: picture.name not in opened)]


def open_figures(material: Material) -> set[str]:
    """Return the names of the figures that are shown unfolded."""
    first = [picture.name for picture in material.pictures[:1]]
    low = {picture.name for picture in material.pictures if picture.height <= TALL_PX}
    chosen = [name for name in material.study.paper.chosen_figures(material.figure_specs) if name in low]
    return set(list(dict.fromkeys([*first, *chosen]))[:MAX_OPEN_FIGURES])


def sort_key(text: str) -> str:
    """Return the first number of a text, by which its column is sorted; "" without a number."""
    match = FIRST_NUMBER.search(text)
    return match[0].replace(",", "").replace("−", "-") if match else ""


def run_blocks(details: Iterable[dict[str, Any]]) -> list[Markup]:
    """Return the details of runs, compressed in groups of RUNS_IN_BLOCK."""
    remaining = iter(details)
    return [block(json_text(group)) for group in iter(lambda: list(islice(remaining, RUNS_IN_BLOCK)), [])]


def keep_valid_links(verdict: Verdict, material: Material) -> Verdict:
    """Return a verdict without links to parts that this page does not have."""
    has_data = not material.study.imported or any(map(find_dataset, material.study.factors["dataset"]))
    targets = {
        *(name for name in SECTIONS if name != "data" or has_data),
        *(f"table-{name}" for name in material.tables),
        *(f"figure-{picture.name}" for picture in material.pictures),
    }
    return replace(verdict, links=tuple(link for link in verdict.links if link[0] in targets))


def count_statuses(runs: pd.DataFrame) -> str:
    """Return how many runs ended with each status."""
    counts = runs["status"].value_counts().sort_index().to_dict()
    if set(counts) == {RunStatus.OK}:
        return f"All {number_of(len(runs), 'run')} succeeded."
    return f"{', '.join(f'{count:,} {status}' for status, count in counts.items())}."


def failure_reasons(material: Material) -> PageTable:
    """Return the table of failures, the most frequent first, each with the names of some runs."""
    rows = []
    for status, reason, runs in group_failures(unsuccessful(material.every_run))[:MAX_REASONS]:
        n_more = len(runs) - RUNS_PER_REASON
        names = [*runs["run_id"].head(RUNS_PER_REASON), *([f"{n_more} more"] if n_more > 0 else [])]
        rows.append([status, reason, str(len(runs)), ", ".join(names)])
    header = ["status", "reason", "runs", "which"]
    return PageTable("Runs that did not succeed, by reason.", header, rows, ("status", "reason", "which"))


def repeat_command(material: Material, campaign: Campaign) -> str:
    """Return the command that repeats unsuccessful runs and benchmarks; "" if none can be repeated."""
    if material.study.imported or campaign.published_folder:
        return ""
    benchmarks = material.data("network")
    statuses = {*material.every_run["status"], *(benchmarks["status"] if len(benchmarks) else ())}
    return repeat_commands(statuses, CampaignArguments(material.study.name))


def order_comparisons(table: StageTable, answer_factors: Sequence[str]) -> StageTable:
    """Return the table of effects with significant rows first, and of these the factors asked about."""
    data, display = table.table.data, table.table.display
    if "p_holm" not in data:
        return table
    places = {name: index for index, name in enumerate(answer_factors)}
    place = data["factor"].map(places).fillna(len(places))
    is_open = ~(data["p_holm"] < SIGNIFICANCE_LEVEL)
    order = data.assign(place=place, is_open=is_open)[: len(display)].sort_values(
        ["is_open", "place"], kind="stable"
    )
    return replace(table, table=replace(table.table, display=display.iloc[order.index]))


def page_table(table: StageTable) -> PageTable:
    """Return the page's form of a table of an earlier stage, without `n` if a note has the only number."""
    frame = table.table.display
    has_legend = any("n: " in note for note in table.table.notes)
    if "n" in frame and frame["n"].nunique() == 1 and not has_legend:
        frame = frame.drop(columns="n")
    rows = [list(row) for row in frame.itertuples(index=False, name=None)]
    return PageTable(
        table.table.title,
        list(frame),
        rows,
        tuple(table.table.left_aligned),
        table.name,
        tuple(table.table.below),
    )


def link_names(text: str, numbers: Mapping[str, int]) -> Markup:
    """Return text as HTML with links to the tables and figures that it names, such as "table `cells`".

    Other words in backticks are code.

    Args:
        text: The text.
        numbers: Numbers of tables and figures by anchor, such as table-cells.
    """

    def link(kind: str, name: str) -> str | None:
        anchor = f"{kind}-{name}"
        return f'<a href="#{anchor}">{kind.capitalize()} {numbers[anchor]}</a>' if anchor in numbers else None

    linked = replace_names(str(escape(text)), link)
    return Markup(CODE.sub(r"<code>\1</code>", linked))  # noqa: S704 (escaped above)


def _template(scrub: Callable[[str], str], numbers: Mapping[str, int]) -> Any:
    """Return the page's template, which scrubs, cleans and escapes all text.

    `numbers` are those of `link_names`, which is the template's filter `linked`.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=lambda value: (
            clean(scrub(value)) if isinstance(value, str) and not isinstance(value, Markup) else value
        ),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["linked"] = lambda text: link_names(clean(scrub(text)), numbers)
    return environment.get_template(PAGE)


def read_material(
    campaign: Campaign,
    records: Records,
    specs: Sequence[FigureSpec],
    figure_folder: Path,
    tables: Sequence[Path],
    anonymizer: Anonymizer = NOT_ANONYMOUS,
) -> Material:
    """Read the material of a report; figures and tables without content only leave their reason."""
    runs = records.runs
    pictures = [read_picture(figure_folder / spec.name, anonymizer.scrub) for spec in specs]
    stage_tables = [read_table_files(stem) for stem in tables]
    not_drawn = {item.name: content.why_not_drawn(item.caption) for item in pictures}
    empty = {item.name: content.why_empty(item.table) for item in stage_tables}
    # A table and a figure can have the same name.
    reasons = [*not_drawn.items(), *((f"table {name}", reason) for name, reason in empty.items())]
    return Material(
        study=campaign.study,
        site=site_and_software.site_of(campaign, runs),
        runs=runs,
        every_run=records.every_run,
        epochs=current_rows(read_table(records.epochs_csv, "epochs"), records.every_run),
        pictures=[item for item in pictures if not not_drawn[item.name]],
        tables={item.name: item for item in stage_tables if not empty[item.name]},
        left_out={name: reason for name, reason in reasons if reason},
        phases=current_rows(records.table("phases"), records.every_run),
        network=records.table("network"),
        specs=specs,
        runs_csv=records.runs_csv.read_text(encoding="utf-8"),
    )


def main(
    *,
    study: str,
    site: str,
    source: str,
    runs: Path,
    epochs: Path,
    figures: Sequence[str],
    figure_folder: Path,
    tables: Sequence[Path],
    phases: Path | None = None,
    network: Path | None = None,
    checkout: str,
    out: Path,
) -> None:
    """Make the report of a study.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        source: where records are from: campaign, available, or the folder with published tables
        runs: runs.csv of the study
        epochs: epochs.csv of the study
        figures: specs of the figures, as JSON
        figure_folder: the folder of their files
        tables: printed tables, without suffixes
        phases: phases.csv, if runs were traced
        network: network.csv, if there is a collective benchmark
        checkout: the state of the checkout (report.checkout), as JSON
        out: report.html
    """
    state = State.from_json(checkout)
    campaign = measured_campaign(study, site, source)
    records = Records(runs, epochs, {"phases": phases, "network": network})
    anonymizer = build_anonymizer(
        campaign.study, site_and_software.site_of(campaign, records.runs), records.every_run, tables
    )
    specs = list(map(from_json, figures))
    material = read_material(campaign, records, specs, figure_folder, tables, anonymizer)
    write_text(out, render_page(material, campaign, source, state, libraries.load(), anonymizer))


if __name__ == "__main__":
    sys.exit(run_program(main))
