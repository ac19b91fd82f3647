# Replication: in a study with an interval target instead of a replicate count, decide after each block which cells
# get another run.
#   in:  the records of the blocks so far; RUNS_CSV
#   out: results/<study>/replication/block-<block>.json (config/schemas/decision.schema.yaml), which defines the next
#        block
#        RESULTS/tables/pilot.*, by ./ringside pilot

import json

from plan.decisions import rule_fields
from replication.required import Required

WANTED = CAMPAIGN.study.replicates
RULE = json.dumps(rule_fields(WANTED))
PILOT_FILES = PRODUCTS.files_of_program("replication.pilot")


if WANTED.adaptive and CAMPAIGN.is_measuring:

    REQUIRED = Required(CAMPAIGN, lambda block: checkpoints.replication.get(block=block).output.decision)
    REQUIRED_RECORDS = lambda wildcards: REQUIRED.record_paths()
    REQUIRED_INPUTS = lambda wildcards: [*REQUIRED.record_paths(), f"{RESULTS}/design.csv"]
    record_paths_of_block = REQUIRED.record_paths_of_block

    localrules:
        replication,

    checkpoint replication:
        """Decide after a block which cells get a run in the next block, because they miss the interval target."""
        input:
            records=lambda wildcards: REQUIRED.record_paths(int(wildcards.block)),
            changed=changed("replication", program_sources("replication.decide")),
        output:
            decision=f"{RESULTS}/replication/block-{{block}}.json",
        log:
            f"{RESULTS}/logs/replication/block-{{block}}.log",
        wildcard_constraints:
            block=r"\d+",
        priority: 10**9
        params:
            study=STUDY,
            site=SITE,
            rule=RULE,
        shell:
            """
            {PREFORKED} replication.decide \
                --study {params.study:q} \
                --site {params.site:q} \
                --block {wildcards.block} \
                --out {output.decision:q} \
                2>&1 | tee -p {log:q}
            """


if CAMPAIGN.is_measuring:

    localrules:
        pilot,

    rule pilot:
        """Train the first two blocks, and estimate from them whether more runs or longer ones are cheaper."""
        input:
            records=list(CAMPAIGN.pilot.record_paths.values()),
            changed=changed("pilot", program_sources("replication.pilot")),
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
            {PREFORKED} replication.pilot \
                --study {params.study:q} \
                --site {params.site:q} \
                --records available \
                --out {params.stem:q} \
                2>&1 | tee -p {log:q}
            """
