"""The verb that makes a campaign of measurements made elsewhere."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ringside.arguments import Json
from ringside.models import option


def import_(
    files: Annotated[
        list[str], typer.Argument(metavar="FROM...", help="Tables, logs, folders, glob patterns.")
    ],
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="Name of the study that is written.")],
    statement: Annotated[
        Path | None, option("A YAML file that states what options state, such as an import.yaml.")
    ] = None,
    source: Annotated[str | None, option("Who measured, and where it is published.", metavar="TEXT")] = None,
    licence: Annotated[str | None, option("Its licence, such as Apache-2.0.", metavar="TEXT")] = None,
    url: Annotated[str | None, option("Its address.", metavar="URL")] = None,
    framework: Annotated[str | None, option("Framework that trained.", metavar="F")] = None,
    model: Annotated[str | None, option("Model that was trained.", metavar="M")] = None,
    parameters: Annotated[float | None, option("Its parameters, of a model of others.", metavar="N")] = None,
    gradient_bytes: Annotated[float | None, option("Bytes of its gradients.", metavar="N")] = None,
    precision: Annotated[str | None, option("Precision: fp32, tf32, amp (also bf16, fp16).")] = None,
    device: Annotated[str | None, option("Model of the devices.", metavar="TEXT")] = None,
    nodes: Annotated[int | None, option("Number of nodes.", metavar="N", min=1)] = None,
    devices_per_node: Annotated[int | None, option("Devices of a node.", metavar="N", min=1)] = None,
    bandwidth: Annotated[
        float | None, option("Link rate of a node, Gbit/s in one direction.", metavar="G")
    ] = None,
    inside_bandwidth: Annotated[
        float | None, option("Link rate of a device inside a node, Gbit/s in one direction.", metavar="G")
    ] = None,
    samples_per_epoch: Annotated[int | None, option("Samples of an epoch.", metavar="N", min=1)] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Format of all files; default: by contents.",
            show_default=False,
        ),
    ] = None,
    column: Annotated[
        list[str] | None, option("Column of a value: seconds=t_step; seconds= leaves it out.", metavar="V=C")
    ] = None,
    unit: Annotated[
        Literal["s", "ms", "us", "min", "h"] | None,
        option("Unit of times whose column does not say it (default s)."),
    ] = None,
    rows: Annotated[
        list[str] | None, option("Rows with this text in a column alone.", metavar="C=TEXT")
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
        int | None,
        option("First steps of logs that do not count; default: those that show.", metavar="N", min=0),
    ] = None,
    accept: Annotated[
        list[str] | None, option("Go on in spite of findings of this code.", metavar="CODE")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an earlier import of this name.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="List what would be written, and write nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Make a campaign of measurements made elsewhere: tables of runs, logs, texts of collective benchmarks.

    Times are checked first. A finding, such as a unit that cannot be right, ends the import with status 2.

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
