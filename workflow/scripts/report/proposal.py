"""Write a proposal for compute time from a campaign: results/STUDY/proposal/proposal.md, .tex and .pdf.

Its sections follow the forms of computing centres (docs/how-to/proposal.md cites them); proposal.md.jinja has
their text. If the campaign lacks the data of a section, the section says in one sentence what to measure.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import efficiency, energy, tables, useful_time
from analysis.batch_scaling import batch_scaling, scaling_phrase
from analysis.cell_means import estimate_response_means
from analysis.conditions import is_emulated
from analysis.cost import HOUR_S
from analysis.intervals import Estimate
from analysis.level_words import title
from analysis.records import (
    Records,
    are_times_to_train,
    distinct_names,
    size_factor_name,
    successful,
    varying,
)
from analysis.responses import MEMORY, with_response
from analysis.tables import Table
from common.errors import InputError
from common.files import display_path, write_text
from common.tables import stored_file
from common.templates import render
from common.text import end_sentence, format_bytes, join_words, number_of
from common.units import MIB
from declared.datasets import find_dataset, token_bytes
from declared.devices import find_device
from declared.factors import factor_rules
from declared.figure_specs import FigureSpec
from declared.models import find_graph
from declared.paper import DEFAULT_CLASS
from declared.responses import RESPONSES
from declared.study import Study
from figures import style
from figures.kinds import scaling
from models.messages import number_bytes
from plan.campaign import Campaign, load_merged_config, measured_campaign
from prediction.measured_study import load_study_tables
from report import content, document, pdf
from report.anonymous import build_anonymizer
from report.latex import figure_environment, to_latex
from report.request import (
    COUNTS,
    Question,
    Request,
    Series,
    choose_series,
    find_counterpart,
    make_request,
    project,
)
from report.site_and_software import site_of, software

TEMPLATE, FIGURE_NAME = "proposal.md.jinja", "scaling"
PER_DEVICE = ("mfu", "hfu", "flops_per_device", "collective_rate", "throughput_per_device")
NUMBERS_OF_ADAM, NUMBERS_OF_SGD = 3, 2  # per parameter in a checkpoint: itself and the optimizer's
DOCUMENT = r"""\documentclass[10pt]{article}
%s
\setlength{\parskip}{5pt}
%s
\author{\studyauthors}
\date{}
\begin{document}
\maketitle
%s
\end{document}
"""


def gather_facts(
    study: Study, records: Records, series: Series, request: Request
) -> tuple[dict[str, Any], dict[str, Table]]:
    """Return the facts of the template, None if unknown, and its tables by name."""
    ok = successful(series.runs)
    levels = ok[ok["cell"] == series.largest].iloc[0]
    measured = {
        name: _means(study, records, series, name) for name in (*PER_DEVICE, MEMORY.name) if name in RESPONSES
    }
    per_device = {
        name: means for name, means in measured.items() if name != MEMORY.name and means.notna().any()
    }
    batches = batch_scaling(series.runs, size_factor_name(series.runs))
    kind_of_scaling = str(batches.facts["kind"]) if batches else ""
    counterpart = find_counterpart(records.runs, series)
    devices = distinct_names(ok, "devices")
    facts = {
        "study": study,
        "series": series,
        "request": request,
        "question": request.question,
        "on_most_nodes": request.on_most_nodes(series),
        "times_to_train": are_times_to_train(series.runs),
        "levels": levels,
        "most_devices": _most_devices(study, series, levels),
        "varied": [title(name) for name in varying(successful(records.runs), exclude=COUNTS)],
        "scaling_phrase": scaling_phrase(batches),
        "other_kind": "weak" if "strong" in kind_of_scaling else "strong",
        "counterpart": counterpart,
        "per_device": per_device,
        "utilization": efficiency.notes(efficiency.model_flop_utilization(ok)),
        "has_phases": records.files.get("phases") is not None,
        "spent": _spent(records),
        "source": study.imported.description.stated if study.imported else None,
        "on_devices": f" on {join_words(devices)}" if devices else "",
        **_memory_facts(study, series, levels, float(measured[MEMORY.name].max())),
        **_input_facts(str(levels["dataset"]), request),
        **_cost_facts(series, request),
    }
    return facts, {
        "scaling": _scaling_table(series, request),
        "counterpart": _scaling_table(counterpart or series),
        "devices": _device_table(series, per_device),
        "software": _software_table(study, series),
    }


def _means(study: Study, records: Records, series: Series, name: str) -> pd.Series:
    """Return the means of a response by cell of the series, in its displayed unit."""
    response, ok = RESPONSES[name], successful(series.runs)
    runs = with_response(ok, response, lambda: records.epochs, study.target_accuracy)
    if not runs[response.column].notna().any():
        return pd.Series(math.nan, index=series.rows["cell"])
    means = estimate_response_means(runs, response).cell_statistics["mean"]
    return response.unit_multiplier * means.reindex(series.rows["cell"])


def _most_devices(study: Study, series: Series, levels: pd.Series) -> float:
    """Return the most devices that get a sample per step, or a batch per epoch; inf without a limit."""
    if levels["batch_scope"] == "global":
        return float(levels["batch_size"])
    return math.inf if study.imported else series.samples // levels["local_batch"] or math.inf


def _memory_facts(study: Study, series: Series, levels: pd.Series, peak_mib: float) -> dict[str, Any]:
    """Return memory of a rank in MiB, parameters, and bytes of a checkpoint of the largest cell.

    If an import does not state its optimizer, the size of a checkpoint is unknown.
    """
    ok, parameters, optimizer = successful(series.runs), _parameters(levels), str(levels["optimizer"])
    is_unstated = study.imported and "optimizer" not in study.imported.description.stated.levels
    is_unknown = is_unstated and optimizer == factor_rules("optimizer")["default"]
    n_numbers = NUMBERS_OF_ADAM if optimizer.startswith("adam") else NUMBERS_OF_SGD
    parameter_bytes = n_numbers * number_bytes(levels).stored
    return {
        "peak_mib": None if math.isnan(peak_mib) else peak_mib,
        "on_device": bool(ok["device_memory_peak_bytes"].notna().any()),
        "estimated_mib": series.mean_at_largest("estimated_memory_peak_bytes") / MIB or None,
        "available_mib": _available_memory(ok, series) / MIB,
        "parameters": parameters,
        "checkpoint_bytes": None if is_unknown else parameters and parameter_bytes * parameters,
    }


def _available_memory(ok: pd.DataFrame, series: Series) -> float:
    """Return the memory of a rank in bytes: of its device, or else its share of the node; NaN if unknown."""
    names = distinct_names(ok, "devices")
    if device := find_device(names[0]) if len(names) == 1 else None:
        return float(device.memory_bytes)
    n_sharing = series.devices[-1] if is_emulated(series.runs) else series.devices_per_node
    return series.mean_at_largest("node_memory_bytes") / n_sharing or math.nan


def _parameters(levels: pd.Series) -> float | None:
    """Return the number of parameters of a cell's model, from its graph or as an import states it."""
    if graph := find_graph(str(levels["model"]), str(levels["dataset"])):
        return float(graph.parameters)
    stated = levels.get("parameters")
    return None if pd.isna(stated) else float(stated)


def _input_facts(dataset: str, request: Request) -> dict[str, Any]:
    """Return the bytes of the data set, of a sample, and that all ranks together read per second."""
    entry = find_dataset(dataset)
    if entry is None:
        return {"data_bytes": None}
    bytes_of_number = token_bytes(entry["vocabulary"]) if "vocabulary" in entry else 1
    sample_bytes = math.prod(entry["shape"]) * bytes_of_number
    return {
        "sample_bytes": sample_bytes,
        "data_bytes": sample_bytes * (entry["train_samples"] + entry["validation_samples"]),
        "read_bytes_s": sample_bytes * entry["train_samples"] / request.epoch_s.value,
    }


def _cost_facts(series: Series, request: Request) -> dict[str, Any]:
    """Return price, power of a node in the largest cell, and energy and carbon of the request.

    Power is metered or, without a meter, as the site states it. The site also states price and grid
    intensity.
    """
    scope = energy.choose_scope(series.runs)
    energies = (
        energy.energy_of_runs(series.runs, scope) if scope else pd.DataFrame(columns=["cell", "power_w"])
    )
    metered_w = float(energies.loc[energies["cell"] == series.largest, "power_w"].mean())
    stated_w, price, grid_g = map(
        series.mean_at_largest, ("node_power_w", "price_per_node_hour", "grid_g_co2_per_kwh")
    )
    power_w = stated_w if math.isnan(metered_w) else metered_w / int(series.rows["nodes"].iloc[-1])
    energy_kwh = power_w * request.node_hours.value / 1000
    return {
        "power_w": power_w or None,
        "energy_scope": "as stated, not measured" if scope is None or math.isnan(metered_w) else scope.title,
        "energy_kwh": energy_kwh,
        "carbon_kg": energy_kwh * grid_g / 1000 or None,
        "grid_g": grid_g,
        "price": price or None,
        "cost": request.node_hours.times(price),
        "currency": join_words(distinct_names(series.runs, "currency")) if price else "",
    }


def _spent(records: Records) -> dict[str, float] | None:
    """Return node hours of the campaign and the share of them that trained; None if it recorded no times."""
    spent = useful_time.summarize(records.every_run, records.epochs_of(records.every_run))
    if spent.empty:
        return None
    campaign = spent.iloc[0]
    return {"node_hours": float(campaign["node_s"]) / HOUR_S, "share": float(campaign["useful_share"])}


def _scaling_table(series: Series, request: Request | None = None) -> Table:
    rows = series.rows
    if request and request.is_predicted and request.is_known:
        rows = pd.concat([rows, pd.DataFrame([series.predicted_row(request)])], ignore_index=True)
        rows = rows.sort_values("devices", kind="stable", ignore_index=True)
    rates = rows["samples"] / rows["epoch_time_s"]
    compared = {"framework": rows["framework"]} if rows["framework"].nunique() > 1 else {}
    display = pd.DataFrame(
        {
            **compared,
            "nodes": rows["nodes"].map(str),
            "devices": rows["devices"].map(str),
            "runs": rows["n"].map(lambda n: f"{n}" if n else "predicted"),
            "epoch (s)": tables.interval_texts(rows, "epoch_time_s"),
            "samples/s": rates.map(tables.number),
            "speed-up": tables.interval_texts(rows, "speedup"),
            "efficiency (%)": tables.interval_texts(rows, "efficiency", 100),
            "node h/epoch": (rows["nodes"] * rows["epoch_time_s"] / HOUR_S).map(tables.number),
        }
    )
    notes = [f"Cells of {series.words}."] if series.words else []
    heading = f"Scaling{' of the series that time is asked for' if request else ''}"
    return Table(heading, rows, display, notes, list(compared))


def _device_table(series: Series, per_device: Mapping[str, pd.Series]) -> Table:
    columns = {RESPONSES[name].label: means.map(tables.number).tolist() for name, means in per_device.items()}
    display = series.rows[["nodes", "devices"]].astype(str).assign(**columns)
    notes = [" ".join(RESPONSES[name].meaning for name in per_device)]
    return Table("What a device does", display, display if columns else display[:0], notes)


def _software_table(study: Study, series: Series) -> Table:
    page_table = software(series.runs)
    display = pd.DataFrame([] if study.imported else page_table.rows, columns=page_table.header)
    return Table(page_table.caption, display, display, [], list(page_table.left))


def _hours_text(estimate: Estimate) -> str:
    """Return an estimate as text, from 100 on in whole numbers."""
    if not estimate.value >= 100:
        return tables.interval(estimate)
    value, low, high = (f"{end:,.0f}" for end in (estimate.value, estimate.low, estimate.high))
    return value if math.isnan(estimate.low) else f"{value} [{low}, {high}]"


def render_blocks(facts: Mapping[str, Any], tables_by_name: Mapping[str, Table]) -> list[str | Table]:
    """Return the blocks of the proposal: headings, paragraphs, tables with rows, and FIGURE."""
    words = {
        "interval": tables.interval, "number": tables.number, "hours": _hours_text, "count": number_of,
        "size": format_bytes, "sentence": end_sentence, "join": join_words,
    }  # fmt: skip
    blocks: list[str | Table] = []
    for text in render(Path(__file__).with_name(TEMPLATE), **words, **facts).split("\n\n"):
        word, _, name = text.strip().partition(" ")
        if word == "TABLE":
            blocks += [tables_by_name[name]] if len(tables_by_name[name].display) else []
        elif word == "ROWS":
            heading, header, *rows = (line.split(" | ") for line in name.splitlines() if line.strip())
            display = pd.DataFrame(rows, columns=header)
            blocks.append(Table(heading[0], display, display, [], header[::2]))
        elif word:
            blocks.append(" ".join(text.split()))
    return blocks


def to_markdown(blocks: Sequence[str | Table], caption: str) -> str:
    """Return the proposal in Markdown; `caption` is the caption of its figure, "" without a figure."""
    texts = [tables.markdown(block).rstrip() if isinstance(block, Table) else block for block in blocks]
    picture = f"![{caption}]({FIGURE_NAME}.png)" if caption else ""
    return "\n\n".join(filter(None, (picture if text == "FIGURE" else text for text in texts))) + "\n"


def to_document(blocks: Sequence[str | Table], caption: str, study: Study) -> str:
    """Return the proposal as a LaTeX document."""
    texts = []
    for number, block in enumerate(blocks):
        if isinstance(block, Table):
            texts.append(tables.latex(block, f"tab:{number}"))
        elif block == "FIGURE":
            texts += [figure_environment(FIGURE_NAME, caption).replace("figures/", "")] if caption else []
        else:
            mark, _, heading = block.partition(" ")
            commands = {"#": "title", "##": "section"}
            latex = to_latex((heading if mark in commands else block).replace("`", "")).replace("--", "-{}-")
            texts.append(rf"\{commands[mark]}{{{latex}}}" if mark in commands else latex)
    head = f"{document.preamble(study, DEFAULT_CLASS, study.anonymous)}{document.NOTHING_FLOATS}"
    return DOCUMENT % (head, texts[0], "\n\n".join(texts[1:]))


def gather_records(campaign: Campaign, question: Question) -> tuple[Records, Series, Request]:
    """Return the tables of a campaign, the series that the question is about, and the request for it.

    Raises:
        InputError: If there are no records, none of a successful run, or the question is wrong.
    """
    if not campaign.runs_csv.is_file():
        file, hint = display_path(campaign.runs_csv), f"./ringside run {campaign.study.name}"
        raise InputError("missing-file", "there are no records yet", file=file, hint=hint)
    files = {name: stored_file(campaign.table_file(name)) for name in ("network", "phases")}
    existing = {name: file if file.exists() else None for name, file in files.items()}
    records = Records(campaign.runs_csv, campaign.epochs_csv, existing)
    if successful(records.runs).empty:
        problem, expected = "no run succeeded", "at least one measured cell"
        raise InputError("no-success", problem, file=campaign.runs_csv, expected=expected)
    series = choose_series(records.runs, question.levels)
    study = load_study_tables(campaign.runs_csv, existing["network"])
    return records, series, make_request(series, question, *project(study, series.largest, question.nodes))


def write_proposal(study: str, site: str, records: str, question: Question) -> None:
    """Write the proposal of a study's campaign, and its PDF where TeX is installed.

    Args:
        study: Name of the study; "" for the configured one.
        site: Name of the site; "" for the configured one.
        records: Folder of published tables; "" for the study's results.
        question: What time is asked for.
    """
    config = load_merged_config(study, site)
    campaign = measured_campaign(config["study"], config["site"], records or "available")
    all_records, series, request = gather_records(campaign, question)
    facts, tables_by_name = gather_facts(campaign.study, all_records, series, request)
    out, runs = campaign.results / "proposal", all_records.runs
    levels = {name: [facts["levels"][name]] for name in varying(runs, exclude=COUNTS)}
    drawn, caption = scaling.draw(all_records, FigureSpec(FIGURE_NAME, "scaling", filter=levels))
    style.save(drawn, out / FIGURE_NAME)
    below = "" if content.why_not_drawn(caption) else caption.partition("\n\n")[0]
    blocks = render_blocks(facts, tables_by_name)
    anonymizer = build_anonymizer(campaign.study, site_of(campaign, runs), runs)
    write_text(out / "proposal.md", anonymizer.scrub(to_markdown(blocks, below)))
    latex = to_document(blocks, below, campaign.study)
    write_text(out / "proposal.tex", anonymizer.scrub(latex))
    print(display_path(out / "proposal.md"))
    try:
        pdf.main(main=out / "proposal.tex", out=out / "proposal.pdf", log=out / "proposal.log")
    except InputError as error:
        if error.code != "not-installed":
            raise
        print(f"no PDF: {error}")
