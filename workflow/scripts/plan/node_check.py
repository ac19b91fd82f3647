"""Exclude the nodes that a campaign's node check found slow (study key node_check, runs/node_check.py)."""

import functools
from dataclasses import replace
from pathlib import Path

from declared.site import Site, check_left_nodes

TABLE = "nodes.csv"  # below results/<study>


def without_slow_nodes(site: Site, results: Path) -> Site:
    """Return the site with the slow nodes of results/<study>/nodes.csv, if there is one, in exclude_nodes.

    Raises:
        InputError: If the table is broken, or too few nodes of the site's list are left.
    """
    try:
        modified_ns = (results / TABLE).stat().st_mtime_ns
    except OSError:
        return site
    slow = _slow_nodes(results / TABLE, modified_ns)
    left = replace(site, exclude_nodes=tuple({**slow, **dict(site.exclude_nodes)}.items()))
    check_left_nodes(left, results / TABLE, "slow")
    return left


@functools.lru_cache(maxsize=1)
def _slow_nodes(file: Path, _modified_ns: int) -> dict[str, str]:
    """Return the reasons of each slow node by host; the modification time is a key of the cache."""
    from common.tables import read_table  # imported late, because pandas would delay every start

    table = read_table(file, "nodes")
    slow = table[table["slow"].astype(bool)]
    reasons = slow.groupby("host")["reason"]
    return {host: "; ".join(texts.dropna().drop_duplicates()) for host, texts in reasons}
