# Precision: for a study that sets a precision target instead of a replicate count, which cells get another run,
# decided after each block.
#   in:  the records of the blocks so far; RUNS_CSV
#   out: results/<study>/precision/block-<block>.json (config/schemas/decision.schema.yaml), which defines the next
#        block
#        RESULTS/tables/pilot.*, by ./ringside pilot

import json

from plan.decisions import rule_fields
from precision.required import Required

WANTED = CAMPAIGN.study.replicates
RULE = json.dumps(rule_fields(WANTED))
PILOT_FILES = PRODUCTS.files("precision.pilot")


if WANTED.adaptive and CAMPAIGN.mode == "campaign":

    REQUIRED = Required(CAMPAIGN, lambda block: checkpoints.precision.get(block=block).output.decision)
    REQUIRED_RECORDS = lambda wildcards: REQUIRED.records()
    REQUIRED_INPUTS = lambda wildcards: [*REQUIRED.records(), f"{RESULTS}/design.csv"]
    records_of_block = REQUIRED.of_block

    localrules:
        precision,

    checkpoint precision:
        """Decide after a block which cells are not yet precise; these get a run in the next block."""
        input:
            records=lambda wildcards: REQUIRED.records(int(wildcards.block)),
            changed=changed("precision", program_sources("precision.decide")),
        output:
            decision=f"{RESULTS}/precision/block-{{block}}.json",
        log:
            f"{RESULTS}/logs/precision/block-{{block}}.log",
        wildcard_constraints:
            block=r"\d+",
        priority: 10**9
        params:
            study=STUDY,
            site=SITE,
            rule=RULE,
        shell:
            """
            {PREFORKED} precision.decide \
                --study {params.study:q} \
                --site {params.site:q} \
                --block {wildcards.block} \
                --out {output.decision:q} \
                2>&1 | tee -p {log:q}
            """


if CAMPAIGN.mode == "campaign":

    localrules:
        pilot,

    rule pilot:
        """Train the first two blocks, and estimate from them whether more runs or longer ones are cheaper."""
        input:
            records=list(CAMPAIGN.pilot.record_paths.values()),
            changed=changed("pilot", program_sources("precision.pilot")),
        output:
            PILOT_FILES,
        log:
            f"{RESULTS}/logs/tables/pilot.log",
        params:
            study=STUDY,
            site=SITE,
            stem=subpath(output[0], strip_suffix=".csv"),
        shell:
            """
            {PREFORKED} precision.pilot \
                --study {params.study:q} \
                --site {params.site:q} \
                --records available \
                --out {params.stem:q} \
                2>&1 | tee -p {log:q}
            """
