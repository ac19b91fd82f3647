"""Write config/sites/NAME.yaml for this cluster or machine, then run the doctor on it: `./ringside site`.

The values come from Slurm and from one node, which a test job queries. An existing file is never overwritten.
The exit status is that of the doctor, or 2 if nothing was written.
"""

import getpass
import re
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import CHECKOUT, create_text, display_path, dump_line
from common.shell import Unanswered, capture
from declared.configuration import MAX_NAME_LENGTH, NAME
from declared.site import Site, load_site
from sites import doctor, slurm, virtual
from sites.node_job import WAIT_S, Unwritable, ask_here, ask_nodes, outside, probes
from sites.site_values import (
    NodeAnswers,
    Section,
    SlurmAnswers,
    cluster_site,
    folded,
    group_nodes,
    machine_site,
    usable_partition,
)
from sites.slurm import last_line

FOLDER = CHECKOUT / "config" / "sites"
WIDTH = 150  # width of a line with its comment
COLUMN = 30  # column in which comments of short lines begin


def query_slurm(requested: str) -> SlurmAnswers:
    """Query Slurm about itself and a partition ("" for the default).

    Raises:
        Unanswered: If Slurm does not answer.
        InputError: If the partition does not exist, or has no usable node.
    """
    config = slurm.parse_configuration(slurm.run_client("scontrol", "show", "config"))
    row = usable_partition(
        slurm.parse_partitions(slurm.run_client("scontrol", "show", "partition", "--oneliner")), requested
    )
    name = row["PartitionName"]
    node_kinds = group_nodes(slurm.parse_nodes(slurm.run_client(*slurm.NODES_COMMAND, f"--partition={name}")))
    if not node_kinds or not node_kinds[0].n_usable:
        states = "; ".join(
            f"{node.name} is {node.state}" for kind in node_kinds[:4] for node in kind.nodes[:2]
        )
        problem = f"none of the nodes of '{name}' is usable ({states or 'it has none'})"
        raise InputError("too-few-nodes", problem, file="--partition", got=name, hint="wait, or name another")
    names = ",".join(name for kind in node_kinds[1:] for name in kind.names)
    listed = slurm.run_client("scontrol", "show", "hostlist", names).strip() if names else ""
    node = slurm.run_client("scontrol", "show", "node", node_kinds[0].nodes[0].name, "--oneliner")
    mine, default = _accounts(config)
    return SlurmAnswers(
        config=config,
        partition=row,
        kinds=node_kinds,
        other_nodes=folded(names, listed),
        node=slurm.parse_fields(node),
        mine=mine,
        default_account=default,
        mpi=_mpi(),
        virtual=virtual.running_cluster(),
    )


def _accounts(config: dict[str, str]) -> tuple[list[str], str | None]:
    if not slurm.has_accounting(config):
        return [], None
    user = getpass.getuser()
    try:
        return slurm.user_accounts(user), slurm.default_account(user)
    except Unanswered as error:
        print(f"accounts: unknown: sacctmgr: {error}")
        return [], None


def _mpi() -> list[str]:
    """Return srun's types of MPI, [] if it does not answer."""
    command = ["srun", "--mpi=list"]
    try:
        result = capture(command, timeout=slurm.CLIENT_TIMEOUT_S, env=outside())
    except (OSError, subprocess.TimeoutExpired):
        return []
    # Some versions of srun print the list to standard error.
    return slurm.parse_mpi_types(result.stdout + result.stderr)


def query_node(site: Site) -> NodeAnswers:
    """Query one node of the cluster with a test job like those of `site`."""
    try:
        with probes(site, CHECKOUT / "results") as question:
            reports, messages, status = ask_nodes(
                site, 1, site.cores, {**question, "device": "cuda", "survey": True}
            )
    except Unwritable as error:
        return NodeAnswers(None, str(error))
    if reports:
        return NodeAnswers(reports[0])
    busy = f"none was free within {WAIT_S} s; when one is, remove the file and run ./ringside site again"
    return NodeAnswers(
        None, busy if "busy" in messages else f"srun: {last_line(messages) or f'status {status}'}"
    )


def describe_cluster(name: str, requested: str) -> tuple[str, str]:
    """Return the text of a site file for this cluster, and why no node answered, or "".

    Raises:
        Unanswered: If Slurm does not answer.
        InputError: If the partition does not exist, or has no usable node.
    """
    answers = query_slurm(requested)
    print(
        f"querying one node of {answers.partition['PartitionName']} with a test job "
        f"(this machine alone: ./ringside site {name} --local)",
        flush=True,
    )
    draft = cluster_site(answers, NodeAnswers(None, "yet"), CHECKOUT.parent)
    seen = query_node(load_text(name, render_site("", draft)))
    version, cluster_name = answers.config.get("SLURM_VERSION", "?"), answers.config.get("ClusterName", "?")
    sources = f"Slurm {version} of the cluster {cluster_name}" + (f" and {seen.at}" if seen.report else "")
    written = render_site(
        _head(name, sources, "" if seen.report else f"No node was seen: {seen.reason}."),
        cluster_site(answers, seen, CHECKOUT.parent),
    )
    return written, "" if seen.report else seen.reason


def describe_machine(name: str) -> str:
    """Return the text of a site file for this machine alone.

    Raises:
        InputError: If this machine cannot be queried.
    """
    question: dict[str, Any] = dict.fromkeys(("checkout", "results", "cache"), str(CHECKOUT))
    question |= {"lock": "", "scratch": None, "setup": [], "device": "cuda", "binds": [], "survey": True}
    reports = ask_here(question)
    if not reports:
        problem = "this machine cannot be queried"
        raise InputError("machine-silent", problem, hint="copy config/sites/local.yaml and correct it")
    return render_site(_head(name, "this machine"), machine_site(reports[0]))


def _head(name: str, sources: str, unseen: str = "") -> str:
    today = datetime.now(UTC).date()
    lines = [
        f"Written by ringside site {name} on {today} from {sources}. Each line says where its value is from.",
        *([unseen] if unseen else []),
        "ASSUMED values could not be measured: check these lines first.",
        "config/sites/slurm-example.yaml explains every key.",
    ]
    return "\n".join(f"# {line}" for line in textwrap.wrap(_clean(" ".join(lines)), WIDTH - 2))


def render_site(head: str, sections: Sequence[Section]) -> str:
    """Return a site file: each section's title, and a line per entry with its source as a comment."""
    parts = [head] if head else []
    for section in sections:
        lines = [f"# {section.title}"] if section.title else []
        lines += [f"{section.under}:"] if section.under else []
        for entry in section.entries:
            start = ("  " if section.under else "") + ("" if entry.stated else "# ")
            lines += _commented(start + dump_line(entry.key, entry.value), entry.source)
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _commented(entry: str, source: str) -> list[str]:
    """Return an entry with its comment, which begins on the entry's line, or above a long entry."""
    has_room = len(entry) + 2 <= WIDTH // 2
    column = max(COLUMN, len(entry) + 2) if has_room else len(entry) - len(entry.lstrip())
    comment = textwrap.wrap(
        _clean(source), WIDTH - column - 2, break_long_words=False, break_on_hyphens=False
    )
    if not has_room:
        return [*(f"{' ' * column}# {line}" for line in comment), entry]
    first, *rest = comment
    return [f"{entry:{column}}# {first}", *(f"{' ' * column}# {line}" for line in rest)]


def _clean(words: str) -> str:
    """Return a text of a node or of Slurm on one line, without control characters."""
    return "".join(sign if sign.isprintable() else " " for sign in words)


def load_text(name: str, written: str) -> Site:
    """Load the text of a site from a temporary file."""
    with tempfile.TemporaryDirectory(prefix="ringside-site-") as folder:
        Path(folder, f"{name}.yaml").write_text(written, encoding="utf-8")
        return load_site(name, Path(folder))


def _new(name: str) -> Path:
    """Return the path of a new site file.

    Raises:
        InputError: If the name is invalid.
    """
    if not re.search(NAME, name) or len(name) > MAX_NAME_LENGTH:
        problem, expected = (
            f"'{name[:100]}' is not a valid name of a site",
            "a-z, 0-9 and -, such as my-cluster",
        )
        raise InputError("bad-pattern", problem, got=name, expected=expected)
    return FOLDER / f"{name}.yaml"


def _already_there(file: Path) -> InputError:
    hint = f"name another site, or remove it: rm {display_path(file)}"
    return InputError("already-there", "exists already and is not changed", file=file, hint=hint)


def write_site(name: str, partition: str = "", local: bool = False) -> int:
    """Write config/sites/NAME.yaml for this cluster or machine, and return the doctor's exit status for it.

    Args:
        name: Name of the site: a-z, 0-9 and -.
        partition: Partition of Slurm, instead of its default.
        local: Describe this machine alone, even if it has Slurm or OAR.

    Raises:
        InputError: If the file exists, or the cluster or machine cannot be described.
    """
    file = _new(name)
    if file.exists():
        raise _already_there(file)
    unseen, here_alone = "", f"./ringside site {name} --local"
    if shutil.which("sinfo") and not local:
        try:
            written, unseen = describe_cluster(name, partition)
        except Unanswered as error:
            problem = f"this machine has Slurm, but it does not answer ({error})"
            hint = f"run it on a login node, or for this machine alone: {here_alone}"
            raise InputError("scheduler-silent", problem, hint=hint) from None
    elif partition:
        code = "conflicting-keys" if local else "not-installed"
        problem = "cannot be combined with --local" if local else "Slurm is not on this machine (sinfo)"
        raise InputError(code, problem, file="--partition", got=partition)
    elif shutil.which("oarnodes") and not local:
        problem = "this machine has OAR: copy config/sites/grid5000.yaml to a new file and adapt each line"
        raise InputError("not-possible-here", problem, hint=f"for this machine alone: {here_alone}")
    else:
        written = describe_machine(name)
    load_text(name, written)
    try:
        create_text(file, written)
    except FileExistsError:
        raise _already_there(file) from None
    assumed = sum("ASSUMED" in line for line in written.splitlines()) - 1  # one is in the head
    print(f"{display_path(file)}: written; {assumed} lines are ASSUMED: grep ASSUMED {display_path(file)}")
    return doctor.print_findings(load_site(name), CHECKOUT / "results", unseen)
