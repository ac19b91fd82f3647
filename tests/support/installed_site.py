"""The site whose frameworks tests train: local, unless `make frameworks-test SITE=...` names another."""

import os
from dataclasses import replace
from typing import Any

from declared.site import Site, load_site

SITE = load_site(os.environ.get("RINGSIDE_TEST_SITE") or "local")
INSTALLED = dict(SITE.installed)


def busy_site(**changes: Any) -> Site:
    """Return this machine as a site of two cores, whose runs are valid although others use it."""
    return replace(load_site("local"), cores=2, max_other_cpu_share=1.0, max_steal_share=1.0, **changes)
