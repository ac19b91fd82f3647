"""Command lines of programs that answer a question."""

import argparse
from typing import NoReturn

from common.errors import InputError


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, as for all that a person gets wrong."""

    def error(self, message: str) -> NoReturn:
        """InputError, without the usage."""
        raise InputError("bad-arguments", message)
