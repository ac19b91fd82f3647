"""The site whose frameworks tests train: local, unless `make frameworks-test SITE=...` names another."""

import os

from declared.site import load_site

SITE = load_site(os.environ.get("RINGSIDE_TEST_SITE") or "local")
INSTALLED = dict(SITE.installed)
