"""Write config/sites/NAME.yaml for the cluster or the machine on which this is called, then call the doctor on it.

Slurm is asked for what it says of itself, then one test job asks one node. Nothing is overwritten. Exit status: the doctor's, or
2 with one line where nothing was written.
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

from common.errors import InputError
from common.files import CHECKOUT, create_text, dump_line, shown
from declared.configuration import MAX_NAME_LENGTH, NAME
from declared.site import Site, load_site
from sites import doctor, slurm, virtual
from sites.node_job import WAIT_S, Unwritable, ask_here, ask_nodes, outside, probes
from sites.site_values import Asked, Looked, Section, folded, kinds, of_cluster, of_machine, partition
from sites.slurm import Unanswered, last_line

FOLDER = CHECKOUT / "config" / "sites"
WIDTH = 150  # of a line with its comment
COLUMN = 30  # where comments begin, if lines leave it free


def asked(wanted: str) -> Asked:
    """What Slurm says of itself and of its partition `wanted`, the default for no name. Unanswered; InputError in one line."""
    config = slurm.configuration(slurm.ask("scontrol", "show", "config"))
    row = partition(slurm.partitions(slurm.ask("scontrol", "show", "partition", "--oneliner")), wanted)
    name = row["PartitionName"]
    found = kinds(slurm.nodes(slurm.ask(*slurm.NODES, f"--partition={name}")))
    if not found or not found[0].usable:
        states = "; ".join(f"{node.name} is {node.state}" for kind in found[:4] for node in kind.nodes[:2])
        problem = f"none of the nodes of '{name}' can be had ({states or 'it has none'})"
        raise InputError("too-few-nodes", problem, file="--partition", got=name, hint="wait, or name another")
    names = ",".join(name for kind in found[1:] for name in kind.names)
    listed = slurm.ask("scontrol", "show", "hostlist", names).strip() if names else ""
    node = slurm.ask("scontrol", "show", "node", found[0].nodes[0].name, "--oneliner")
    mine, default = _accounts(config)
    return Asked(
        config=config,
        partition=row,
        kinds=found,
        others=folded(names, listed),
        node=slurm.node_fields(node),
        mine=mine,
        default_account=default,
        mpi=_mpi(),
        virtual=virtual.running(),
    )


def _accounts(config: dict[str, str]) -> tuple[list[str], str | None]:
    if not slurm.accounting(config):
        return [], None
    user = getpass.getuser()
    try:
        return slurm.accounts(user), slurm.default_account(user)
    except Unanswered as error:
        print(f"accounts: could not be asked for: sacctmgr: {error}")
        return [], None


def _mpi() -> list[str]:
    """Some versions of srun list on standard error; none where it does not answer."""
    command = ["srun", "--mpi=list"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=slurm.PATIENCE_S,
            env=outside(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return slurm.mpi_types(done.stdout + done.stderr)


def looked(site: Site) -> Looked:
    """What one node of the cluster says of itself, by a test job as jobs of `site` are."""
    try:
        with probes(site, CHECKOUT / "results") as question:
            reports, said, status = ask_nodes(site, 1, site.cores, {**question, "device": "cuda", "survey": True})
    except Unwritable as error:
        return Looked(None, str(error))
    if reports:
        return Looked(reports[0])
    busy = f"none was free within {WAIT_S} s; when one is, remove the file and call ./ringside site again"
    return Looked(None, busy if "busy" in said else f"srun: {last_line(said) or f'status {status}'}")


def cluster(name: str, wanted: str) -> tuple[str, str]:
    """The text of the site of the cluster whose login node this is, and why no node was seen, if so. Unanswered; InputError in
    one line."""
    found = asked(wanted)
    print(
        f"asking one node of {found.partition['PartitionName']} by a test job (this machine alone: ./ringside site {name} --local)",
        flush=True,
    )
    draft = of_cluster(found, Looked(None, "yet"), CHECKOUT.parent)
    seen = looked(loaded(name, text("", draft)))
    version, of = found.config.get("SLURM_VERSION", "?"), found.config.get("ClusterName", "?")
    sources = f"Slurm {version} of the cluster {of}" + (f" and {seen.at}" if seen.report else "")
    written = text(
        _head(name, sources, "" if seen.report else f"No node was seen: {seen.why}."),
        of_cluster(found, seen, CHECKOUT.parent),
    )
    return written, "" if seen.report else seen.why


def machine(name: str) -> str:
    """The text of the site that is this machine alone. InputError in one line."""
    question = {
        "checkout": str(CHECKOUT),
        "results": str(CHECKOUT),
        "cache": str(CHECKOUT),
        "lock": "",
        "scratch": None,
    }
    reports = ask_here({**question, "setup": [], "device": "cuda", "binds": [], "survey": True})
    if not reports:
        problem = "this machine does not answer questions about itself"
        raise InputError("machine-silent", problem, hint="copy config/sites/local.yaml and correct it")
    return text(_head(name, "this machine"), of_machine(reports[0]))


def _head(name: str, sources: str, unseen: str = "") -> str:
    today = datetime.now(UTC).date()
    lines = [
        f"Written by ringside site {name}, {today}: what {sources} said. Each line tells where its value is from.",
        *([unseen] if unseen else []),
        "ASSUMED is what nobody could be asked: look at these lines first. config/sites/slurm-example.yaml explains every key.",
    ]
    return "\n".join(f"# {line}" for line in textwrap.wrap(_clean(" ".join(lines)), WIDTH - 2))


def text(head: str, sections: Sequence[Section]) -> str:
    """A site file: for each section its title, then a line for each entry, with its source as a comment."""
    parts = [head] if head else []
    for section in sections:
        lines = [f"# {section.title}"] if section.title else []
        lines += [f"{section.under}:"] if section.under else []
        for entry in section.entries:
            said = ("  " if section.under else "") + ("" if entry.stated else "# ") + dump_line(entry.key, entry.value)
            lines += _commented(said, entry.source)
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _commented(said: str, source: str) -> list[str]:
    """A line with its comment, which goes on below where it is long; a long line has it above."""
    room = len(said) + 2 <= WIDTH // 2
    column = max(COLUMN, len(said) + 2) if room else len(said) - len(said.lstrip())
    comment = textwrap.wrap(_clean(source), WIDTH - column - 2, break_long_words=False, break_on_hyphens=False)
    if not room:
        return [*(f"{' ' * column}# {line}" for line in comment), said]
    first, *rest = comment
    return [f"{said:{column}}# {first}", *(f"{' ' * column}# {line}" for line in rest)]


def _clean(words: str) -> str:
    """Words of a node's or of Slurm's on one line, whatever is in them."""
    return "".join(sign if sign.isprintable() else " " for sign in words)


def loaded(name: str, written: str) -> Site:
    """The site that a text is, before it is anywhere that others look."""
    with tempfile.TemporaryDirectory(prefix="ringside-site-") as folder:
        Path(folder, f"{name}.yaml").write_text(written, encoding="utf-8")
        return load_site(name, Path(folder))


def _new(name: str) -> Path:
    """The file that is to be written. InputError where it cannot be."""
    if not re.search(NAME, name) or len(name) > MAX_NAME_LENGTH:
        problem, expected = f"'{name[:100]}' is no name of a site", "a-z, 0-9 and -, such as my-cluster"
        raise InputError("bad-pattern", problem, got=name, expected=expected)
    return FOLDER / f"{name}.yaml"


def _there(file: Path) -> InputError:
    hint = f"name another site, or remove it: rm {shown(file)}"
    return InputError("already-there", "is there already and stays as it is", file=shown(file), hint=hint)


def write_site(name: str, partition: str = "", local: bool = False) -> int:
    """Write config/sites/NAME.yaml for the cluster or machine on which this runs; return the exit status of the doctor on it.

    Args:
        name: Name of the site: a-z, 0-9 and -.
        partition: Partition of Slurm, in place of its default.
        local: Describe this machine alone, although Slurm or OAR is here.
    """
    file = _new(name)
    if file.exists():
        raise _there(file)
    unseen, here_alone = "", f"./ringside site {name} --local"
    if shutil.which("sinfo") and not local:
        try:
            written, unseen = cluster(name, partition)
        except Unanswered as error:
            raise InputError(
                "scheduler-silent",
                f"Slurm is here, but does not answer ({error})",
                hint=f"call it on a login node, or for this machine alone: {here_alone}",
            ) from None
    elif partition:
        code = "conflicting-keys" if local else "not-installed"
        problem = "cannot be combined with --local" if local else "Slurm is not on this machine (sinfo)"
        raise InputError(code, problem, file="--partition", got=partition)
    elif shutil.which("oarnodes") and not local:
        raise InputError(
            "not-possible-here",
            "OAR is here: copy config/sites/grid5000.yaml to a file of its own and correct each line by hand",
            hint=f"for this machine alone: {here_alone}",
        )
    else:
        written = machine(name)
    loaded(name, written)
    try:
        create_text(file, written)
    except FileExistsError:
        raise _there(file) from None
    assumed = sum("ASSUMED" in line for line in written.splitlines()) - 1  # one is in the head
    print(f"{shown(file)}: written; {assumed} lines are ASSUMED: grep ASSUMED {shown(file)}")
    return doctor.told(load_site(name), CHECKOUT / "results", unseen)
