"""The code of a program is all that it imports, and every rule that makes a product names it."""

import re
import sys

import pytest

from common.code import SCRIPTS, code
from common.files import CHECKOUT
from common.shell import capture

KEYED = {
    "run",
    "batch_search",
    "collective_benchmark",
    "timing",
    "environment",
    "extra_p",
    "dataset",
}  # whose digests are in their outputs' paths
WITHOUT_CONTENT_CHECK = {
    "plan",
    "design",
    "preview",
    "node_check",
}  # which writes nothing, is compared as a whole, stands for what others have made, tells the state of nodes


@pytest.mark.parametrize("program", ["report.make", "prediction.projection", "provenance.archive"])
def test_what_a_program_imports_is_its_code(program: str) -> None:
    template = (
        "import sys, {0}; print(*[m.__file__ for m in list(sys.modules.values()) if getattr(m, '__file__', "
        "None)], sep='\\n')"
    )
    done = capture(
        [sys.executable, "-c", template.format(program)], env={"PYTHONPATH": str(SCRIPTS)}, check=True
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
    assert "workflow/scripts/analysis/cell_means.py" in overview, "which a module that it imports imports"
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
    names_code = {}
    for file in sorted((CHECKOUT / "rules").glob("*.smk")):
        text = file.read_text()
        for name, body in re.findall(
            r"^ *rule (\w+):\n(.*?)(?=^ *rule |^localrules|\Z)", text, re.MULTILINE | re.DOTALL
        ):
            if program := re.search(r"\{PREFORKED\} ([\w.]+)", body):
                changed, program_code = (
                    rf'{call}\(\s*"{word}"' for call, word in (("changed", name), ("code", program[1]))
                )
                names_code[name] = bool(re.search(changed, body) and re.search(program_code, text))
    assert {name for name, named in names_code.items() if not named} == KEYED | WITHOUT_CONTENT_CHECK
    assert {"figure", "aggregate", "report", "manifest"} < set(names_code)
    assert (
        "changed=changed(program.rule, [*code(*program.modules),"
        in (CHECKOUT / "rules" / "analysis.smk").read_text()
    )
