# Provenance: what figures and tables were made from, and the archive that reproduces them.
#   in:  all figures and tables, and what they depend on: study, site, locks, code, data, records
#   out: RESULTS/manifest.json (config/schemas/manifest.schema.yaml); RESULTS/<study>.tar.gz

import json

from common.content_digests import record_path
from provenance import differing, sources

# MAKING: for each job of figures and tables, its files and the code that makes them. MADE: for each product, its
# files and the
# record of what they were made from.
MAKING = [
    *(
        (files, program_sources("figures.draw", PRODUCTS.figure_module(name)))
        for name, files in PRODUCTS.figure_files.items()
    ),
    *(
        (
            PRODUCTS.files_of_program(program),
            [*program_sources(*program.modules), *PRODUCTS.framework_files(program)],
        )
        for program in PRODUCTS.programs
    ),
]
MADE = {}
for files, _ in MAKING:
    for file in files:
        name = Path(file).relative_to(RESULTS)
        product = MADE.setdefault(str(name.with_name(name.name.split(".")[0])), {"files": []})
        product["files"].append(file)
        product["made_of"] = str(record_path(files[0]))
MAKES_FIGURES = sorted({file for _, code_of in MAKING for file in code_of})
MANIFEST = f"{RESULTS}/manifest.json"

if workflow.is_main_process:
    for line in differing.list_changes(CAMPAIGN, Path(MANIFEST), MAKES_FIGURES):
        print(line, file=sys.stderr)


localrules:
    manifest,
    archived,


rule manifest:
    """Write down what all figures and tables were made from."""
    input:
        [file for product in MADE.values() for file in product["files"]],
        PRODUCTS.record_files("runs", "epochs", "network", "phases", "trace_steps", "replay_steps"),
        changed=changed("manifest", program_sources("provenance.manifest")),
        records=REQUIRED_RECORDS or CAMPAIGN.existing_record_paths(),
    output:
        manifest=MANIFEST,
    log:
        f"{RESULTS}/logs/manifest.log",
    params:
        study=STUDY,
        site=SITE,
        records=str(CAMPAIGN.published_folder or CAMPAIGN.mode),
        products=json.dumps(MADE),
        sources_digest=sources.digest(sources.collect_sources(CAMPAIGN, MAKES_FIGURES)),
        keep=PILOT_FILES,
    shell:
        """
        {PREFORKED} provenance.manifest \
            --study {params.study:q} \
            --site {params.site:q} \
            --records {params.records:q} \
            --products {params.products:q} \
            --sources-digest {params.sources_digest:q} \
            --keep {params.keep:q} \
            --out {output.manifest:q} \
            2>&1 | tee -p {log:q}
        """


rule archive:
    """Pack everything behind the figures into one file that reproduces them on another machine."""
    input:
        REQUIRED_INPUTS,
        f"{RESULTS}/{STUDY}.tar.gz",


rule archived:
    """Write the archive: the workflow, the records, their products, and a description."""
    input:
        manifest=MANIFEST,
        records=REQUIRED_INPUTS or CAMPAIGN.existing_record_paths(),
        changed=changed("archived", program_sources("provenance.archive")),
    output:
        archive=f"{RESULTS}/{STUDY}.tar.gz",
    log:
        f"{RESULTS}/logs/archive.log",
    params:
        study=STUDY,
        site=SITE,
        records=str(CAMPAIGN.published_folder or CAMPAIGN.mode),
    shell:
        """
        {PREFORKED} provenance.archive \
            --study {params.study:q} \
            --site {params.site:q} \
            --records {params.records:q} \
            --manifest {input.manifest:q} \
            --out {output.archive:q} \
            2>&1 | tee -p {log:q}
        """
