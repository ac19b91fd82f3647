"""Leave out the nodes that a campaign's node check has named (study key node_check, runs/node_check.py)."""

import functools
from dataclasses import replace
from pathlib import Path

from common.tables import read_table
from declared.site import Site

TABLE = "nodes.csv"  # below results/<study>


def without_slow_nodes(site: Site, results: Path) -> Site:
    """Return the site with the slow nodes of results/<study>/nodes.csv, if it exists, in exclude_nodes.

    Raises:
        InputError: If the table is broken.
    """
    try:
        modified_ns = (results / TABLE).stat().st_mtime_ns
    except OSError:
        return site
    slow = _slow_nodes(results / TABLE, modified_ns)
    return replace(site, exclude_nodes=tuple({**slow, **dict(site.exclude_nodes)}.items()))


@functools.lru_cache(maxsize=1)
def _slow_nodes(file: Path, _modified_ns: int) -> dict[str, str]:
    """Return the reasons of each slow node; the table is read again when it was written again."""
    table = read_table(file, "nodes")
    slow = table[table["slow"].astype(bool)]
    return {host: "; ".join(reasons.drop_duplicates()) for host, reasons in slow.groupby("host")["reason"]}
