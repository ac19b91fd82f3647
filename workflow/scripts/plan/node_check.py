"""Leave out the nodes that a campaign's node check has named (study key node_check, runs/node_check.py)."""

import csv
from dataclasses import replace
from pathlib import Path

from declared.site import Site

TABLE = "nodes.csv"  # below results/<study>


def without_slow_nodes(site: Site, results: Path) -> Site:
    """Return the site with the slow nodes of results/<study>/nodes.csv, if it exists, in exclude_nodes."""
    try:
        with open(results / TABLE, encoding="utf-8", newline="") as table:
            rows = [row for row in csv.DictReader(table) if row.get("slow") == "true"]
    except OSError:
        return site
    reasons: dict[str, list[str]] = {}
    for row in rows:
        reasons.setdefault(row["host"], []).append(row["reason"])
    slow = {host: "; ".join(dict.fromkeys(texts)) for host, texts in reasons.items()}
    return replace(site, exclude_nodes=tuple({**slow, **dict(site.exclude_nodes)}.items()))
