"""Verbs about a campaign: cost, status, preview, repetition, traces, proposal, verification, comparison."""

from pathlib import Path
from typing import Annotated

import typer

from common.errors import InputError
from ringside.arguments import Json, Site, Study, StudyOption, complete


def _statuses() -> tuple[str, ...]:
    from common.run_status import RECORD_STATUSES

    return RECORD_STATUSES


def plan(
    study: Study = "",
    site: Site = "",
    block: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only one block of the design.", show_default=False)
    ] = None,
    no_memory: Annotated[
        bool, typer.Option("--no-memory", help="Do not estimate memory (about one second per cell).")
    ] = False,
    json: Json = False,
) -> None:
    """Show what a campaign will cost (hours, node hours, disk, memory) before anything runs.

    Example:
    ./ringside plan my-study --site my-cluster
    """
    from runs.memory_estimates import show_plan

    show_plan(study=study, site=site, block=block, as_json=json, estimates=not no_memory)


def status(
    study: Study = "",
    site: Site = "",
    watch: Annotated[
        bool, typer.Option("--watch", help="Update every 10 s until the campaign has ended.")
    ] = False,
    json: Json = False,
) -> None:
    """Show where a campaign stands: done, running, failed and why, time left.

    Example:
    ./ringside status my-study --watch
    """
    from records.status_text import show_status

    show_status(study, site, repeatedly=watch, as_json=json)


def preview(study: Study = "", site: Site = "") -> None:
    """Draw the figures of the runs so far while the campaign continues: results/STUDY/preview.

    Example:
    ./ringside preview my-study
    """
    from report import preview as stage

    stage.main(study=study, site=site)


def repeat(
    runs: Annotated[
        str,
        typer.Argument(
            metavar="RUNS",
            help="A status of records (failed, timeout, invalid, broken, oom, ok) or a pattern of run ids.",
            autocompletion=complete(_statuses),
        ),
    ],
    study: StudyOption = "",
    site: Site = "",
    later: Annotated[
        bool, typer.Option("--later", help="Run them with the next ./ringside run, not now.")
    ] = False,
) -> None:
    """Repeat runs, selected by status or by a pattern; old attempts are kept.

    Example:
    ./ringside repeat invalid --study my-study
    ./ringside repeat '*ddp*.b32.*'
    """
    from records.repeat import repeat_runs

    repeat_runs(runs, study, site, run=not later)


def trace(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run id, or a pattern that matches one.")],
    study: StudyOption = "",
    site: Site = "",
    full: Annotated[
        bool, typer.Option("--full", help="Also trace the events of the library's own profiler.")
    ] = False,
    chakra: Annotated[
        Path | None,
        typer.Option(help="Also write a step as Chakra execution traces, for ASTRA-sim.", metavar="FOLDER"),
    ] = None,
) -> None:
    """Repeat one run with tracing, for Perfetto and Vampir: results/STUDY/traces/RUN.

    Example:
    ./ringside trace '*ddp*.b16.n2.*.r1' --study my-study
    """
    from traces.make import trace_run

    trace_run(run, study, site, full=full, chakra=chakra)


def read_trace(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive's file that ends in .otf2.")],
) -> None:
    """Convert a trace of Score-P to phases of steps (CSV) and to the format of Perfetto.

    Example:
    ./ringside read-trace scorep-20261124_2312/traces.otf2
    """
    from traces.otf2_read import convert

    convert(file)


def proposal(
    target_nodes: Annotated[
        int, typer.Option(metavar="N", min=1, max=10**6, help="Nodes of a production training.")
    ],
    study: Study = "",
    site: Site = "",
    epochs: Annotated[
        float | None,
        typer.Option(
            metavar="E",
            help="Epochs per training; default: those of the campaign's runs.",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[
        float | None,
        typer.Option(metavar="S", help="Samples per training, in place of --epochs.", show_default=False),
    ] = None,
    trainings: Annotated[int, typer.Option(min=1, metavar="T", help="Number of trainings.")] = 1,
    level: Annotated[
        list[str] | None,
        typer.Option(
            metavar="F=L",
            help="A level of the series to extrapolate; repeat it for more.",
            show_default=False,
        ),
    ] = None,
    records: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="Tables of a published campaign; default: results/STUDY.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Write a proposal for compute time from a campaign: results/STUDY/proposal/proposal.pdf and .md.

    Example:
    ./ringside proposal my-study --target-nodes 64 --epochs 90 --trainings 5
    """
    from report.proposal import write_proposal
    from report.request import Question, parse_levels

    question = Question(target_nodes, epochs, samples, trainings, parse_levels(level or ()))
    write_proposal(study, site, records, question)


def verify(
    study: Study = "",
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The manifest.json to compare with; default: the study's.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Compare figures, tables and records with a manifest; exit status 1 if they differ.

    Example:
    ./ringside verify my-study --against ../manifest.json
    """
    from provenance import verify as stage

    if not stage.verify(study, against, as_json=json):
        raise typer.Exit(1)


def compare(
    base: Annotated[str, typer.Argument(metavar="BASE", help="A study, or a folder with runs.csv.")],
    other_campaign: Annotated[
        str, typer.Argument(metavar="[OTHER]", help="Study or folder to compare with it.")
    ] = "",
    reference: Annotated[
        str, typer.Option(metavar="NAME", help="Published numbers of config/references/, in place of OTHER.")
    ] = "",
    margin: Annotated[
        str | None,
        typer.Option(metavar="PERCENT", help="Margin around --reference (default 5 %).", show_default=False),
    ] = None,
) -> None:
    """Compare two campaigns of different dates, sites or versions, or a campaign with published numbers.

    Example:
    ./ringside compare docs/campaigns/tf-strategies-virtual results/tf-strategies-virtual
    ./ringside compare my-study --reference nvidia-resnet-50
    """
    from common.keys import parse
    from comparison.compare import compare_campaigns
    from comparison.published import compare_with_reference
    from declared.replicates import Percentage, as_share

    if bool(reference) == bool(other_campaign):
        hint = "ringside compare --help explains both"
        raise InputError("wrong-count", "needs either OTHER or --reference", hint=hint)
    if margin is not None and not reference:
        problem = "is for published numbers"
        raise InputError("conflicting-keys", problem, file="--margin", got=margin, hint="name a --reference")
    if reference:
        share = as_share(parse(Percentage, "5 %" if margin is None else margin, Path("--margin")))
        compare_with_reference(base, reference, share)
    else:
        compare_campaigns(base, other_campaign)


def unlock() -> None:
    """Remove the lock of a Snakemake that was killed.

    Example:
    ./ringside unlock
    """
    from plan import unlock as stage

    stage.main()
