"""Describe models, data sets, frameworks and environments for the reference pages."""

import re
from collections.abc import Iterator
from typing import Any

from common.files import load_yaml
from declared import datasets, environments
from declared.datasets import ARCHIVED, DATASETS, SYNTHETIC_FORMS, SYNTHETIC_SAMPLES, class_count, kind
from declared.frameworks import Framework, framework_names, load_framework
from models import listing
from models.collectives import titles
from models.graph import N_CATEGORIES, N_COUNTS
from models.mesh import AXES
from models.named import MASKED_SHARE, SMALL, models
from reference.markdown import code, escaped

PINNED = re.compile(r"^([a-z0-9-]+)(?:\[[^]]*\])?==([^\s;]+)", re.MULTILINE)
SIZES = ["parameters", "MMACs", "gradients, MB", "activations, MB"]
MESSAGES = {
    "ends": "one message with all gradients, after the backward pass",
    "buckets": "buckets of tensors, during the backward pass",
    "fusion": "fused messages of the gradients that are ready",
    "units": "parameters of units of layers are gathered before use, their gradients reduce-scattered",
}


def models_and_data() -> dict[str, Any]:
    """Return the values of the template of the page of models and data sets."""
    described = models()
    sized, refused = [], []
    for name in sorted(described):
        for samples in listing.inputs_of(name):
            try:
                _, sample, classes, stem, *sizes = listing.format_row(name, samples)
                sized.append([code(name), sample, classes, stem, *sizes])
            except ValueError as error:
                refused.append(escaped(str(error).removeprefix("model ")))
    return {
        "models": [
            [code(name), model.title, model.sample_kind, model.source]
            for name, model in sorted(described.items())
        ],
        "sizes": SIZES,
        "sized": sized,
        "refused": refused,
        "small": SMALL,
        "masked_percent": round(100 * MASKED_SHARE),
        "images": _datasets(tokens=False),
        "texts": _datasets(tokens=True),
        "fresh_names": SYNTHETIC_FORMS,
        "fresh_samples": SYNTHETIC_SAMPLES,
        "n_counts": N_COUNTS,
        "n_categories": N_CATEGORIES,
        "archives": _archives(),
        "licences": [
            [code(name), escaped(entry["licence"]), escaped(entry["citation"])]
            for name, entry in _entries().items()
            if "files" in entry or entry["format"] == "scikit-learn"
        ],
    }


def _entries() -> dict[str, dict[str, Any]]:
    """Return the shipped data sets."""
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


def frameworks() -> dict[str, Any]:
    """Return the values of the template of the page of frameworks."""
    described = [load_framework(name) for name in framework_names()]
    rows = [
        [
            code(framework.name),
            framework.title,
            f"[`{framework.environment}`](#environments)",
            "itself" if framework.baseline == framework.name else code(framework.baseline),
            _ranks(framework),
            {"ranks": "all ranks", "master": "its master"}[framework.timing_scope],
        ]
        for framework in described
    ]
    return {
        "frameworks": described,
        "rows": rows,
        "environments": _environments(described),
        "axes": AXES,
        "messages": [_messages(framework) for framework in described if framework.distributed],
    }


def _messages(framework: Framework) -> list[str]:
    """Return how a framework groups gradients into messages, and the collectives of its library."""
    communication = framework.communication
    limits = communication.limits_mib if communication else None
    return [
        code(framework.name),
        MESSAGES[communication.messages] if communication else "one message, after the backward pass",
        " and ".join(f"{limit:g} MiB" for limit in limits or ()),
        titles(framework.collectives) or "nothing",
    ]


def _ranks(framework: Framework) -> str:
    if framework.distributed:
        return "`ranks_per_node` of the site" + (", started by MPI" if framework.mpi else "")
    return "one, with a replica on every device" if framework.mirrored else "one"


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
