"""The command `ringside`: its verbs by group, and the function that runs a command line."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from common.errors import InputError, exit_status
from common.files import CHECKOUT
from environments.controller import COMPLETION_VARIABLE
from ringside import campaign, importing, models, new, sites, workflow
from ringside.commands import SnakemakeVerb, Verbs, register, split_rest, to_input_error

NAME = "ringside"
INTERRUPTED_STATUS = 130
STUDY, RESULTS, SITES, MODELS = "Run a study", "Look at results", "Sites and clusters", "Models and data"

app = typer.Typer(
    cls=Verbs,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="\b\nSTUDY and --site default to those of config/config.yaml. Arguments after -- go to Snakemake.",
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 110},
)
cluster = typer.Typer(cls=Verbs, rich_markup_mode=None)
register(app, STUDY, [new.new, importing.import_, campaign.plan])
register(app, STUDY, [workflow.run], SnakemakeVerb)
register(app, STUDY, [campaign.status, campaign.preview, campaign.repeat])
register(app, STUDY, [workflow.pilot, workflow.largest], SnakemakeVerb)
register(app, STUDY, [campaign.unlock])
register(app, RESULTS, [workflow.report, workflow.paper, workflow.archive], SnakemakeVerb)
register(app, RESULTS, [campaign.proposal, campaign.verify, campaign.compare])
register(app, RESULTS, [campaign.trace, campaign.read_trace])
register(app, SITES, [sites.site, sites.doctor, sites.nodecheck, sites.submit])
register(app, SITES, [workflow.images, workflow.datasets], SnakemakeVerb)
register(app, SITES, [sites.bundle, sites.unbundle])
register(cluster, SITES, [sites.up, sites.down])
app.add_typer(
    cluster, name="cluster", help="Start or stop a virtual cluster on this machine.", rich_help_panel=SITES
)
register(app, MODELS, [models.models, models.predict])
register(app, MODELS, [models.strategies], SnakemakeVerb)
register(app, MODELS, [models.pack_images, models.pack_text, models.declare])


@app.callback()
def prepare() -> None:
    """Compare ways of distributed deep-learning training, from install to paper figures."""
    if Path.cwd() != CHECKOUT.resolve() and not {"--help", "-h"} & set(sys.argv):
        problem = "is not the workflow's checkout"
        hint = f"call ringside in {CHECKOUT}, or clone it here"
        raise InputError("outside-of-checkout", problem, file=Path.cwd(), hint=hint)
    workflow.set_variables()


def run(arguments: Sequence[str]) -> int:
    """Run a command line, and return its exit status, which is 2 after an InputError."""
    status = 0

    def call() -> None:
        nonlocal status
        status = _call(arguments)

    return exit_status(call) or status


def _call(arguments: Sequence[str]) -> int:
    typed, rest = split_rest(arguments)
    if not typed and not rest:
        typed = ["--help"]
    command = typer.main.get_command(app)
    if COMPLETION_VARIABLE in os.environ:
        command.main([], prog_name=NAME)
    try:
        with command.make_context(NAME, typed, obj=rest) as ctx:
            command.invoke(ctx)
    except typer.Exit as ended:
        return ended.exit_code
    except typer.TyperException as error:
        raise to_input_error(error) from None
    except (typer.Abort, KeyboardInterrupt):
        print(file=sys.stderr)
        return INTERRUPTED_STATUS
    return 0
