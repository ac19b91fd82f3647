"""Write a proposal for compute time from a campaign: results/STUDY/proposal/proposal.md, .tex and .pdf.

Its sections are what the forms of computing centres ask for (docs/how-to/proposal.md cites them). A section
whose data the campaign lacks says in one sentence what to measure. What a project is for, its schedule and
its people are not in records: they remain with the applicant.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import energy, tables
from analysis.batch_scaling import batch_scaling, scaling_phrase
from analysis.intervals import Estimate
from analysis.measured import (
    Records,
    are_times_to_train,
    distinct_names,
    levels_in_order,
    size_factor_name,
    successful,
    title,
    varying,
)
from analysis.responses import MEMORY, with_response
from analysis.tables import DASH, Table
from common.errors import InputError
from common.files import display_path, write_text
from common.notes import Note
from common.tables import stored_file
from common.text import end_sentence, number_of, size
from declared.datasets import TOKENS, find_dataset, kind, token_bytes
from declared.figures import Declared
from declared.models import find_graph
from declared.paper import DEFAULT_CLASS
from declared.responses import RESPONSES
from declared.site import Site
from declared.study import Study
from figures import scaling, style
from plan.campaign import Campaign, configured, measured_campaign
from report import content, document, pdf
from report.anonymous import anonymizer
from report.latex import figure, join_words, to_latex
from report.request import HOUR_S, Question, Request, Series, choose_series, make_request, predict_epoch
from report.setting import site_of, software

FIGURE = "scaling"
DEVICE_RESPONSES = ("mfu", "hfu", "flops_per_device", "collective_rate", "throughput_per_device")
OPTIMIZER_COPIES = {"adam": 3, "adamw": 3}  # of the parameters in a checkpoint; others: two, with momentum
DOCUMENT = r"""\documentclass[10pt]{article}
%s
\title{%s}
\author{\studyauthors}
\date{}

\begin{document}
\maketitle

%s
\end{document}
"""
LEAD = (
    "Draft made from the records of {runs} by Ringside. Numbers in brackets are 95 % intervals of "
    "measurements, and 90 % bands of predictions. The scientific case, the schedule and the people are left "
    "to the applicant."
)


@dataclass(frozen=True)
class Section:
    """A section of the proposal: its sentences, then its tables, then its figure's caption if it has one."""

    title: str
    notes: Sequence[str]
    tables: Sequence[Table] = ()
    caption: str = ""


@dataclass(frozen=True)
class Material:
    """What a proposal is made from.

    Attributes:
        study: The study.
        site: The site that the runs recorded; None if it is not known.
        records: The tables of the campaign.
        series: What time is asked for.
        request: How much.
    """

    study: Study
    site: Site | None
    records: Records
    series: Series
    request: Request

    @property
    def ok(self) -> pd.DataFrame:
        """Return the successful runs of the series."""
        return successful(self.series.runs)

    def level(self, factor: str) -> Any:
        """Return the level of a factor in the series' largest cell."""
        return self.ok.loc[self.ok["cell"] == self.series.largest, factor].iloc[0]

    def response(self, name: str) -> pd.Series:
        """Return the means of a response by cell of the series, in its displayed unit; NaN: not measured."""
        response = RESPONSES[name]
        measured = with_response(self.ok, response, lambda: self.records.epochs, self.study.target_accuracy)
        values = pd.to_numeric(measured[response.column]) * response.unit_multiplier
        return values.groupby(measured["cell"]).mean().reindex(self.series.rows["cell"])


def sections(material: Material, caption: str = "") -> list[Section]:
    """Return the sections of a proposal; `caption` is that of the figure of scaling, "" without one."""
    return [
        Section("Resources asked for", list(_request_notes(material)), [_request_table(material)]),
        Section("Application", list(_application_notes(material))),
        Section("Scaling", list(_scaling_notes(material)), [_scaling_table(material)], caption),
        Section("Use of the devices", list(_device_notes(material)), _device_tables(material)),
        Section("Memory", list(_memory_notes(material))),
        Section("Input and output", list(_io_notes(material))),
        Section("Energy and carbon", list(_energy_notes(material))),
        Section("Software and reproducibility", list(_software_notes(material)), _software_tables(material)),
    ]


def _request_notes(material: Material) -> Iterator[Note]:
    request, question = material.request, material.request.question
    if math.isnan(request.epoch_s.value):
        yield from _unknown_notes(material)
        return
    hours = request.node_hours
    source = f"measured on {number_of(question.nodes, 'node')}"
    if request.is_predicted:
        most = int(material.series.rows["nodes"].max())
        beyond = f", {question.nodes / most:.3g} times the most that were measured" * (question.nodes > most)
        source = f"predicted for {number_of(question.nodes, 'node')}{beyond}"
    yield Note(
        "node-hours",
        f"We ask for {_rounded(hours)} node hours: {number_of(question.trainings, 'training')} of "
        f"{request.epochs:.4g} epochs on {number_of(question.nodes, 'node')}. Node hours are trainings × "
        "nodes × (epochs × (epoch + validation) + start-up) × runs started for each that succeeded. The time "
        f"of an epoch, {tables.interval(request.epoch_s)} s, is {source}.",
        node_hours=hours,
        is_predicted=request.is_predicted,
    )
    if question.epochs is None and question.samples is None:
        yield Note(
            "epochs-of-benchmark",
            "Epochs are those of the benchmark's runs: give --epochs or --samples for production.",
            epochs=request.epochs,
        )
    if are_times_to_train(material.series.runs):
        yield Note(
            "times-to-train", "Times are of whole trainings to their target, each counted as one epoch."
        )


def _unknown_notes(material: Material) -> Iterator[Note]:
    """Say what to measure, and which node hours the trainings take on the most nodes that were measured."""
    nodes, most = material.request.question.nodes, int(material.series.rows["nodes"].max())
    yield Note(
        "not-predicted",
        f"The time of an epoch on {number_of(nodes, 'node')} is not known: measure it. The law of prediction "
        "does not hold for these cells.",
        nodes=nodes,
    )
    on_most = make_request(material.series, replace(material.request.question, nodes=most))
    yield Note(
        "node-hours-measured",
        f"On the most nodes that were measured, {most}, the same trainings take "
        f"{_rounded(on_most.node_hours)} node hours; with perfect scaling they take as many on more nodes.",
        nodes=most,
        node_hours=on_most.node_hours,
    )


def _request_table(material: Material) -> Table:
    request, question = material.request, material.request.question
    ranges = "predicted, 90 % band" if request.is_predicted else "measured, 95 % interval"
    asked = question.epochs is not None or question.samples is not None
    samples = float(material.series.rows["samples"].iloc[-1])
    rows = [
        ("nodes of a training", f"{question.nodes}", "asked for"),
        ("devices of a training", f"{question.nodes * _devices_per_node(material)}", "per node as measured"),
        ("samples of an epoch", DASH if math.isnan(samples) else f"{samples:,.0f}", "recorded"),
        ("time of an epoch (s)", tables.interval(request.epoch_s), ranges),
        ("validation after an epoch (s)", *_recorded(request.validation_s)),
        ("start-up of a training (s)", *_recorded(request.startup_s)),
        ("epochs of a training", f"{request.epochs:.4g}", "asked for" if asked else "as in the benchmark"),
        ("wall time of a training (h)", tables.interval(request.training_s.scaled(1 / HOUR_S)), "follows"),
        ("trainings", f"{question.trainings}", "asked for"),
        ("runs started for each that succeeded", f"{request.attempts:.2f}", "recorded"),
        ("node hours", _rounded(request.node_hours), "follows"),
    ]
    if math.isnan(request.epoch_s.value):
        rows = [row for row in rows if row[2] not in (ranges, "follows")]
    display = pd.DataFrame(rows, columns=["quantity", "value", "source"])
    return Table("What is asked for, and what it follows from", display, display, [], ["quantity", "source"])


def _recorded(seconds: float) -> tuple[str, str]:
    return (tables.number(seconds), "measured") if seconds else (DASH, "not recorded, counted as 0")


def _application_notes(material: Material) -> Iterator[Note]:
    model, dataset = (str(material.level(name)) for name in ("model", "dataset"))
    parameters = _parameters(material)
    levels = {name: material.level(name) for name in ("framework", "parallelism", "precision", "batch_scope")}
    size_text = f" with {parameters:,.0f} parameters" if parameters else ""
    yield Note(
        "application",
        f"{end_sentence(material.study.question)} The training is of {model}{size_text} on {dataset} with "
        f"{levels['framework']}, {levels['parallelism']} parallelism, precision {levels['precision']} and a "
        f"batch of {material.level('local_batch'):g} per device.",
        model=model,
        parameters=parameters,
        **levels,
    )
    if others := varying(successful(material.records.runs), but=("nodes", "devices_per_node", "replicas")):
        yield Note(
            "series",
            f"The campaign varied {join_words(map(title, others))}; this proposal is about "
            f"{material.series.words} (--level FACTOR=LEVEL chooses another series).",
            varied=others,
        )


def _scaling_notes(material: Material) -> Iterator[Note]:
    rows = material.series.rows
    if len(rows) < 2:
        yield Note(
            "one-scale", "Only one number of devices was measured: measure at least three, each doubled."
        )
        return
    kept = batch_scaling(material.series.runs, size_factor_name(material.series.runs))
    last, first = rows.iloc[-1], rows.iloc[0]
    yield Note(
        "scaling",
        f"From {number_of(int(first['devices']), 'device')} to {int(last['devices'])} the speed-up is "
        f"{tables.interval(_estimate(last, 'speedup'))}, an efficiency of "
        f"{tables.interval(_estimate(last, 'efficiency').scaled(100))} %{scaling_phrase(kept)}. Speed-up is "
        "relative to the fewest devices that were measured.",
        devices=int(last["devices"]),
        speedup=float(last["speedup"]),
        kind=kept.facts["kind"] if kept else None,
    )
    kind_kept = str(kept.facts["kind"]) if kept else ""
    if "and" not in kind_kept and len(levels_in_order(material.records.runs, "batch_scope")) < 2:
        other = "weak" if "strong" in kind_kept else "strong"
        yield Note(
            "one-kind",
            f"The campaign has no {other} scaling: add `batch_scope: [global, local]` to the study for both.",
            missing=other,
        )


def _scaling_table(material: Material) -> Table:
    rows, request = material.series.rows, material.request
    data = [
        {
            "nodes": f"{row['nodes']}",
            "devices": f"{row['devices']}",
            "runs": f"{row['n']}",
            "epoch (s)": tables.interval(_estimate(row, "epoch_time_s")),
            "samples/s": _rate_text(row["samples"], row["epoch_time_s"]),
            "speed-up": tables.interval(_estimate(row, "speedup")),
            "efficiency (%)": tables.interval(_estimate(row, "efficiency").scaled(100)),
            "node hours of an epoch": tables.number(row["nodes"] * row["epoch_time_s"] / HOUR_S),
        }
        for row in rows.to_dict("records")
    ]
    if request.is_predicted and not math.isnan(request.epoch_s.value):
        data.append(_predicted_row(material))
    display = pd.DataFrame(data)
    note = f"Cells of {material.series.words or material.series.largest}."
    return Table("Scaling of the series that time is asked for", rows, display, [note])


def _predicted_row(material: Material) -> dict[str, str]:
    first, nodes = material.series.rows.iloc[0], material.request.question.nodes
    epoch_s, devices = material.request.epoch_s, nodes * _devices_per_node(material)
    base_s = float(first["epoch_time_s"])
    speedup = Estimate(base_s / epoch_s.value, base_s / epoch_s.high, base_s / epoch_s.low)
    return {
        "nodes": f"{nodes}",
        "devices": f"{devices}",
        "runs": "predicted",
        "epoch (s)": tables.interval(epoch_s),
        "samples/s": _rate_text(first["samples"], epoch_s.value),
        "speed-up": tables.interval(speedup),
        "efficiency (%)": tables.interval(speedup.scaled(100 * int(first["devices"]) / devices)),
        "node hours of an epoch": tables.number(nodes * epoch_s.value / HOUR_S),
    }


def _device_values(material: Material) -> dict[str, pd.Series]:
    """Return the means by cell of responses per device that were measured, by name."""
    known = {name: material.response(name) for name in DEVICE_RESPONSES if name in RESPONSES}
    return {name: values for name, values in known.items() if values.notna().any()}


def _device_notes(material: Material) -> Iterator[Note]:
    if "mfu" not in _device_values(material):
        yield Note(
            "no-utilization",
            "Model FLOP utilization is not known: it needs a device whose peak is known, or the site's key "
            "`peak_tflops`.",
        )


def _device_tables(material: Material) -> list[Table]:
    values = _device_values(material)
    if not values:
        return []
    rows = material.series.rows
    columns = {RESPONSES[name].label: [tables.number(value) for value in own] for name, own in values.items()}
    display = pd.DataFrame({"nodes": rows["nodes"].map(str), "devices": rows["devices"].map(str), **columns})
    meanings = [RESPONSES[name].meaning for name in values]
    return [Table("What a device does", display, display, meanings)]


def _memory_notes(material: Material) -> Iterator[Note]:
    peaks = material.response(MEMORY.name).dropna()
    if peaks.empty:
        yield Note("no-memory", "Memory was not recorded: measure one run at the batch size of production.")
        return
    largest = material.response(MEMORY.name).get(material.series.largest, math.nan)
    on_device = bool(material.ok["device_memory_peak_bytes"].notna().any())
    subject = "allocated on its device" if on_device else "resident, with program and libraries"
    yield Note(
        "memory",
        f"A rank needs at most {tables.number(peaks.max())} {MEMORY.unit} ({subject}), and "
        f"{tables.number(largest)} {MEMORY.unit} on the most devices.",
        peak_mib=float(peaks.max()),
        on_device=on_device,
    )
    if parameters := _parameters(material):
        copies = OPTIMIZER_COPIES.get(str(material.level("optimizer")), 2)
        yield Note(
            "checkpoint",
            f"A checkpoint of parameters and optimizer states has {size(4 * copies * parameters)} "
            f"({copies} numbers of 4 bytes per parameter). The campaign wrote none.",
            bytes=4 * copies * parameters,
        )


def _io_notes(material: Material) -> Iterator[Note]:
    entry = find_dataset(str(material.level("dataset")))
    if entry is None:
        yield Note(
            "no-data-set",
            "Bytes that a training reads are not known: state the size of a sample and the number of files.",
        )
    else:
        per_sample = math.prod(entry["shape"]) * (
            token_bytes(entry["vocabulary"]) if kind(entry) == TOKENS else 1
        )
        n_samples = entry["train_samples"] + entry["validation_samples"]
        rate = per_sample * float(material.series.rows.iloc[0]["samples"]) / material.request.epoch_s.value
        needed = (
            f" At the time of an epoch above, all ranks read {size(rate)}/s together." if rate > 0 else ""
        )
        yield Note(
            "data-read",
            f"The data set has {n_samples:,} samples of {per_sample:,} bytes, {size(n_samples * per_sample)} "
            f"in prepared arrays.{needed}",
            bytes=n_samples * per_sample,
            bytes_s=rate,
        )
    if not material.records.files.get("phases"):
        yield Note(
            "no-data-phase",
            "The time that steps wait for data was not measured: `./ringside trace RUN` measures it.",
        )


def _energy_notes(material: Material) -> Iterator[Note]:
    scope = energy.choose_scope(material.series.runs)
    hours = material.request.node_hours.value
    if scope is None:
        yield Note(
            "no-energy",
            "Energy was not metered: measure where a meter of GPUs, processors or nodes can be read.",
        )
        return
    energies = energy.energy_of_runs(material.series.runs, scope)
    of_largest = energies[energies["cell"] == material.series.largest]
    power_w = float(of_largest["power_w"].mean()) / float(material.series.rows["nodes"].iloc[-1])
    kwh = power_w * hours / 1000
    asked = "" if math.isnan(kwh) else f" The node hours asked for take {tables.number(kwh)} kWh."
    yield Note(
        "energy",
        f"A node takes {tables.number(power_w)} W while it trains ({scope.title}, measured on the most "
        f"devices).{asked}",
        power_w=power_w,
        kwh=kwh,
    )


def _software_notes(material: Material) -> Iterator[Note]:
    study, runs = material.study, material.series.runs
    devices = distinct_names(material.ok, "devices")
    where = f" on {join_words(devices)}" if devices else ""
    if study.imported:
        stated = study.imported.description.stated
        yield Note(
            "elsewhere",
            f"The numbers were measured elsewhere{where} and imported: {stated.source} ({stated.licence}). "
            f"`./ringside run {study.name}` makes their tables and figures again.",
            source=stated.source,
        )
        return
    yield Note(
        "measured-here",
        f"{number_of(len(runs), 'run')} of {number_of(runs['cell'].nunique(), 'cell')} were measured{where}, "
        "in random order within blocks. A run has a key made of its settings and of the digests of its "
        f"environment, code and data; `./ringside run {study.name}` measures it again, and `./ringside "
        f"archive {study.name}` packs all records for a reviewer.",
        runs=len(runs),
    )


def _software_tables(material: Material) -> list[Table]:
    if material.study.imported:
        return []
    grid = software(material.series.runs)
    display = pd.DataFrame(grid.rows, columns=grid.header)
    used = [name for name in display if (display[name] != DASH).any()]
    return [Table(grid.caption, display, display[used], [], [name for name in grid.left if name in used])]


def _devices_per_node(material: Material) -> int:
    last = material.series.rows.iloc[-1]
    return max(1, round(int(last["devices"]) / int(last["nodes"])))


def _parameters(material: Material) -> float | None:
    """Return the parameters of the series' model, from its graph or as an import states them."""
    if graph := find_graph(str(material.level("model")), str(material.level("dataset"))):
        return float(graph.parameters)
    stated = material.series.at_largest("parameters") if "parameters" in material.ok else math.nan
    return None if math.isnan(stated) else stated


def _rate_text(samples: float, seconds: float) -> str:
    return DASH if math.isnan(samples) else tables.number(samples / seconds)


def _estimate(row: Mapping[str, Any] | pd.Series, name: str) -> Estimate:
    return Estimate(*(float(row[f"{name}{end}"]) for end in ("", "_low", "_high")))


def _rounded(estimate: Estimate) -> str:
    """Return an estimate with whole numbers from 100 on, where no decimals matter."""
    if estimate.value < 100:
        return tables.interval(estimate)
    value, *bounds = (f"{end:,.0f}" for end in (estimate.value, estimate.low, estimate.high))
    return value if math.isnan(estimate.low) else f"{value} [{bounds[0]}, {bounds[1]}]"


def render_markdown(title: str, lead: str, parts: Sequence[Section]) -> str:
    """Return the proposal in Markdown."""
    blocks = [f"# {title}", lead]
    for number, part in enumerate(parts, 1):
        blocks += [
            f"## {number}. {part.title}",
            *part.notes,
            *(tables.markdown(own).rstrip() for own in part.tables),
        ]
        blocks += [f"![{part.caption}]({FIGURE}.png)"] if part.caption else []
    return "\n\n".join(blocks) + "\n"


def render_latex(study: Study, title: str, lead: str, parts: Sequence[Section]) -> str:
    """Return the proposal as a LaTeX document."""
    blocks = [to_latex(lead)]
    for part in parts:
        blocks += [
            rf"\section{{{to_latex(part.title)}}}",
            *(to_latex(note.replace("`", "")) for note in part.notes),
        ]
        blocks += [
            tables.latex(own, f"tab:{part.title}-{number}".replace(" ", "-"))
            for number, own in enumerate(part.tables)
        ]
        blocks += [figure(FIGURE, part.caption).replace("figures/", "")] if part.caption else []
    head = document.preamble(study, DEFAULT_CLASS, study.anonymous)
    return DOCUMENT % (head, to_latex(title), "\n\n".join(blocks))


def gather(campaign: Campaign, question: Question) -> Material:
    """Return what a proposal of a campaign is made from, without its figure.

    Raises:
        InputError: If there are no records yet, none of a successful run, or the question is wrong.
    """
    if not campaign.runs_csv.is_file():
        raise InputError(
            "missing-file",
            "there are no records yet",
            file=display_path(campaign.runs_csv),
            hint=f"./ringside run {campaign.study.name}",
        )
    files = {name: stored_file(campaign.record_file(name)) for name in ("network", "phases")}
    existing = {name: file if file.exists() else None for name, file in files.items()}
    records = Records(campaign.runs_csv, campaign.epochs_csv, existing)
    series = choose_series(records.runs, question.levels)
    predicted = Estimate(math.nan)
    if series.row(question.nodes) is None:
        predicted = predict_epoch(campaign.runs_csv, existing["network"], series.largest, question.nodes)
    request = make_request(series, question, predicted)
    return Material(campaign.study, site_of(campaign, records.runs), records, series, request)


def _draw_scaling(material: Material, out: Path) -> str:
    """Draw speed-up and efficiency of the series into `out`, and return the caption; empty if not drawn."""
    runs = material.records.runs
    levels = {
        name: [material.level(name)] for name in varying(runs, but=("nodes", "devices_per_node", "replicas"))
    }
    drawn, caption = scaling.draw(material.records, Declared(FIGURE, "scaling", filter=levels))
    style.save(drawn, out / FIGURE)
    return "" if content.why_not_drawn(caption) else caption.partition("\n\n")[0]


def write_proposal(study: str, site: str, records: str, question: Question) -> None:
    """Write the proposal of a study's campaign, and its PDF where TeX is installed.

    Args:
        study: Name of the study.
        site: Name of the site; "" for the configured one.
        records: Folder of published tables; "" for the study's results.
        question: What time is asked for.
    """
    config = configured(study, site)
    campaign = measured_campaign(config["study"], config["site"], records or "available")
    material = gather(campaign, question)
    out = campaign.results / "proposal"
    names = anonymizer(material.study, material.site, material.records.runs)
    title = f"Computational proposal: {material.study.title}"
    lead = LEAD.format(runs=number_of(len(material.series.runs), "run"))
    parts = sections(material, _draw_scaling(material, out))
    write_text(out / "proposal.md", names.scrub(render_markdown(title, lead, parts)))
    write_text(out / "proposal.tex", names.scrub(render_latex(material.study, title, lead, parts)))
    print(display_path(out / "proposal.md"))
    try:
        pdf.main(main=out / "proposal.tex", out=out / "proposal.pdf", log=out / "proposal.log")
    except InputError as error:
        if error.code != "not-installed":
            raise
        print(f"no PDF: {error}")
