# Provenance: what figures and tables were made of, and the archive that makes them again.
#   in:  all figures and tables; what stands behind them: study, site, locks, code, data, records
#   out: RESULTS/manifest.json (config/schemas/manifest.schema.yaml); RESULTS/<study>.tar.gz

import json

from common.files import digest_text
from provenance import differing, sources

# Of every product its files, and what Snakemake makes it of.
PRODUCTS = {
    **{
        f"figures/{name}": {
            "files": files,
            "made_of": [
                RUNS_CSV,
                EPOCHS_CSV,
                *[file for some in BESIDE[name].values() for file in some],
                *DRAWN_BY[name],
            ],
        }
        for name, files in FIGURE_FILES.items()
    },
    **{
        f"tables/{name}": {
            "files": expand(f"{RESULTS}/tables/{name}.{{suffix}}", suffix=["csv", "md", "tex"]),
            "made_of": [
                RUNS_CSV,
                *([NETWORK_CSV] if SWEEPS.worth_drawing else []),
                *(
                    PREDICTION_CODE
                    if name in PREDICTION_TABLES
                    else NETWORK_CODE if name == "network" else ANALYSIS_CODE
                ),
            ],
        }
        for name in [*TABLES, *PREDICTION_TABLES, *(["network"] if NETWORK_PRODUCTS else [])]
    },
}
BEHIND = sorted({file for product in PRODUCTS.values() for file in product["made_of"]})
MAKES_FIGURES = [file for file in BEHIND if file.endswith(sources.CODE)]
MANIFEST = f"{RESULTS}/manifest.json"

if workflow.is_main_process:
    for line in differing.differing(CAMPAIGN, Path(MANIFEST), MAKES_FIGURES):
        print(line, file=sys.stderr)


localrules:
    manifest,
    archived,


rule manifest:
    """Write down what all figures and tables were made of."""
    input:
        [file for product in PRODUCTS.values() for file in product["files"]],
        BEHIND,
        code=[f"{SCRIPTS}/provenance/{module}.py" for module in ["manifest", "sources"]],
    output:
        manifest=MANIFEST,
    log:
        f"{RESULTS}/logs/manifest.log",
    resources:
        machine=1,
    params:
        study=STUDY,
        site=SITE,
        records=str(CAMPAIGN.published or CAMPAIGN.mode),
        products=json.dumps(PRODUCTS),
        made_of=digest_text(json.dumps(sources.sources(CAMPAIGN, MAKES_FIGURES), sort_keys=True)),  # by content, not by date
    shell:
        """
        {WARM} provenance.manifest \
            --study {params.study:q} \
            --site {params.site:q} \
            --records {params.records:q} \
            --products {params.products:q} \
            --out {output.manifest:q} \
            2>&1 | tee {log:q}
        """


rule archive:
    """Pack everything behind the figures into one file that makes them again on another machine."""
    input:
        STANDS_ON,
        f"{RESULTS}/{STUDY}.tar.gz",


rule archived:
    """Write the archive: the workflow, the records, what was made of them, and what it says of itself."""
    input:
        manifest=MANIFEST,
        code=expand(
            f"{SCRIPTS}/provenance/{{module}}.py", module=["account", "appendix", "archive", "citation", "crate"]
        ),
    output:
        archive=f"{RESULTS}/{STUDY}.tar.gz",
    log:
        f"{RESULTS}/logs/archive.log",
    resources:
        machine=1,
    params:
        study=STUDY,
        site=SITE,
        records=str(CAMPAIGN.published or CAMPAIGN.mode),
    shell:
        """
        {WARM} provenance.archive \
            --study {params.study:q} \
            --site {params.site:q} \
            --records {params.records:q} \
            --manifest {input.manifest:q} \
            --out {output.archive:q} \
            2>&1 | tee {log:q}
        """
