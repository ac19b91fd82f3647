"""The verb that writes a new study, from options or from answers on a terminal."""

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from common.errors import InputError
from ringside.arguments import Site, complete
from ringside.models import option


def _frameworks() -> tuple[str, ...]:
    from declared.frameworks import framework_names

    return framework_names()


def _models() -> tuple[str, ...]:
    from declared.models import trainable_model_names

    return trainable_model_names()


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the study: a-z, 0-9 and -.")],
    framework: Annotated[
        list[str] | None,
        option(
            "Framework to compare; repeat it for more.", metavar="F", autocompletion=complete(_frameworks)
        ),
    ] = None,
    model: Annotated[
        str | None, option("Model to train.", metavar="M", autocompletion=complete(_models))
    ] = None,
    data: Annotated[str | None, option("Data set to train on.", metavar="D")] = None,
    nodes: Annotated[
        list[int] | None, option("Number of nodes; repeat it for more.", metavar="N", min=1)
    ] = None,
    replicates: Annotated[int | None, option("Runs of each cell.", metavar="R", min=1)] = None,
    site: Site = "",
) -> None:
    """Write a commented study, config/studies/NAME.yaml, plan it, and print its cost.

    On a terminal it asks for missing options; elsewhere it uses the defaults.

    Example:
    ./ringside new my-study --framework pytorch-ddp --framework horovod-pytorch --nodes 1 --nodes 2
    """
    from common.files import display_path
    from declared.configuration import load_config
    from declared.site import load_site
    from plan import cost, new_study
    from plan.campaign import load_merged_config
    from plan.new_study import Draft

    file = new_study.check_new(name)
    defaults = Draft()
    counts = _answer(nodes, "Numbers of nodes", defaults.nodes, _count, is_list=True)
    # The first framework is a single-device baseline, which needs cells of one node.
    frameworks = defaults.frameworks if 1 in counts else defaults.frameworks[1:]
    draft = Draft(
        frameworks=_answer(framework, "Frameworks", frameworks, new_study.check_framework, is_list=True),
        model=_answer(model, "Model", defaults.model, new_study.check_model),
        dataset=_answer(data, "Data set", defaults.dataset, new_study.check_dataset),
        nodes=counts,
        replicates=_answer(replicates, "Replicates of each cell", defaults.replicates, _count),
    )
    described_site = load_site(load_config(load_merged_config(site=site)).site)
    new_study.write_study(name, draft, described_site)
    print(f"{display_path(file)}: written; edit it as you like\n")
    cost.main(study=name, site=described_site.name)
    print(f"\nto run it: ./ringside run {name}{f' --site {site}' if site else ''}")


def _count(text: object) -> int:
    if not str(text).isdecimal() or int(str(text)) < 1:
        raise InputError("out-of-range", f"'{text}' is not a whole number of at least 1", got=text)
    return int(str(text))


def _answer(
    value: Any, question: str, default: Any, check: Callable[[Any], Any], is_list: bool = False
) -> Any:
    """Return the checked value of an option: as given, or as answered on a terminal, or the default."""
    if value is not None and value != []:
        return tuple(check(item) for item in value) if is_list else check(value)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return default

    def parse(text: str) -> Any:
        try:
            if is_list:
                return tuple(check(item) for item in text.replace(",", " ").split()) or default
            return check(text.strip())
        except InputError as error:
            raise typer.BadParameter(str(error)) from None

    shown_default = " ".join(map(str, default)) if is_list else str(default)
    return typer.prompt(question, default=shown_default, value_proc=parse)
