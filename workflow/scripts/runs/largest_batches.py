"""Write the results of searches at a site to config/batch_sizes/<study>.<site>.json, which the plan reads.

A search that failed, or that reached the time limit with the smallest batch, is left out, and a line says
why. A cell in which not even the smallest batch fits has an entry without a batch size.
"""

import json
import sys
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import display_path, write_text
from common.options import run_program
from common.run_status import RunStatus
from common.schemas import check
from common.text import number_of
from declared.site import load_site
from declared.study import load_study
from plan.batch_sizes import batch_size_file
from plan.design import plan_design
from plan.largest import planned_searches
from runs.largest import KIND


def gather(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of the file from the records of searches that have a result."""
    names = ("batch_size", "largest_fit", "limit", "key")
    searches = {
        record["name"]: {name: record[name] for name in names}
        for record in records
        if record["status"] in (RunStatus.OK, RunStatus.OOM)
    }
    return {"searches": dict(sorted(searches.items()))}


def main(*, study: str, site: str, out: Path) -> None:
    """Write the batch sizes that were found for a study at a site, and print them.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        out: copy to write, in results/STUDY/largest
    """
    declared_site = load_site(site)
    searches = planned_searches(plan_design(load_study(study), declared_site), declared_site)
    files = [search.final_record_path(out.parents[1], declared_site) for search in searches]
    records = [KIND.read(file) for file in files]
    for record in records:
        text_of_size = f"batch size {record['batch_size']} (limit: {record['limit']})"
        print(f"{record['name']}: {record['reason'] or text_of_size}", flush=True)
    file, content = batch_size_file(study, site), gather(records)
    if records and not content["searches"]:
        problem = f"not written: {records[0]['reason']}"
        raise InputError("search-failed", problem, file=display_path(file), got=records[0]["name"])
    check(content, "batch_sizes", file)
    text = json.dumps(content, indent=2) + "\n"
    write_text(file, text)
    write_text(out, text)
    n_found = sum(entry["batch_size"] is not None for entry in content["searches"].values())
    print(f"{number_of(n_found, 'batch size')} in {display_path(file)}", flush=True)


if __name__ == "__main__":
    sys.exit(run_program(main))
