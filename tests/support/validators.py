"""Run public validators of RO-Crates and CITATION.cff files on archives.

They have an environment of their own, since their dependencies conflict with ours. The RO-Crate's context,
which the validator would fetch, is the copy in ro-crate-py with the names of version 1.1.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from common.files import CHECKOUT, digest_text, hold_lock
from common.shell import capture

LOCK = Path(__file__).with_name("validators.txt")
CONTEXT = "https://w3id.org/ro/crate/1.1/context"
VALIDATE = """
import json, sys
from pathlib import Path
import rdflib.plugins.shared.jsonld.context as contexts
import requests
import rocrate
from rocrate_validator import models, services
from rocrate_validator.utils.http import HttpRequester

text = (Path(rocrate.__file__).parent / "data" / "ro-crate.jsonld").read_text()
text = text.replace("https://bioschemas.org/terms/", "https://bioschemas.org/")  # as in 1.1

class Requester:
    def get(self, address, **_):
        assert address == {context!r}, address
        answer = requests.Response()
        answer.status_code, answer._content, answer.headers["Content-Type"] = 200, text.encode(), "application/ld+json"
        return answer

HttpRequester.__new__ = lambda cls, *_, **__: Requester()
contexts.Context._fetch_context = lambda self, source, base, referenced: json.loads(text)

settings = services.ValidationSettings(
    rocrate_uri=sys.argv[1], profile_identifier=sys.argv[2], requirement_severity=models.Severity.RECOMMENDED
)
found = services.validate(settings)
print(json.dumps([f"{{issue.severity.name}} {{issue.check.identifier}}: {{issue.message}}" for issue in found.get_issues()]))
"""


def python() -> Path:
    """Return the Python with the validators, which are installed in the cache once for each lock."""
    cache = Path(os.environ.get("RINGSIDE_CACHE", "~/.cache/ringside")).expanduser()
    folder = cache / "validators" / digest_text(LOCK.read_text())[:12]
    with hold_lock(folder.with_name(f".{folder.name}.lock"), lambda: None):
        if not (folder / "whole").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            install = [
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
                "--require-hashes",
            ]
            subprocess.run(
                [folder / "bin" / "python", *install, "--requirement", LOCK], check=True, cwd=folder
            )
            (folder / "whole").touch()
    return folder / "bin" / "python"


def accepts_crate(folder: Path, profile: str) -> list[str]:
    """Return the validator's objections to a crate by a profile of Workflow Run RO-Crate.

    They include violations of recommendations.
    """
    done = capture([python(), "-c", VALIDATE.format(context=CONTEXT), str(folder), profile], cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    objections: list[str] = json.loads(done.stdout.strip().splitlines()[-1])
    return objections


def accepts_citation(file: Path) -> list[str]:
    """Return the validator's objections to a CITATION.cff."""
    done = capture([python().with_name("cffconvert"), "--validate", "-i", str(file)], cwd=CHECKOUT)
    return [] if done.returncode == 0 else [done.stderr[-2000:]]
