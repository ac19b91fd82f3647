"""Pages of what a study makes: figures, tables, files and their columns."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from common.files import CHECKOUT, load_yaml
from common.schemas import schema
from declared.factors import MAX_SERIES
from declared.figures import MAX_VARIANTS
from declared.products.tables import TABLES, Table
from declared.records import RECORD_TABLES, RecordTable
from declared.responses import RESPONSES
from figures import gallery
from reference.markdown import block, code, codes, escaped, table
from reference.settings import value

FACTORS = "factors"  # a column for each factor, or for each that varies
LAYOUT = {
    "design.csv": "all runs in planned order, written before the first one starts; [columns](#designcsv)",
    **{f"{name}.csv": f"{table.rows}; [columns](#{name}csv)" for name, table in RECORD_TABLES.items()},
    "figures/FIGURE.pdf, .svg, .png": "[figures](figures.md)",
    "figures/FIGURE.caption.md": "the caption: what is shown, n, intervals, placement, what is missing",
    "tables/TABLE.csv, .md, .tex": (
        "[tables](tables.md): CSV with all digits, Markdown and LaTeX rounded, with notes"
    ),
    "report.html": "one page with everything (`./ringside report`)",
    "paper/": "the paper in LaTeX, and its PDF (`./ringside paper`); `main.tex` is written once and is yours",
    "manifest.json": "SHA-256 of every figure and table, and of all that they were made from",
    "STUDY.tar.gz": "the archive (`./ringside archive`)",
    "STUDY-SITE.bundle.tar": "all that the study needs at a site without internet (`./ringside bundle`)",
    "preview/": (
        "figures and tables of the runs so far (`ringside preview`, and the first block of a campaign)"
    ),
    "traces/RUN_ID/": (
        "one run traced, for Perfetto and Vampir, and its phases as a table (`./ringside trace`); what was "
        "trained for it lies in `traces/runs/`"
    ),
    "memory_estimates.json": "memory of each configuration as `./ringside plan` estimated it, by key",
    "campaign.json": "site, machine and study that the folder belongs to",
    "plan/RUN_ID.json": "what is measured in a run, and its key; written before jobs start",
    "runs/RUN_ID/KEY/record.json": "the record of a run; [fields](#recordjson)",
    "runs/RUN_ID/KEY/attempt-N/": (
        "an attempt: `spec.json` (what was asked for), `log.txt`, `epochs.csv`, `steps.csv` with "
        "`step_times: true`, `phases.csv` and `clocks.csv` with `trace: phases`, `score-p/` where Score-P "
        "traced it, `power.csv` where a machine has a meter; `reference-before/` or `reference-after/`, "
        "with a log, where the work beside the run failed"
    ),
    "precision/block-N.json": (
        "which cells get another run after a block, where the study says a precision; [fields](#block-njson)"
    ),
    "idle/SESSION/DEVICE/idle.json": (
        "power before the first run of a session on a device, where a machine has a meter"
    ),
    "network/BENCHMARK/KEY/collective_benchmark.json": (
        "record of a collective benchmark; its attempts lie beside it"
    ),
    "costs/TIMING/KEY/timing.json": (
        "the record of a timing of parts of layers, or of messages; its attempts lie beside it"
    ),
    "largest/SEARCH/KEY/batch_search.json": (
        "the record of a search for the largest batch (`./ringside largest`); its attempts lie beside it, "
        "each with a folder for every batch size that was tried; [fields](#batch_searchjson)"
    ),
    "largest/batch_sizes.json": "what was found, as in `config/batch_sizes/STUDY.SITE.json`",
    "sessions/": "what each invocation or allocation did",
    "logs/": "what each rule printed",
}


# What a response needs, by trait or by name.
NEEDS = {
    "step_times": "`step_times: true` in the study",
    "token_sequences": "data sets of sequences of tokens",
    "target_accuracy": "`target_accuracy` in the study",
    "peak_known": "[a known peak](../how-to/utilization.md)",
    "energy_per_sample": "[meters](../how-to/energy.md)",
    "cost": "[a price](../how-to/cost.md)",
    "carbon": "[the grid, and meters or stated power](../how-to/cost.md)",
    "cost_to_target": "`target_accuracy` in the study, a price",
    "carbon_to_target": "`target_accuracy` in the study, the grid, meters or stated power",
}


def figures_page() -> str:
    """Return the page of figures, with the pictures of figures.gallery."""
    examples = list(gallery.examples())
    return "\n\n".join(
        [
            "# Figures",
            "A study declares its figures under the key `figures`. A study that declares none has those "
            "that the last column names. A changed declaration makes only that figure again.",
            table(
                ["figure", "answers", "by default"],
                [
                    [
                        f"[`{example.kind.name}`](#{example.kind.name})",
                        example.kind.question,
                        escaped(example.kind.drawn_by_default),
                    ]
                    for example in examples
                ],
            ),
            "Every figure is written to `results/STUDY/figures/` as PDF, SVG and PNG, at the width of a "
            "column or a page, with text of at least 7 points. Its caption (`.caption.md`) has at most 45 "
            "words: what is shown, the number of runs per cell, placement, batch scope and timing scope, and "
            "what is missing. Below it are notes of the figure, such as the baselines of speed-ups. What all "
            "figures share, such as how intervals are computed, is in the methods note (`tables/notes.md`). "
            "A framework has the same colour in all figures.",
            "## Keys",
            table(
                ["key", "meaning"],
                [
                    ["`kind`", "the kind of figure, one of those below"],
                    [
                        "`name`",
                        "name of the files; default: the kind, followed by y and x where they are given "
                        "(for accuracy, y stands in place of the kind)",
                    ],
                    ["`x`, `y`", "what the axes show"],
                    [
                        "`colour`",
                        "a factor, or a list of factors, whose combinations are the series: at most "
                        f"{MAX_SERIES}, of one framework at most {MAX_VARIANTS}",
                    ],
                    ["`facet`", "a factor, or a list of factors, whose combinations are the panels"],
                    [
                        "`filter`",
                        "draw only cells with these levels (a level or a list for each factor); intervals "
                        "still use all runs of the study",
                    ],
                ],
            ),
            "## Responses",
            "Where `y` is a response, the figure shows that of the study's key `response`, by default "
            "`epoch_time`, unless it names its own. All have the same kind of interval "
            "([Statistics](../explanation/statistics.md#other-responses)).",
            table(
                ["response", "unit", "mean", "meaning", "needs"],
                [
                    [
                        f"`{response.name}`",
                        response.unit,
                        "harmonic" if response.is_rate else "arithmetic",
                        response.meaning.partition(": ")[2],
                        NEEDS.get(response.name, ", ".join(NEEDS[trait] for trait in response.when)),
                    ]
                    for response in RESPONSES.values()
                ],
            ),
            "Figures never average over a factor: every factor that varies needs an axis, a colour or a "
            "panel, or one level by `filter`. Without `colour` and `facet`, the remaining factors are "
            "assigned automatically.",
            *(part for example in examples for part in _figure(example)),
            "## Where the pictures come from",
            "The pictures are drawn from [measured campaigns](../campaigns/README.md) by the lines above. "
            "`make gallery` draws them again.",
        ]
    )


def _figure(example: gallery.Example) -> Iterator[str]:
    kind = example.kind
    line = yaml.safe_dump(example.entry, default_flow_style=True, sort_keys=False, width=1000).strip()
    yield f"## {kind.name}"
    yield kind.shows
    yield block(f"# config/studies/{example.study}.yaml\nfigures:\n  - {line}", "yaml")
    if example.picture:
        yield f"![{kind.alt}](../images/gallery/{example.picture.name})"
    yield kind.reading
    words = {
        "x": codes(kind.x) if kind.x else "a factor",
        "y": "a [response](#responses)" if kind.shows_response else codes(kind.y or ()),
        "colour": "one factor" if kind.one_colour else "factors",
        "facet": "factors",
        "filter": "levels",
        "target": "a share; default: `target_accuracy` of the study",
    }
    keys = [
        f"`{key}`" + f" ({words[key]})" * (key in words) + ", required" * (key in kind.needs)
        for key in kind.takes
    ]
    yield f"Keys: {'; '.join(keys)}." if keys else "Keys: none but `kind` and `name`."


def columns(described: Table) -> list[str]:
    """Return the described columns of a table, `factors` standing for those of the factors."""
    return [name for names in described.columns for name in names.split(", ")]


def tables_page() -> str:
    """Return the page of tables."""
    return "\n\n".join(
        [
            "# Tables",
            "Every table is written to `results/STUDY/tables/` as CSV, Markdown and LaTeX. The CSV has the "
            "columns below with all digits. Markdown and LaTeX are rounded and have notes on the method, "
            "the number of replicates and what is missing. `comparison` and `published` are in "
            "`results/comparison/`. The choices behind them: [Statistics](../explanation/statistics.md), "
            "[Predictions](../explanation/predictions.md).",
            table(
                ["table", "answers"],
                [[f"[`{name}`](#{name})", described.answers] for name, described in TABLES.items()],
            ),
            "In all tables:",
            "\n".join(
                [
                    "* `X_low` and `X_high` are the bounds of the 95 % interval of `X`. Intervals are over "
                    "replicates, unless the table says otherwise.",
                    "* A field is empty where there is no number. A column that is empty in all rows may "
                    "be left out.",
                    "* The columns of [factors](factors.md) have the names of the factors.",
                    "* Shares, accuracies and errors are fractions, not percentages; only the columns with "
                    "the unit % are percentages.",
                ]
            ),
            *(part for described in TABLES.values() for part in _table(described)),
        ]
    )


def _table(described: Table) -> Iterator[str]:
    yield f"## {described.name}"
    yield f"**{described.answers}** {escaped(described.method)}"
    yield table(
        ["column", "unit", "meaning"],
        [
            [
                "[factors](factors.md)" if names == FACTORS else codes(names.split(", ")),
                unit,
                escaped(meaning),
            ]
            for names, (unit, meaning) in described.columns.items()
        ],
    )


def files_page() -> str:
    """Return the page of files: the layout of a study's results, and the columns of tables of records."""
    return "\n\n".join(
        [
            "# Files and columns",
            "## results/STUDY",
            "Everything that a campaign makes is in `results/STUDY/`, which is not in git. To measure a "
            "study anew, remove its folder.",
            table(["file or folder", "content"], [[code(file), content] for file, content in LAYOUT.items()]),
            "`RUN_ID` names the levels of a run, as `horovod-pytorch.small-cnn.digits.b64.n2.s1.r3`: "
            "framework, model, data set, batch size, nodes, gradient accumulation steps, replicate; any "
            "other factor stands before the replicate, as `name=level`, where it is not at its default. "
            "`KEY` is a hash of all that the measurement depends on: [what runs again, and "
            "why](../explanation/dag.md).",
            "Environments, images, wheels, prepared data, downloads and what bundles have brought are in "
            "the cache of the site (`cache`), and shared by studies.",
            "Units are in the names: `_s` seconds, `_bytes`, `_bytes_s` bytes per second, `_j` joules. CSV "
            "files are UTF-8, with a header. Empty fields are values that do not exist or were not "
            "measured.",
            "## design.csv",
            "One row per run, in planned order.",
            _columns("design"),
            *(part for name, described in RECORD_TABLES.items() for part in _records(name, described)),
            "## record.json",
            "The record of one run, written last, whatever became of the run.",
            _columns("record"),
            "## block-N.json",
            "What was decided after a block, where the study says a precision.",
            _columns("decision"),
            "## collective_benchmark.json",
            "The record of one collective benchmark.",
            _columns("collective_benchmark"),
            "## timing.json",
            "The record of one timing, of the parts of a model's layers or of messages.",
            _columns("timing"),
            "## batch_search.json",
            "The record of one search for the largest batch that fits.",
            _columns("batch_search"),
        ]
    )


def _records(name: str, described: RecordTable) -> Iterator[str]:
    yield f"## {name}.csv"
    yield f"{described.rows[0].upper()}{described.rows[1:]}. {described.note}".strip()
    yield _columns(name)


def _columns(name: str) -> str:
    heads = (
        ["field", "value", "meaning"]
        if name in ("record", "collective_benchmark", "decision", "timing", "batch_search")
        else ["column", "value", "meaning"]
    )
    written = load_yaml(CHECKOUT / "config" / "schemas" / f"{name}.schema.yaml")["properties"]
    rows = list(fields(schema(name)["properties"]))
    if FACTORS in written:  # they have a page of their own
        of_factors = [f"`{factor}`" for factor in schema("factors")["properties"]]
        place = next(number for number, row in enumerate(rows) if row[0] == of_factors[0])
        rows = [row for row in rows if row[0] not in of_factors]
        rows.insert(place, ["one per factor", "", "level of each [factor](factors.md)"])
    return table(heads, rows)


def fields(properties: Mapping[str, Any], above: str = "") -> Iterator[list[str]]:
    """Yield name, value and meaning of every field, each followed by the fields below it."""
    for name, rules in properties.items():
        yield [f"`{above}{name}`", value(rules), escaped(rules.get("description", ""))]
        yield from fields(rules.get("properties", {}), f"{above}{name}.")
        yield from fields(rules.get("items", {}).get("properties", {}), f"{above}{name}[].")
        if isinstance(entry := rules.get("additionalProperties"), dict):
            yield from fields(entry.get("properties", {}), f"{above}{name}.NAME.")
