"""Check folders and user name before Snakemake starts, because it would end with a traceback.

The Python of .venv imports this module whenever it starts Snakemake (environments.controller).
"""

import os

from common.errors import exit_status
from plan.unlock import check_folders, name_user

name_user()
if status := exit_status(check_folders):
    os._exit(status)
