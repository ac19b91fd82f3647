"""Write two tiny environments, `base` and its child `over`, which are built from a folder without a network."""

import hashlib
import io
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

SELFTEST = """\
import json, os, pathlib
{check}
meeting = pathlib.Path(os.environ["RINGSIDE_MEETING"])
(meeting / ("rank" + os.environ["RINGSIDE_RANK"] + ".json")).write_text(json.dumps({{"all_reduce": 3.0}}))
"""

# A build backend and a setup.py without setuptools, so that the source needs no tools: both write the same
# wheel.
BACKEND = """
import os, pathlib, zipfile

INFO = "leaf-1.0.dist-info"
METADATA = "Metadata-Version: 2.1\\nName: leaf\\nVersion: 1.0\\n"

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = pathlib.Path(folder) / INFO
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    return INFO

def build_wheel(folder, config_settings=None, metadata_directory=None):
    import leaf
    name = "leaf-1.0-py3-none-any.whl"
    seen = {key: os.environ[key] for key in sorted(os.environ) if key not in ("PATH", "LC_CTYPE")}
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("leaf.py", f"answer = {leaf.answer!r}\\nbuilt_with = {seen!r}\\n")
        wheel.writestr(f"{INFO}/METADATA", METADATA)
        wheel.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{INFO}/RECORD", "")
    return name
"""

SETUP = """
import os, sys, backend
count = os.environ["COUNT_FILE"]
with open(count, "a") as file:
    file.write("built ")
os.makedirs(sys.argv[-1], exist_ok=True)
backend.build_wheel(sys.argv[-1])
"""


@dataclass
class Tiny:
    """Paths of the tiny environments: descriptions, packages, cache, and the count of builds."""

    containers: Path
    links: Path
    cache: Path
    count: Path

    @property
    def builds(self) -> int:
        """Number of builds of the source package."""
        return self.count.read_text().count("built") if self.count.exists() else 0


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tiny_wheel(folder: Path, name: str, version: str) -> Path:
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", f"version = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def tiny_source(folder: Path) -> Path:
    path = folder / "leaf-1.0.tar.gz"
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "PKG-INFO": "Metadata-Version: 2.1\nName: leaf\nVersion: 1.0\n",
        "backend.py": BACKEND,
        "setup.py": SETUP,
        "leaf.py": "answer = 'unpatched'\n",
    }
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"leaf-1.0/{name}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


def write_tiny(root: Path) -> None:
    """Write the descriptions of `base` and `over` and the files that they install below `root`."""
    containers, links = root / "containers", root / "links"
    base, over = containers / "base", containers / "over"
    for folder in (base, over, links):
        folder.mkdir(parents=True)
    tiny_package, source = tiny_wheel(links, "tiny_package", "1.0"), tiny_source(links)
    lock = f"tiny-package==1.0 --hash=sha256:{sha256(tiny_package)}\n"
    (base / "environment.yaml").write_text("variables: {GREETING: hello}\nselftest_limit_s: 30\n")
    (base / "selftest.py").write_text(SELFTEST.format(check="import tiny_package"))
    (over / "environment.yaml").write_text(
        f"""\
parent: base
sources:
  - name: leaf
    version: "1.0"
    sha256: {sha256(source)}
    built_against: [tiny-package]
    needs: {{common: {{bash: bash}}}}
    flags: {{common: {{COUNT_FILE: "{root}/count", WHERE: "{{parent}}/tiny"}}}}
    patches:
      - {{file: leaf.py, find: unpatched, replace: patched, why: to see that it is done}}
selftest_limit_s: 30
"""
    )
    (over / "selftest.py").write_text(
        SELFTEST.format(check="import leaf, tiny_package\nassert leaf.answer == 'patched', leaf.answer")
    )
    for folder in (base, over):
        for variant in ("cpu", "cuda"):
            (folder / f"requirements.{variant}.txt").write_text(lock if folder == base else "")
    (over / "requirements.build.txt").write_text("")
