"""Verbs that run Snakemake: each is a target of the workflow, at a site, with a profile."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from common.files import CHECKOUT
from ringside.arguments import PROFILES, KeepGoing, Site, Study, complete

Profile = Annotated[
    str,
    typer.Option(
        metavar="PROFILE",
        help="Where jobs run: local, slurm, oar, pbs, flux; default: this machine.",
        show_default=False,
        autocompletion=complete(lambda: PROFILES),
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would run, and run nothing.")]
Cores = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Cores to use; default: all.", show_default=False)
]
Records = Annotated[
    str,
    typer.Option(
        metavar="RECORDS",
        help=(
            "Train nothing: use only existing records (available), or the tables of a folder such as "
            "docs/campaigns/NAME."
        ),
        show_default=False,
    ),
]


def run(
    ctx: typer.Context,
    study: Study = "",
    site: Site = "",
    profile: Profile = "",
    dry_run: DryRun = False,
    cores: Cores = None,
    keep_going: KeepGoing = False,
    records: Records = "",
) -> None:
    """Run a study to its figures and tables: install, build, train what is missing, draw.

    Completed runs are kept: after an interruption, run the same command again.

    Example:
    ./ringside run my-study --site my-cluster --profile slurm
    ./ringside run my-study -n
    ./ringside run my-study -- --forcerun aggregate
    """
    options = [*([f"--cores={cores}"] if cores else []), *(["--keep-going"] if keep_going else [])]
    run_snakemake("figures", study, site, records, profile, options, ctx.obj, dry_run=dry_run)


def report(
    ctx: typer.Context, study: Study = "", site: Site = "", records: Records = "", dry_run: DryRun = False
) -> None:
    """Make one page with everything, results/STUDY/report.html, after running what is missing.

    Example:
    ./ringside report my-study
    """
    run_snakemake("report", study, site, records, dry_run=dry_run, rest=ctx.obj)


def paper(
    ctx: typer.Context, study: Study = "", site: Site = "", records: Records = "", dry_run: DryRun = False
) -> None:
    """Make the study's paper in LaTeX, and its PDF if TeX is installed: results/STUDY/paper.

    Example:
    ./ringside paper my-study
    """
    run_snakemake("paper", study, site, records, dry_run=dry_run, rest=ctx.obj)


def archive(
    ctx: typer.Context, study: Study = "", site: Site = "", records: Records = "", dry_run: DryRun = False
) -> None:
    """Pack everything behind the figures into results/STUDY/STUDY.tar.gz, which can rebuild them anywhere.

    Example:
    ./ringside archive my-study
    """
    run_snakemake("archive", study, site, records, dry_run=dry_run, rest=ctx.obj)


def pilot(ctx: typer.Context, study: Study = "", site: Site = "", dry_run: DryRun = False) -> None:
    """Run the first two blocks, and print whether more runs or longer ones are the cheaper way to precision.

    Example:
    ./ringside pilot my-study
    """
    run_snakemake("pilot", study, site, dry_run=dry_run, rest=ctx.obj)


def largest(
    ctx: typer.Context, study: Study = "", site: Site = "", profile: Profile = "", dry_run: DryRun = False
) -> None:
    """Search for the largest batch that fits in memory, for each cell of a study with batch_size: largest.

    Example:
    ./ringside largest my-study --site my-cluster --profile slurm
    """
    run_snakemake("largest", study, site, profile=profile, dry_run=dry_run, rest=ctx.obj)


def images(ctx: typer.Context, study: Study = "", site: Site = "", dry_run: DryRun = False) -> None:
    """Build the container images that a study needs, at a site with deployment apptainer.

    Example:
    ./ringside images my-study --site my-cluster
    """
    run_snakemake("images", study, site, dry_run=dry_run, rest=ctx.obj)


def datasets(ctx: typer.Context, study: Study = "", site: Site = "", dry_run: DryRun = False) -> None:
    """Download and prepare the data sets that a study needs, on a machine with internet access.

    Example:
    ./ringside datasets my-study
    """
    run_snakemake("datasets", study, site, dry_run=dry_run, rest=ctx.obj)


def run_snakemake(
    target: str,
    study: str = "",
    site: str = "",
    records: str = "",
    profile: str = "",
    options: Sequence[str] = (),
    rest: Sequence[str] = (),
    *,
    dry_run: bool = False,
) -> NoReturn:
    """Replace this process by Snakemake with a target of a study.

    Args:
        target: A rule.
        study: Name of a study; default: the configured one.
        site: Name of a site; default: the configured one.
        records: The configuration's key `records`; default: the configured value.
        profile: Name of a folder in profiles/; default: local.
        options: Options of Snakemake.
        rest: Arguments of Snakemake that the user typed after `--`.
        dry_run: Whether to show only what would run.
    """
    settings = [("study", study), ("site", site), ("records", records)]
    config = [f"{key}={value}" for key, value in settings if value]
    profile_option = ["--profile", profile] if profile else []
    replace_process(target, config, [*profile_option, *(["-n"] if dry_run else []), *options], rest)


def replace_process(
    target: str, config: Sequence[str], options: Sequence[str] = (), rest: Sequence[str] = ()
) -> NoReturn:
    """Replace this process by Snakemake, after removing the lock of a killed Snakemake.

    Args:
        target: A rule.
        config: KEY=VALUE pairs of the configuration.
        options: Options of Snakemake.
        rest: Arguments of Snakemake that the user typed after `--`.
    """
    from plan import unlock

    typed_config, other_arguments = take_config(rest)
    values = [*config, *typed_config]
    unlock.main(if_stale=True)
    command = [sys.executable, "-m", "snakemake", target, *options, *other_arguments]
    command += ["--config", *values] if values else []
    sys.stdout.flush()
    os.execv(sys.executable, command)  # noqa: S606


def take_config(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the KEY=VALUE pairs of every `--config` among Snakemake's arguments, and the other arguments.

    Snakemake uses only the last `--config`, which would replace the study and the site.
    """
    pairs: list[str] = []
    other_arguments: list[str] = []
    is_config = False
    for argument in arguments:
        if argument.startswith("-"):
            is_config = argument in ("--config", "-C")
            if argument.startswith("--config="):
                pairs.append(argument.removeprefix("--config="))
            elif not is_config:
                other_arguments.append(argument)
        else:
            (pairs if is_config else other_arguments).append(argument)
    return pairs, other_arguments


def set_variables() -> None:
    """Set the variables of an activated `.venv` in this process, for Snakemake and other programs."""
    from environments.controller import process_variables

    variables = process_variables(CHECKOUT, os.environ)
    programs = str(Path(sys.executable).parent)
    folders = [
        folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder != programs
    ]
    variables["PATH"] = os.pathsep.join([programs, *folders])
    variables["SNAKEMAKE_PROFILE"] = str(CHECKOUT / "profiles" / "local")
    for name in set(os.environ) - set(variables):
        del os.environ[name]
    os.environ.update(variables)
