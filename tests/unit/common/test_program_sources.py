"""A program's sources are all modules that it imports, and every rule that makes a product names them."""

import re
import sys

import pytest

from common.files import CHECKOUT
from common.program_sources import SCRIPTS, program_sources
from common.shell import capture

# Rules whose outputs have a digest of the sources in their paths.
KEYED = {"run", "batch_search", "collective_benchmark", "timing", "environment", "extra_p", "dataset"}
# `plan` writes no file, `design` compares its own output, `preview` shows what other rules made, and
# `node_check` reports the current state of nodes.
WITHOUT_CONTENT_CHECK = {"plan", "design", "preview", "node_check"}


@pytest.mark.parametrize("program", ["report.make", "prediction.projection", "provenance.archive"])
def test_every_imported_module_is_a_source(program: str) -> None:
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
    assert len(imported) > 20 and imported <= set(program_sources(program))


def test_other_modules_are_not_sources() -> None:
    overview = program_sources("figures.draw", "figures.kinds.overview")
    assert {"workflow/scripts/figures/draw.py", "workflow/scripts/figures/kinds/overview.py"} < set(overview)
    assert "workflow/scripts/analysis/cell_means.py" in overview, "imported by an imported module"
    assert "workflow/scripts/figures/kinds/residuals.py" not in overview
    assert "config/schemas/runs.schema.yaml" in overview
    assert "workflow/scripts/report/page.html.jinja" in program_sources("report.make")
    assert not set(program_sources("report.make")) & {"workflow/scripts/runs/supervise.py"}
    families = {name for name in program_sources("models.families.*") if "/families/" in name}
    assert {
        "workflow/scripts/models/families/resnet.py",
        "workflow/scripts/models/families/plain.py",
    } <= families
    with pytest.raises(ModuleNotFoundError, match=r"figures\.pie"):
        program_sources("figures.pie")


def test_every_rule_names_the_sources_of_its_program() -> None:
    names_sources = {}
    for file in sorted((CHECKOUT / "rules").glob("*.smk")):
        text = file.read_text()
        for name, body in re.findall(
            r"^ *rule (\w+):\n(.*?)(?=^ *rule |^localrules|\Z)", text, re.MULTILINE | re.DOTALL
        ):
            if program := re.search(r"\{PREFORKED\} ([\w.]+)", body):
                calls = (("changed", name), ("program_sources", program[1]))
                changed, sources = (rf'{function}\(\s*"{argument}"' for function, argument in calls)
                names_sources[name] = bool(re.search(changed, body) and re.search(sources, text))
    assert {name for name, named in names_sources.items() if not named} == KEYED | WITHOUT_CONTENT_CHECK
    assert {"figure", "aggregate", "report", "manifest"} < set(names_sources)
    analysis = (CHECKOUT / "rules" / "analysis.smk").read_text()
    assert re.search(r"changed\(\s*program\.rule, \[\*program_sources\(\*program\.modules\)", analysis)
