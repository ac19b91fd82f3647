"""Verbs about sites: describe and check a site, submit and bundle studies, start a virtual cluster."""

from pathlib import Path
from typing import Annotated

import typer

from ringside.arguments import SITES, KeepGoing, Site, Study, check_site, complete, names_in


def site(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the site: a-z, 0-9 and -.")],
    partition: Annotated[
        str,
        typer.Option(
            metavar="PARTITION", help="Partition of Slurm; default: Slurm's default.", show_default=False
        ),
    ] = "",
    local: Annotated[
        bool, typer.Option("--local", help="Describe only this machine, even if it has Slurm.")
    ] = False,
) -> None:
    """Write config/sites/NAME.yaml for this cluster or machine, then check it as `doctor` does.

    Example:
    ./ringside site my-cluster --partition gpu
    """
    from sites.site_file import write_site

    raise typer.Exit(write_site(name, partition, local=local))


def doctor(study: Study = "", site: Site = "") -> None:
    """Check paths, scheduler and nodes of a site before a campaign; exit status 1 if a run would fail.

    Example:
    ./ringside doctor --site my-cluster
    """
    from sites.doctor import check_site

    raise typer.Exit(check_site(study, site))


def nodecheck(
    site: Annotated[
        str,
        typer.Argument(
            metavar="SITE",
            help="A site of config/sites/; default: the configured one.",
            callback=check_site,
            autocompletion=complete(lambda: names_in(SITES)),
        ),
    ] = "",
    nodes: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of nodes; default: all idle ones.", show_default=False),
    ] = None,
) -> None:
    """Test the nodes of a site against each other; exit status 1 if one is slow.

    Example:
    ./ringside nodecheck my-cluster
    """
    from declared.configuration import load_config
    from declared.site import load_site
    from plan.campaign import load_merged_config
    from runs.node_check import check_nodes

    declared = load_site(load_config(load_merged_config("", site, ["slurm.yaml"])).site)
    raise typer.Exit(int(bool(check_nodes(declared, nodes))))


def submit(
    study: Study = "",
    site: Site = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end; exit status 2 if runs are missing.")
    ] = False,
    keep_going: KeepGoing = False,
) -> None:
    """Run a campaign on Slurm, one allocation per block, in the planned order.

    Example:
    ./ringside submit my-study --site my-cluster
    """
    from runs.submit import submit_blocks

    submit_blocks(study, site, until_end=wait, keep_going=keep_going)


def bundle(study: Study = "", site: Site = "") -> None:
    """Pack everything that a study needs at a site without internet: results/STUDY/STUDY-SITE.bundle.tar.

    Example:
    ./ringside bundle my-study --site my-cluster
    """
    from provenance.bundle import make_bundle

    make_bundle(study, site)


def unbundle(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `ringside bundle` wrote.")],
    study: Annotated[
        str, typer.Option(help="Unpack it only if it is for this study.", show_default=False)
    ] = "",
    site: Annotated[
        str, typer.Option("--site", "-s", help="Unpack it only if it is for this site.", show_default=False)
    ] = "",
) -> None:
    """Unpack a bundle into the cache of a machine without internet.

    Example:
    ./ringside unbundle my-study-my-cluster.bundle.tar
    """
    from environments.unbundle import unpack

    unpack(file, study, site)


def up(
    nodes: Annotated[str, typer.Option(metavar="N", help="Number of nodes.")] = "3",
    bandwidth: Annotated[
        str, typer.Option(help="Rate of each node's link in tc's units, or none.")
    ] = "1gbit",
    cpu: Annotated[str, typer.Option(help="Cores per node, or of each node (0.9,0.6,0.3), or none.")] = "0.6",
    memory: Annotated[str, typer.Option(help="Memory per node, or none.")] = "6G",
    scheduler: Annotated[str, typer.Option(help="slurm or oar.")] = "slurm",
    accounting: Annotated[
        bool, typer.Option("--accounting", help="Start slurmdbd, so that sacct works.")
    ] = False,
    gpus: Annotated[
        str, typer.Option(help="GPUs per node (4 or a100:4), device files without a driver; or none.")
    ] = "none",
    constrain_devices: Annotated[
        bool,
        typer.Option("--constrain-devices", help="Programs can open only the GPUs that Slurm grants them."),
    ] = False,
) -> None:
    """Start a virtual cluster on this machine, under Slurm or OAR (as root).

    Example:
    ./ringside cluster up --nodes 3 --bandwidth 1gbit --cpu 0.6
    """
    from virtual_cluster.control import start

    start(
        nodes,
        bandwidth,
        cpu,
        memory,
        scheduler,
        accounting=accounting,
        gpus=gpus,
        constrain_devices=constrain_devices,
    )


def down(
    force: Annotated[bool, typer.Option("--force", help="Stop it even if jobs wait or run.")] = False,
) -> None:
    """Stop the virtual cluster; nothing is left behind.

    Example:
    ./ringside cluster down
    """
    from virtual_cluster.control import stop

    stop(force=force)
