"""Verbs about models and data: list models, predict scaling, search for strategies, pack own data."""

from pathlib import Path
from typing import Annotated, Any

import typer

from common.errors import InputError
from ringside.arguments import Json, Site, Study
from ringside.workflow import DryRun, run_snakemake

Stem = Annotated[
    Path | None,
    typer.Option(
        metavar="STEM",
        help="Files to write, without suffix; default: only print the table.",
        show_default=False,
    ),
]


def option(text: str, **settings: Any) -> Any:
    """Return an option without a default: the function that answers the question has it."""
    return typer.Option(help=text, show_default=False, **settings)


def models(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Models; default: all.")] = None,
    image: Annotated[
        str | None, option("Only for images of this size, such as 96x96x3.", metavar="HxWxC")
    ] = None,
    tokens: Annotated[
        str | None, option("Only for tokens of this kind, such as 128:5000.", metavar="LENGTH:VOCABULARY")
    ] = None,
    classes: Annotated[int, typer.Option(metavar="N", help="Classes of images and of texts.")] = 10,
    json: Json = False,
) -> None:
    """List models with their parameters, multiplications and bytes.

    Example:
    ./ringside models resnet-50 --image 96x96x3 --classes 100
    """
    from declared.user_models import user_model_titles
    from models.listing import show_models

    show_models(names or [], image, tokens, classes, as_json=json, own=user_model_titles())


def predict(
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FOLDER",
            help="Use a measured study: results/STUDY, or a folder of docs/campaigns/.",
            show_default=False,
        ),
    ] = None,
    step_time: Annotated[
        float | None,
        option("Seconds of an optimizer step on one device, with all accumulated batches.", metavar="S"),
    ] = None,
    measured: Annotated[
        list[str] | None,
        option(
            "Seconds of an optimizer step on N nodes of D devices, such as 1x8=0.29; repeat it for more.",
            metavar="NxD=S",
        ),
    ] = None,
    batch_size: Annotated[
        int | None, option("Samples per device in each batch (default 32).", metavar="N")
    ] = None,
    samples: Annotated[int | None, option("Samples of an epoch (default: ImageNet's).", metavar="N")] = None,
    model: Annotated[str | None, option("A model of `ringside models`.", metavar="MODEL")] = None,
    dataset: Annotated[
        str | None, option("Data set of the model (default: images like ImageNet's).", metavar="DATASET")
    ] = None,
    parameters: Annotated[
        float | None, option("Number of parameters of 4 bytes, instead of --model.", metavar="N")
    ] = None,
    gradient_bytes: Annotated[
        float | None, option("Bytes of gradients, instead of --model.", metavar="N")
    ] = None,
    sync_every: Annotated[
        int | None,
        typer.Option(
            "--sync-every",
            "--gradient-accumulation-steps",
            metavar="K",
            help="Gradient accumulation steps (default 1).",
            show_default=False,
        ),
    ] = None,
    rate: Annotated[
        list[float] | None,
        option("Rate of links, Gbit/s; repeat it for more (default 1, 10, 25, 100).", metavar="G"),
    ] = None,
    inside_rate: Annotated[
        float | None, option("Rate of a device's links inside a node, Gbit/s.", metavar="G")
    ] = None,
    framework: Annotated[
        str | None, option("Framework whose messages are predicted (default: the study's, or pytorch-ddp).")
    ] = None,
    nodes: Annotated[int, typer.Option(metavar="N", help="Largest number of nodes.")] = 1024,
    at: Annotated[
        list[int] | None, option("Also list the prediction on N nodes; repeat it for more.", metavar="N")
    ] = None,
    epochs: Annotated[
        float | None, option("Epochs that node hours and cost count (default 1).", metavar="N")
    ] = None,
    price: Annotated[float | None, option("Price of a node hour, in any currency.", metavar="AMOUNT")] = None,
    min_gain: Annotated[
        float | None, option("Share of the ideal that a doubling must gain (default 0.7).", metavar="X")
    ] = None,
    measurable: Annotated[
        int | None,
        option(
            "Largest number of nodes that you can measure (default: 4 times the measured ones).", metavar="N"
        ),
    ] = None,
    out: Stem = None,
) -> None:
    """Predict how many nodes are worth it, without a campaign or from a measured study.

    Example:
    ./ringside predict --model resnet-50 --step-time 0.25 --batch-size 64
    ./ringside predict --parameters 1.3e9 --measured 1x8=0.84 --measured 2x8=0.91 --rate 200
    ./ringside predict --from results/my-study --rate 10 --rate 100
    """
    options = {name: value for name, value in locals().items() if value not in (None, []) and name != "out"}
    from prediction.question import build_question
    from ringside.predicting import show_projection

    show_projection(build_question(**options), out)


def strategies(
    ctx: typer.Context,
    study: Study = "",
    site: Site = "",
    dry_run: DryRun = False,
    profile: Annotated[str, option("For a study: where jobs run, such as slurm.", metavar="PROFILE")] = "",
    model: Annotated[
        str | None, option("A model of `ringside models`, in place of a study.", metavar="MODEL")
    ] = None,
    batch_size: Annotated[
        int | None, option("Samples of a step, on all devices together.", metavar="N")
    ] = None,
    image: Annotated[
        str | None, option("Images of the model (default: the largest of `models`).", metavar="HxWxC")
    ] = None,
    tokens: Annotated[
        str | None,
        option("Tokens of the model (default: the longest of `models`).", metavar="LENGTH:VOCABULARY"),
    ] = None,
    classes: Annotated[int | None, option("Classes of images and of texts.", metavar="N")] = None,
    topology: Annotated[
        str | None, option("Devices and links: a file of config/topologies/ (default p100).")
    ] = None,
    devices: Annotated[int | None, option("Number of devices.", metavar="N")] = None,
    node: Annotated[int | None, option("Devices of a node.", metavar="N")] = None,
    links: Annotated[
        str | None,
        option(
            "Gbit/s each way of a device's links in its node, and of all links of a node: 900,100.",
            metavar="G[,G]",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        option("Precision of outputs, their gradients and products: fp32 (default) or amp (bfloat16)."),
    ] = None,
    optimizer_numbers: Annotated[
        int | None, option("Numbers kept for each parameter (default 4, as with Adam).")
    ] = None,
    gradients: Annotated[
        str | None,
        option("How gradients are summed: fastest (the fastest all-reduce, default), ring, or messages."),
    ] = None,
    buckets: Annotated[
        str | None,
        option("MiB of the first and of other buckets of gradients (default 1,25).", metavar="MIB[,MIB]"),
    ] = None,
    proposals: Annotated[
        int | None, option("Proposals of each restart (default 20000).", metavar="N")
    ] = None,
    restarts: Annotated[
        int | None, option("Restarts of each search, with seeds of their own (default 8).", metavar="N")
    ] = None,
    starts: Annotated[
        list[str] | None,
        option("Where searches start: data, expert, random (default: these), stages, units."),
    ] = None,
    seed: Annotated[int | None, option("Seed of random numbers (default 1).", metavar="N")] = None,
    measure: Annotated[
        bool, option("Time the model's parts on this machine's device instead of using data sheets.")
    ] = False,
    space: Annotated[
        str | None,
        option("Space to search: soap (each layer by itself), mesh, or both (default for small models)."),
    ] = None,
    out: Stem = None,
    chakra: Annotated[
        Path | None, option("Also write a step as Chakra execution traces, for ASTRA-sim.", metavar="FOLDER")
    ] = None,
    strategy: Annotated[
        str | None,
        option("The strategy of these traces, as the table names it (default: fastest).", metavar="NAME"),
    ] = None,
) -> None:
    """Search by simulation for the fastest parallelization strategies of a study at its site, or of a model.

    Example:
    ./ringside strategies my-study --site my-cluster
    ./ringside strategies --model alexnet --batch-size 256 --devices 16
    ./ringside strategies --model gpt-2 --batch-size 64 --topology h100 --devices 8 --space mesh
    """
    typed = {
        name: value for name, value in locals().items() if value is not False and value not in (None, [])
    }
    for name in ("ctx", "study", "site", "dry_run", "profile"):
        typed.pop(name, None)
    if model is None:
        if typed:
            flag, hint = f"--{next(iter(typed)).replace('_', '-')}", "name one: --model MODEL"
            raise InputError("missing-argument", "is about a model", file=flag, hint=hint)
        run_snakemake("strategies", study, site, profile=profile, rest=ctx.obj, dry_run=dry_run)
    if study or batch_size is None:
        problem = "is for a model, not for a study" if study else "needs --batch-size"
        raise InputError(
            "conflicting-keys" if study else "missing-argument", problem, file="--model", got=model
        )
    if strategy and not chakra:
        raise InputError("missing-argument", "needs --chakra FOLDER", file="--strategy", got=strategy)
    from strategies.find import search
    from strategies.question import build_question

    for name in ("out", "chakra", "strategy"):
        typed.pop(name, None)
    search(build_question(**typed), out, chakra, strategy)


def pack_images(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder with a subfolder of pictures for each class.")
    ],
    name: Annotated[str, typer.Option(help="Name of the data set.")],
    side: Annotated[int, typer.Option(metavar="N", help="Height and width in pixels.")] = 32,
    validation_share: Annotated[float, typer.Option(help="Share of the pictures for validation.")] = 0.2,
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the archive.")] = Path(),
) -> None:
    """Pack a folder of pictures as a data set of your own, and print its entry for config/datasets.yaml.

    Example:
    ./ringside pack-images pictures --name leaves --side 32
    """
    from datasets.pack import pack_dataset

    pack_dataset("images", folder, name, side, validation_share, output)


def pack_text(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A text in UTF-8.")],
    name: Annotated[str, typer.Option(help="Name of the data set.")],
    length: Annotated[int, typer.Option(metavar="N", help="Tokens of a sequence.")] = 64,
    validation_share: Annotated[float, typer.Option(help="Share of the lines for validation.")] = 0.1,
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the archive.")] = Path(),
) -> None:
    """Pack the lines of a text as a data set of your own, and print its entry for config/datasets.yaml.

    Example:
    ./ringside pack-text poems.txt --name poems --length 64
    """
    from datasets.pack import pack_dataset

    pack_dataset("text", file, name, length, validation_share, output)


def declare(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder with the files, which stay there.")
    ],
    name: Annotated[str, typer.Option(help="Name of the data set.")],
    form: Annotated[
        str,
        typer.Option("--format", metavar="FORMAT", help="image-folder, webdataset, token-files or parquet."),
    ] = "image-folder",
    size: Annotated[
        int, typer.Option(metavar="N", help="Height and width in pixels, or tokens of a sequence.")
    ] = 224,
    channels: Annotated[int, typer.Option(metavar="N", help="3, or 1 for grey pictures.")] = 3,
    vocabulary: Annotated[
        int, typer.Option(metavar="N", help="Number of different tokens; 0: the largest token plus 1.")
    ] = 0,
    train: Annotated[
        str, typer.Option(metavar="PATTERN", help="Files, or folders of files, for training.")
    ] = "train*",
    validation: Annotated[
        str, typer.Option(metavar="PATTERN", help="Files, or folders of files, for validation.")
    ] = "val*",
) -> None:
    """Print the entry of a data set in a folder, for config/datasets.yaml.

    Example:
    ./ringside declare /data/imagenet --name imagenet --size 224
    """
    from datasets.declare import declare_folder

    declare_folder(
        form, folder, name, size, channels=channels, vocabulary=vocabulary, train=train, validation=validation
    )
