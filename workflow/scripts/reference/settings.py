"""Pages of what people write: every key of the configuration, every factor."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from common.schemas import schema
from common.written import json_schema
from declared.commands import CommandKeys
from declared.configuration import Configuration
from declared.datasets import DatasetKeys
from declared.factors import custom_rules
from declared.frameworks import Framework, framework_names, load_framework
from declared.imported import ImportKeys
from declared.mesh import NOT_MESHES, PLAIN, STRATEGIES
from declared.own_models import OwnModelKeys
from declared.references import Reference
from declared.site import SiteKeys
from declared.study import CombinedStudyKeys, ImportedStudyKeys, StudyKeys
from models.mesh import AXES
from reference.markdown import block, code, codes, escaped, read, table

HEADER = ["key", "value", "default", "meaning"]
LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}
FORMS = {
    "combined_study": CombinedStudyKeys,
    "command": CommandKeys,
    "config": Configuration,
    "dataset": DatasetKeys,
    "import": ImportKeys,
    "own_model": OwnModelKeys,
    "imported_study": ImportedStudyKeys,
    "reference": Reference,
    "site": SiteKeys,
    "study": StudyKeys,
}
TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "`true`, `false`",
    "array": "list",
    "object": "keys",
    "null": "empty",
}
LISTED = {  # factors whose levels have a page, or a form
    "shares": "`equal`, `measured`, or one number for each rank, as `0.8/0.2`",
    "batch_size": "whole number, 1 to 1,048,576, or [`largest`](../how-to/largest-batch.md)",
    "framework": "[frameworks](frameworks.md)",
    "model": "[models](models.md#models)",
    "dataset": "[data sets](models.md#data-sets)",
}
OWN_DATASET = {
    "my-images": {
        "title": "Garments, 28 x 28 pixels, grey",
        "format": "idx",
        "files": [
            {"name": name, "bytes": size, "unpacked_bytes": unpacked, "sha256": digit * 64}
            for name, size, unpacked, digit in (
                ("train-images-idx3-ubyte.gz", 9912422, 47040016, "1"),
                ("train-labels-idx1-ubyte.gz", 28881, 60008, "2"),
                ("t10k-images-idx3-ubyte.gz", 1648877, 7840016, "3"),
                ("t10k-labels-idx1-ubyte.gz", 4542, 10008, "4"),
            )
        ],
        "train_samples": 60000,
        "validation_samples": 10000,
        "shape": [28, 28, 1],
        "classes": [f"class {number}" for number in range(10)],
        "licence": "ours",
        "citation": "A. Lovelace, Garments, 2026",
    }
}


def configuration() -> str:
    """Return the page of all keys."""
    parts = [
        "# Configuration",
        "Ringside reads YAML files in `config/`. It stops with one line, before anything runs, at a key "
        "that it does not know or a value that it cannot use, and names the file, the key and what it "
        "expected.",
        table(
            ["file", "says"],
            [
                [
                    "[`config/config.yaml`](#configconfigyaml)",
                    "which study runs at which site, and from which records",
                ],
                [
                    "[`config/studies/NAME.yaml`](#configstudiesnameyaml)",
                    "what is compared: factors, levels, replicates, figures",
                ],
                [
                    "[`config/sites/NAME.yaml`](#configsitesnameyaml)",
                    "where it runs: nodes, devices, network, cache, scheduler",
                ],
                ["[`config/datasets.yaml`](#configdatasetsyaml)", "data sets of your own, if any"],
                [
                    "[`config/commands/NAME.yaml`](#configcommandsnameyaml)",
                    "a training command of your own, which a study names as a framework",
                ],
                [
                    "[`config/models/NAME.yaml`](#configmodelsnameyaml)",
                    "a PyTorch module of your own, which a study names as a model",
                ],
                [
                    "[`config/references/NAME.yaml`](#configreferencesnameyaml)",
                    "published measurements to compare with",
                ],
                ["[`import.yaml`](#importyaml)", "where measurements come from that were made elsewhere"],
            ],
        ),
        "`a.b` is the key `b` below the key `a`, `a[].b` the key `b` of every entry of the list `a`, and "
        "`a.NAME.b` the key `b` below a name of your choice. A key without a default may be left out, "
        "unless it is **required**.",
        "## config/config.yaml",
        block(read("config/config.yaml"), "yaml"),
        "Every key can be given on the command line, where it overrides the file: `snakemake figures "
        "--config study=NAME site=NAME`. The Snakemake profiles `slurm`, `oar`, `pbs` and `flux` read "
        "`config/slurm.yaml` and so on, the file of their name, on top of it.",
        table(HEADER, rows("config")),
        "## config/studies/NAME.yaml",
        "A study names no account, no partition and no path. The study `quickstart`:",
        block(read("config/studies/quickstart.yaml"), "yaml"),
        "[Factors](factors.md) lists the keys below `factors`, and [Figures](figures.md) the keys of each "
        "kind of figure.",
        table(HEADER, rows("study")),
        "A study of measurements that were made elsewhere has the key `imported` and no factors, replicates "
        "and seed: its cells are those of the folder's `runs.csv`, and its frameworks, models and data sets "
        "may have any name. It needs no site, and `records` of the configuration does not matter. Its keys "
        "are:",
        table(HEADER, rows("imported_study")),
        "A study that shows [several campaigns](../how-to/compare.md#several-campaigns-in-one-figure) "
        "together has the same keys, with `campaigns` in place of `imported`:",
        table(HEADER, (row for row in rows("combined_study") if row[0] == "`campaigns`")),
        "## config/sites/NAME.yaml",
        "A site names no model and no data set. `./ringside site NAME` writes one for the machine or "
        "cluster on which it is called. Or start from a file in `config/sites/`: `local.yaml` for one "
        "machine, `slurm-example.yaml`, which comments every key, for a cluster with Slurm; `pcad.yaml`, "
        "`plafrim.yaml` and `grid5000.yaml` are templates of real clusters. `./ringside doctor` checks a "
        "site. The template `pcad`:",
        block(read("config/sites/pcad.yaml"), "yaml"),
        table(HEADER, rows("site")),
        "## config/datasets.yaml",
        "Data sets of your own, `NAME: {...}` each, in the format of CIFAR-10 (binary version), MNIST "
        "(IDX) or Tiny-ImageNet. The data sets that Ringside has are [listed here](models.md#data-sets). "
        "An entry in the format of MNIST, with archives that lie in `datasets.folder` of the site (bytes "
        "and checksums are those of your files):",
        block(yaml.safe_dump(OWN_DATASET, sort_keys=False, default_flow_style=None, width=120), "yaml"),
        "The first download of an archive records its SHA-256 in `config/datasets.lock.yaml`: commit that "
        "file.",
        table(HEADER, rows("dataset")),
        "## config/commands/NAME.yaml",
        "A [training command of your own](../how-to/own-command.md). The command `titan-example`:",
        block(read("config/commands/titan-example.yaml"), "yaml"),
        table(HEADER, rows("command")),
        "## config/models/NAME.yaml",
        "A [PyTorch module of your own](../how-to/own-module.md). The model `mixer-example`:",
        block(read("config/models/mixer-example.yaml"), "yaml"),
        table(HEADER, rows("own_model")),
        "## config/references/NAME.yaml",
        "[Published measurements](../how-to/compare.md#compare-with-published-numbers), one row for each "
        "cell:",
        table(HEADER, rows("reference")),
        "## import.yaml",
        "Ringside's command `import` writes this file beside `runs.csv` and `epochs.csv`, in the folder that "
        "the key `imported` of a study names. Report, paper and archive repeat what it says.",
        table(HEADER, rows("import")),
    ]
    return "\n\n".join(parts)


def rows(name: str) -> Iterator[list[str]]:
    """Yield a row for every key of a file, each followed by the keys below it, with dotted names."""
    yield from _rows(json_schema(FORMS[name]) if name in FORMS else schema(name), "")


def _rows(described: Mapping[str, Any], above: str) -> Iterator[list[str]]:
    for key, rules in described.get("properties", {}).items():
        required = "**required**" if key in described.get("required", []) else ""
        default = code(rules["default"]) if "default" in rules else required
        yield [f"`{above}{key}`", value(rules), default, escaped(rules.get("description", ""))]
        yield from _rows(rules, f"{above}{key}.")
        yield from _rows(rules.get("items", {}), f"{above}{key}[].")
        if isinstance(entry := rules.get("additionalProperties"), dict):
            yield from _rows(entry, f"{above}{key}.NAME.")


def value(rules: Mapping[str, Any]) -> str:
    """Return in a few words what a key accepts."""
    if "enum" in rules:
        return codes(level for level in rules["enum"] if level is not None)
    if "const" in rules:
        return code(rules["const"])
    if "anyOf" in rules:
        return "; or ".join(value(alternative) for alternative in rules["anyOf"])
    kind = rules.get("type", "")
    type_name = " or ".join(
        TYPES.get(alternative, alternative)
        for alternative in ([kind] if isinstance(kind, str) else kind)
        if alternative != "null"
    )
    if "minimum" in rules and "maximum" in rules:
        return f"{type_name}, {_limit(rules['minimum'])} to {_limit(rules['maximum'])}"
    return ", ".join(
        [type_name, *(f"{word} {_limit(rules[key])}" for key, word in LIMITS.items() if key in rules)]
    )


def _limit(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def factors() -> str:
    """Return the page of all factors."""
    described = schema("factors")["properties"]
    frameworks = [load_framework(name) for name in framework_names()]
    return "\n\n".join(
        [
            "# Factors",
            "A study varies a factor by a list of levels and fixes it by a single value, below its key "
            "`factors` ([configuration](configuration.md#configstudiesnameyaml)). A study gives the six "
            "factors that are **required**; each of the others has its default unless the study names it.",
            table(
                ["factor", "levels, unit", "default", "meaning"],
                [
                    [
                        f"`{name}`",
                        "; ".join(
                            [LISTED.get(name, value(rules)), *([rules["unit"]] if "unit" in rules else [])]
                        ),
                        code(rules["default"]) if "default" in rules else "**required**",
                        escaped(rules["description"]),
                    ]
                    for name, rules in described.items()
                ],
            ),
            "Derived from the factors: replicas = nodes × devices (or ranks) per node; effective batch = "
            "local batch × replicas × `sync_every`.",
            "## Factors of your own",
            "Below `factors.custom` a study declares factors of its own, each with a list of levels "
            f"({escaped(str(custom_rules()['description']))}). They mean something to "
            "[commands of your own](../how-to/own-command.md), which take them as placeholders, and to "
            "measurements made elsewhere. In tables, in `exclude` and in figures such a "
            "factor has the prefix `custom_`: `factors: {custom: {tp: [1, 2, 4]}}` gives the column "
            "`custom_tp`, and titles say `tp`. A cell of another framework has one level of it.",
            "## What each framework can do",
            "Levels that some framework cannot do, by factor. A study with a cell that its framework "
            "cannot do stops before anything runs, with the `exclude` line to add. Some restrictions hold "
            "only together, such as `training_loop: fit` with `sync_every: 1`: "
            "[Frameworks](frameworks.md#what-they-can-do) lists all of them.",
            table(["factor", "level", "frameworks that can do it"], _possible(frameworks)),
            "## What depends on the site",
            "A run that the site cannot do is listed as `missing`, with the reason.",
            table(
                ["level", "needs"],
                [
                    [
                        "`device: cuda`, `precision: tf32`, `autotune: none`",
                        "a site with `device: cuda`",
                    ],
                    [
                        "`device: hybrid`",
                        "a site with `device: cuda`, and a framework whose ranks may be heterogeneous: "
                        "`pytorch-hybrid`",
                    ],
                    ["`bandwidth` other than 0", "the virtual cluster (`./ringside cluster up`)"],
                    ["`compiler: torch-compile`", "`deployment: venv` and `g++`"],
                    [
                        "`framework`",
                        "a framework that the site has; LBANN and Tarantella: `installed` or "
                        "`images.brought`",
                    ],
                ],
            ),
        ]
    )


def _possible(frameworks: list[Framework]) -> Iterator[list[str]]:
    """Yield a row for each level of a factor that not all frameworks support."""
    restricted = {name for framework in frameworks for entry in framework.capabilities for name in entry}
    for name, rules in schema("factors")["properties"].items():
        if name == "model":
            able = [framework.name for framework in frameworks if framework.own_modules]
            label = "a [PyTorch module of your own](../how-to/own-module.md)"
            yield ["`model`", label, _list_frameworks(able, [framework.name for framework in frameworks])]
        if name == "parallelism":
            yield from _dividing(frameworks)
        if name not in restricted or name == "parallelism":
            continue
        listed = sorted(
            {
                level
                for framework in frameworks
                for entry in framework.capabilities
                for level in entry.get(name, [])
            },
            key=str,
        )
        levels: dict[str, Any] = {code(level): level for level in rules.get("enum", [])}
        if "enum" not in rules:
            levels = {f"other than {codes(listed)}": object()}
        for label, level in levels.items():
            able = [
                framework.name
                for framework in frameworks
                if any(level in entry.get(name, [level]) for entry in framework.capabilities)
            ]
            if len(able) < len(frameworks):
                yield [
                    f"`{name}`",
                    label,
                    _list_frameworks(able, [framework.name for framework in frameworks]),
                ]


def _dividing(frameworks: list[Framework]) -> Iterator[list[str]]:
    """Yield a row for each mesh axis other than `data`, and for each other way to partition a model."""
    able = {
        framework.name: {
            *(axis for axes in framework.meshes for axis in axes),
            *(
                part
                for entry in framework.capabilities
                for level in entry.get("parallelism", [])
                for part in level.split("-")
            ),
        }
        for framework in frameworks
    }
    ways = {f"with the axis {code(axis)}": axis for axis in AXES if axis != PLAIN} | {
        code(way): way for way in (*NOT_MESHES, *STRATEGIES)
    }
    for label, way in ways.items():
        yield [
            "`parallelism`",
            label,
            _list_frameworks([name for name, can in able.items() if way in can], list(able)),
        ]


def _list_frameworks(able: list[str], every: list[str]) -> str:
    if not able:
        return "none"
    unable = [name for name in every if name not in able]
    return codes(able) if len(able) <= len(unable) else f"all but {codes(unable)}"
