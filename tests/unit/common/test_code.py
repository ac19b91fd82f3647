"""The files that a program is made of are those that it imports, and every rule that makes a product names
them.
"""

import re
import subprocess
import sys

import pytest

from common.code import SCRIPTS, code
from common.files import CHECKOUT

KEYED = {
    "run",
    "sweep",
    "timing",
    "environment",
    "extra_p",
    "dataset",
}  # whose digests are in their outputs' paths
OTHERS = {
    "plan",
    "design",
    "preview",
}  # which writes nothing, is compared as a whole, stands for what others have made


@pytest.mark.parametrize("program", ["report.make", "prediction.outlook", "provenance.archive"])
def test_what_a_program_imports_is_its_code(program: str) -> None:
    said = (
        "import sys, {0}; print(*[m.__file__ for m in list(sys.modules.values()) if getattr(m, '__file__', "
        "None)], sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", said.format(program)],
        env={"PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {
        line.removeprefix(f"{CHECKOUT}/")
        for line in done.stdout.splitlines()
        if line.startswith(str(SCRIPTS))
    }
    assert len(imported) > 20 and imported <= set(code(program))


def test_code_is_no_more_than_that() -> None:
    overview = code("figures.draw", "figures.overview")
    assert {"workflow/scripts/figures/draw.py", "workflow/scripts/figures/overview.py"} < set(overview)
    assert "workflow/scripts/analysis/pooling.py" in overview, "which a module that it imports imports"
    assert "workflow/scripts/figures/residuals.py" not in overview
    assert "config/schemas/runs.schema.yaml" in overview
    assert "workflow/scripts/report/page.html.jinja" in code("report.make")
    assert not set(code("report.make")) & {"workflow/scripts/runs/supervise.py"}
    families = {name for name in code("models.families.*") if "/families/" in name}
    assert {
        "workflow/scripts/models/families/resnet.py",
        "workflow/scripts/models/families/plain.py",
    } <= families
    with pytest.raises(ModuleNotFoundError, match=r"figures\.pie"):
        code("figures.pie")


def test_every_rule_names_the_code_of_its_program() -> None:
    found = {}
    for file in sorted((CHECKOUT / "rules").glob("*.smk")):
        text = file.read_text()
        for name, body in re.findall(
            r"^ *rule (\w+):\n(.*?)(?=^ *rule |^localrules|\Z)", text, re.MULTILINE | re.DOTALL
        ):
            if program := re.search(r"\{WARM\} ([\w.]+)", body):
                found[name] = f'changed("{name}"' in body and f'code("{program[1]}"' in text
    assert {name for name, named in found.items() if not named} == KEYED | OTHERS
    assert {"figure", "aggregate", "report", "manifest"} < set(found)
    assert (
        "changed=changed(program.rule, [*code(*program.modules),"
        in (CHECKOUT / "rules" / "analysis.smk").read_text()
    )
