"""Pages of what trains: models, data sets, frameworks and their environments."""

import re
from collections.abc import Iterator
from typing import Any

from common.files import load_yaml
from declared import datasets, environments
from declared.datasets import ARCHIVED, DATASETS, FRESH_NAMES, FRESH_SAMPLES, class_count, kind
from declared.frameworks import Framework, framework_names, load_framework
from models import listing
from models.collectives import titles
from models.mesh import AXES
from models.named import IMAGES, MASKED_SHARE, SMALL, TEXTS, TOKENS, models
from reference.markdown import code, codes, escaped, table

PINNED = re.compile(r"^([a-z0-9-]+)(?:\[[^]]*\])?==([^\s;]+)", re.MULTILINE)
SIZES = ("parameters", "MMACs", "gradients, MB", "activations, MB")
MESSAGES = {
    "ends": "one message with all gradients, after the backward pass",
    "buckets": "buckets of tensors, during the backward pass",
    "fusion": "fused messages of the gradients that are ready",
    "units": "parameters of units of layers gathered before use, their gradients reduced to shares",
}


def models_page() -> str:
    """Return the page of models and data sets."""
    names = sorted(models())
    sized, refused = [], []
    for name in names:
        for samples in listing.inputs_of(name):
            try:
                _, sample, classes, stem, *sizes = listing.format_row(name, samples)
                sized.append([code(name), sample, classes, stem, *sizes])
            except ValueError as error:
                refused.append(escaped(str(error).removeprefix("model ")))
    return "\n\n".join(
        [
            "# Models and data sets",
            "## Models",
            "Each model is described once, as a graph of operators (`workflow/scripts/models/families/`). "
            "PyTorch's and Keras' models are built from it, with the same initial weights.",
            table(
                ["model", "what it is", "takes", "source"],
                [
                    [code(name), models()[name].title, models()[name].sample_kind, models()[name].source]
                    for name in names
                ],
            ),
            f"A model takes `{IMAGES}` of a class, `{TEXTS}` (sequences of tokens) of a class, or sequences "
            f"of `{TOKENS}` whose labels are the next ones. It is refused for data sets of another kind. "
            f"BERT takes `{TOKENS}`, masks {100 * MASKED_SHARE:.0f} % of them, and predicts those in place "
            "of the next ones.",
            "The size of a model depends on the samples and the classes of the data set. `./ringside "
            "models` prints this table; `./ringside models resnet-50 --image 96x96x3 --classes 100` or "
            "`./ringside models gpt-2 --tokens 128:5000` prints it for yours.",
            table(["model", "sample", "classes", "stem", *SIZES], sized, numbers=("classes", *SIZES)),
            "\n".join(
                [
                    "* sample: an image, height x width x channels, or a sequence of tokens, "
                    "length:vocabulary.",
                    "* MMACs: millions of multiply-accumulate operations of the forward pass of one "
                    "sample, in convolutions, dense operators, attention (as if it were not causal) and "
                    "LSTMs.",
                    "* gradients: payload of a gradient all-reduce, float32.",
                    "* activations: size of the outputs of all operators for one sample, which training "
                    "keeps, float32.",
                    f"* stem: some models have a stem for small images (up to {SMALL} pixels) and the "
                    "original one for larger images.",
                    *(f"* Not in the table: {reason}." for reason in refused),
                ]
            ),
            "## Data sets",
            "`./ringside datasets` downloads the archives that a study needs, verifies them and prepares "
            "each once for all studies. For data of your own, see [Your own data](../how-to/own-data.md) "
            "and [config/datasets.yaml](configuration.md#configdatasetsyaml).",
            "Of images:",
            table(
                ["data set", "title", "training", "validation", "shape", "classes", "format"],
                _datasets(tokens=False),
                numbers={"training", "validation", "classes"},
            ),
            "Of texts, where a sample is a sequence of tokens and its labels are the tokens that follow:",
            table(
                ["data set", "title", "training", "validation", "length", "vocabulary", "format"],
                _datasets(tokens=True),
                numbers={"training", "validation", "length", "vocabulary"},
            ),
            "Some names need no entry. Their batches are drawn during training; without `<samples>`, an "
            f"epoch has {FRESH_SAMPLES:,} samples.",
            table(
                ["name", "what is drawn"],
                [
                    [code(FRESH_NAMES["images"]), "images of noise, with random labels: nothing to learn"],
                    [
                        code(FRESH_NAMES["tokens"]),
                        "sequences whose labels are the next tokens: after each token comes the next "
                        "number, but with probability 1/4 any token",
                    ],
                    [
                        code(FRESH_NAMES["text"]),
                        "texts of classes: a quarter of a text's tokens are of its class alone, the others "
                        "any",
                    ],
                ],
            ),
            "### Tokens",
            "\n".join(
                [
                    "* `text8`: characters. A token is a letter, 1 to 26, or the blank, 0. The first 90 "
                    "million characters are to train on, the next 5 million to validate with; the last 5 "
                    "million are not read.",
                    "* `wikitext-2`: words, as they stand between blanks, and `<eos>` at the end of each "
                    "line. The vocabulary is the words of the training part, the most frequent first. Rare "
                    "words are `<unk>` in what is published; other words of the validation part become "
                    "`<unk>`, too.",
                    "* Sequences follow each other in the text without overlap; the label of a token is "
                    "the one after it, so that the last label of a sequence is the first token of the next.",
                    "* `perplexity` is exp(validation loss). The loss is the mean cross-entropy over "
                    "sequences and positions; accuracy is the share of positions whose next token was the "
                    "most likely one, in validation only: to search the vocabulary for it in every training "
                    "step would take time that training does not need.",
                ]
            ),
            "### Archives",
            "A download is opened only if its checksum is right. The SHA-256 of the first download is "
            "recorded in `table.lock.yaml`, beside the table of data sets "
            "(`workflow/scripts/datasets/table.yaml`). Data sets that are not listed here need no download.",
            table(["data set", "archive", "bytes", "checksum"], _archives(), numbers={"bytes"}),
            "### Licences and citations",
            table(
                ["data set", "licence", "citation"],
                [
                    [code(name), escaped(entry["licence"]), escaped(entry["citation"])]
                    for name, entry in _entries().items()
                    if "files" in entry or entry["format"] == "scikit-learn"
                ],
            ),
        ]
    )


def _entries() -> dict[str, dict[str, Any]]:
    """Return Ringside's own data sets, without a user's."""
    return load_yaml(DATASETS)


def _datasets(tokens: bool) -> Iterator[list[str]]:
    for name, entry in _entries().items():
        if (kind(entry) == datasets.TOKENS) != tokens:
            continue
        yield [
            code(name),
            escaped(entry["title"]),
            f"{entry['train_samples']:,}",
            f"{entry['validation_samples']:,}",
            "x".join(map(str, entry["shape"])),
            str(class_count(entry)),
            code(entry["format"])
            + (
                ", made up" if entry.get("made_up") else "" if entry["format"] in ARCHIVED else ", no archive"
            ),
        ]


def _archives() -> Iterator[list[str]]:
    for name, entry in _entries().items():
        for file in entry.get("files", []):
            checksum = f"MD5 `{file['md5']}`" if "md5" in file else f"SHA-256 `{file['sha256']}`"
            yield [code(name), f"[`{file['name']}`]({file['url']})", f"{file['bytes']:,}", checksum]


def frameworks_page() -> str:
    """Return the page of frameworks."""
    frameworks = [load_framework(name) for name in framework_names()]
    return "\n\n".join(
        [
            "# Frameworks",
            "The levels of the factor `framework`. To add one, see [Your own "
            "framework](../how-to/own-framework.md).",
            table(
                [
                    "framework",
                    "what it is",
                    "environment",
                    "baseline of speed-ups",
                    "ranks on a node",
                    "epochs timed by",
                ],
                [
                    [
                        code(framework.name),
                        framework.title,
                        f"[`{framework.environment}`](#environments)",
                        "itself" if framework.baseline == framework.name else code(framework.baseline),
                        _ranks(framework),
                        {"ranks": "all ranks", "master": "its master"}[framework.timing_scope],
                    ]
                    for framework in frameworks
                ],
            ),
            "## Environments",
            "An environment with a lock (`containers/ENVIRONMENT/requirements.*.txt`, with hashes) is "
            "built from it, as a virtual environment or as an Apptainer image. `make lock` makes the locks "
            "again. The others come from the site.",
            table(
                [
                    "environment",
                    "built over",
                    "versions with device cpu",
                    "versions with device cuda",
                    "how a site gets it",
                ],
                _environments(frameworks),
            ),
            "## What they can do",
            "A cell is possible if it fits one line of its framework: every factor that the line names has "
            "one of the levels in it. Factors that no line names are not restricted.",
            "\n\n".join(_abilities(framework) for framework in frameworks),
            "## How they communicate gradients",
            "What the [predictions](tables.md#prediction) presume of the messages of one gradient "
            "all-reduce, and what can be benchmarked with the framework's own library. All-reduce is "
            "benchmarked in every study with several nodes, the others in those with a framework that "
            "sends them.",
            table(
                ["framework", "messages", "size of the first and of further messages", "can be benchmarked"],
                [
                    [
                        code(framework.name),
                        MESSAGES[framework.communication.messages]
                        if framework.communication
                        else "one message, after the backward pass",
                        " and ".join(f"{limit:g} MiB" for limit in framework.communication.limits_mib)
                        if framework.communication and framework.communication.limits_mib
                        else "",
                        titles(framework.collectives) or "nothing",
                    ]
                    for framework in frameworks
                    if framework.distributed
                ],
            ),
        ]
    )


def _ranks(framework: Framework) -> str:
    if framework.distributed:
        return "`ranks_per_node` of the site" + (", started by MPI" if framework.mpi else "")
    return "one, with a replica on every device" if framework.mirrored else "one"


def _abilities(framework: Framework) -> str:
    lines = [f"### {framework.name}", ""]
    for entry in framework.capabilities:
        lines.append("* " + "; ".join(f"`{name}`: {codes(levels)}" for name, levels in entry.items()))
    for axes in framework.meshes:
        lines.append(
            "* where it can do `parallelism`: `data`, also [meshes](../how-to/strategies.md) of "
            f"{codes(a for a in AXES if a in axes)}"
        )
    if len(framework.devices) == 1:
        lines += ["", f"It trains on device {codes(framework.devices)} alone."]
    if framework.without:
        lines += [
            "",
            *(
                f"On device `{device}` it cannot compute {codes(kinds)}."
                for device, kinds in framework.without.items()
            ),
        ]
    if framework.why:
        lines += ["", "Why:", "", *(f"* `{name}`: {escaped(why)}" for name, why in framework.why.items())]
    if framework.notes:
        lines += ["", "Captions and reports say:", "", *(f"* {escaped(note)}" for note in framework.notes)]
    return "\n".join(lines)


def _environments(frameworks: list[Framework]) -> Iterator[list[str]]:
    used = {framework.environment for framework in frameworks}
    for name in environments.names():
        variants = [environments.read(name, variant) for variant in ("cpu", "cuda")]
        first = variants[0]
        origin = {
            "locks": "built by the workflow",
            "spack": "installed, or as an image of its own, or built by Spack (not yet built by us)",
            "site": "installed, or as an image of its own",
        }[first.origin]
        origin += "" if name in used else "; no framework uses it yet"
        yield [
            code(name),
            code(first.parent.name) if first.parent else "",
            *(_versions(environment) for environment in variants),
            origin,
        ]


def _versions(environment: environments.Environment) -> str:
    """Return what an environment pins by hand: packages, wheels, sources and Spack specs."""
    requirements = environment.folder / f"requirements.{environment.variant}.in"
    versions = (
        dict(PINNED.findall(requirements.read_text(encoding="utf-8"))) if requirements.is_file() else {}
    )
    versions |= {wheel.name: wheel.version for wheel in environment.wheels}
    versions |= {source.name: source.version for source in environment.sources}
    packages = [f"{package} {version}" for package, version in versions.items()]
    return ", ".join(
        [
            *packages,
            *(
                code(spec)
                for spec in (
                    (environment.spack.spec, *environment.spack.further) if environment.spack else ()
                )
            ),
        ]
    )
