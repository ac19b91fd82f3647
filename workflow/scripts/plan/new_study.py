"""Write a new study: a commented file in config/studies/ that can be planned at once (`ringside new`)."""

import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError
from common.files import CHECKOUT, create_text, display_path
from common.templates import render as render_template
from common.text import join_words
from declared.configuration import check_name, unknown_name_error
from declared.datasets import load_dataset
from declared.frameworks import framework_names, load_framework
from declared.models import trainable_model_names
from declared.site import Site
from declared.study import Study, load_study
from plan.campaign import plan_campaign

FOLDER = CHECKOUT / "config" / "studies"
BATCH_SIZES = ([16, 64], [16], [8], [4], [1])  # the first that fits the data set is used
MAX_SEED = 10**8
UNFIT_BATCHES = ("drops-samples", "too-few-samples")  # codes of errors that a smaller batch can avoid


@dataclass(frozen=True)
class Draft:
    """What a new study compares: the answers to the questions of `ringside new`."""

    frameworks: tuple[str, ...] = ("pytorch-single", "pytorch-ddp")
    model: str = "small-cnn"
    dataset: str = "digits"
    nodes: tuple[int, ...] = (1, 2)
    replicates: int = 3


def check_framework(name: str) -> str:
    """Return the name of a framework, or raise InputError if there is none with this name."""
    return _check("--framework", name, framework_names())


def check_model(name: str) -> str:
    """Return the name of a model, or raise InputError if there is none with this name."""
    return _check("--model", name, trainable_model_names())


def check_dataset(name: str) -> str:
    """Return the name of a data set, or raise InputError if there is none with this name."""
    load_dataset(name, "--data")
    return name


def check_new(name: str) -> Path:
    """Return the file of a new study, or raise InputError if it exists or no study can have this name."""
    check_name("study", name)
    if (file := FOLDER / f"{name}.yaml").exists():
        hint = "name another study, or edit this file"
        raise InputError(
            "already-there", "exists already and is not changed", file=display_path(file), hint=hint
        )
    return file


def write_study(name: str, draft: Draft, site: Site) -> Study:
    """Plan a new study at a site, write config/studies/NAME.yaml, and return the study.

    Raises:
        InputError: If the study exists already or cannot be planned; then nothing is written.
    """
    file = check_new(name)
    text = _fitting_text(name, draft, site)
    try:
        create_text(file, text)
    except FileExistsError:
        check_new(name)
    return load_study(name)


def _fitting_text(name: str, draft: Draft, site: Site) -> str:
    """Return the text with the first of BATCH_SIZES that the data set allows."""
    errors: list[InputError] = []
    for sizes in BATCH_SIZES:
        text = render(name, draft, sizes)
        try:
            with tempfile.TemporaryDirectory(prefix="ringside-new-") as folder:
                Path(folder, f"{name}.yaml").write_text(text, encoding="utf-8")
                plan_campaign(load_study(name, Path(folder)), site)
            return text
        except InputError as error:
            errors.append(error)
            if error.code not in UNFIT_BATCHES:
                break
    first = errors[-1] if errors[-1].code not in UNFIT_BATCHES else errors[0]
    problem = f"cannot be planned: {first.problem}"
    raise InputError(first.code, problem, file=name, got=first.got, hint=first.hint)


def render(name: str, draft: Draft, batch_sizes: Sequence[int]) -> str:
    """Return the text of a study."""
    frameworks = [check_framework(framework) for framework in draft.frameworks]
    titles = " and ".join(load_framework(framework).title for framework in frameworks)
    check_model(draft.model)
    check_dataset(draft.dataset)
    return render_template(
        Path(__file__).with_name("new_study.yaml.jinja"),
        name=name,
        draft=draft,
        titles=titles,
        node_counts=join_words(map(str, dict.fromkeys(draft.nodes))),
        seed=secrets.randbelow(MAX_SEED),
        frameworks=frameworks,
        single=[framework for framework in frameworks if not load_framework(framework).distributed],
        more_nodes=[count for count in draft.nodes if count > 1],
        batch_sizes=batch_sizes,
        levels=_levels,
    )


def _levels(values: Sequence[object]) -> str:
    words = [str(value) for value in dict.fromkeys(values)]
    return words[0] if len(words) == 1 else f"[{', '.join(words)}]"


def _check(option: str, name: str, choices: Sequence[str]) -> str:
    if name not in choices:
        raise unknown_name_error(name, option, "", choices)
    return name
