"""The verb that imports measurements as a campaign."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ringside.arguments import Json
from ringside.models import option


def import_(
    files: Annotated[
        list[str], typer.Argument(metavar="FROM...", help="Tables, logs, folders, glob patterns.")
    ],
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="Name of the new study.")],
    statement: Annotated[
        Path | None, option("A YAML file in place of options, such as an import.yaml.")
    ] = None,
    source: Annotated[str | None, option("Who measured, and where it is published.", metavar="TEXT")] = None,
    licence: Annotated[
        str | None, option("Licence of the measurements, such as Apache-2.0.", metavar="TEXT")
    ] = None,
    url: Annotated[str | None, option("Address of the source.", metavar="URL")] = None,
    framework: Annotated[str | None, option("Framework that trained.", metavar="F")] = None,
    model: Annotated[str | None, option("Model that was trained.", metavar="M")] = None,
    parameters: Annotated[float | None, option("Number of parameters of the model.", metavar="N")] = None,
    gradient_bytes: Annotated[float | None, option("Bytes of the model's gradients.", metavar="N")] = None,
    precision: Annotated[str | None, option("Precision: fp32, tf32, amp (also bf16, fp16).")] = None,
    device: Annotated[str | None, option("Model of the devices.", metavar="TEXT")] = None,
    nodes: Annotated[int | None, option("Number of nodes.", metavar="N", min=1)] = None,
    devices_per_node: Annotated[int | None, option("Devices per node.", metavar="N", min=1)] = None,
    bandwidth: Annotated[
        float | None, option("Link rate of a node, Gbit/s in one direction.", metavar="G")
    ] = None,
    inside_bandwidth: Annotated[
        float | None, option("Link rate of a device inside a node, Gbit/s in one direction.", metavar="G")
    ] = None,
    samples_per_epoch: Annotated[int | None, option("Samples per epoch.", metavar="N", min=1)] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Format of all files; default: recognized by content.",
            show_default=False,
        ),
    ] = None,
    column: Annotated[
        list[str] | None, option("Column of a value: seconds=t_step; seconds= ignores it.", metavar="V=C")
    ] = None,
    unit: Annotated[
        Literal["s", "ms", "us", "min", "h"] | None,
        option("Unit of times whose column name has none (default s)."),
    ] = None,
    rows: Annotated[
        list[str] | None, option("Use only rows with this text in a column.", metavar="C=TEXT")
    ] = None,
    factor: Annotated[
        list[str] | None, option("Column of a factor of your own: tp=TP.", metavar="F=C")
    ] = None,
    level: Annotated[
        list[str] | None, option("Level of a factor in all runs: dataset=imagenet.", metavar="F=L")
    ] = None,
    names: Annotated[
        str | None, option("Values in file names: 'n{nodes}/b{local_batch}-*.log'.", metavar="PATTERN")
    ] = None,
    time: Annotated[
        Literal["step", "run"] | None, option("The time of a step (default), or of the run to its target.")
    ] = None,
    warmup_steps: Annotated[
        int | None, option("Number of warm-up steps in logs; default: detected.", metavar="N", min=0)
    ] = None,
    accept: Annotated[list[str] | None, option("Accept findings with this code.", metavar="CODE")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an earlier import with this name.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="List what would be written, and write nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Import measurements as a campaign: tables of runs, logs, outputs of collective benchmarks.

    Times are checked first. A finding, such as an implausible unit, ends the import with status 2.

    Example:
    ./ringside import runs.csv --as their-gpus --source 'their site' --licence CC-BY-4.0 --unit ms
    ./ringside import logs/ all_reduce.txt --as llama --source own --licence none --names 'n{nodes}/*.log'
    """
    typed = {name.rstrip("_"): value for name, value in locals().items() if value is not None}
    from dataclasses import fields

    from importers.campaign import import_measurements
    from importers.statement import Options

    options = Options(**{field.name: typed[field.name] for field in fields(Options) if field.name in typed})
    import_measurements(files, name, options, statement, dry_run=dry_run, overwrite=replace, as_json=json)
