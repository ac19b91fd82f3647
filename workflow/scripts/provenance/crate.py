"""Describe a campaign as a Workflow Run RO-Crate (0.5, on RO-Crate 1.1).

Leo et al., Recording provenance of workflow runs with RO-Crate, PLOS ONE 19 (2024).
"""

import mimetypes
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from rocrate.model.contextentity import ContextEntity
from rocrate.rocrate import ROCrate

from declared.imported import Imported
from declared.study import Study
from provenance.citation import list_authors

PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
SOFTWARE = {  # start of a record's library_version -> home page
    "torch": "https://pytorch.org",
    "tensorflow": "https://www.tensorflow.org",
    "horovod": "https://horovod.ai",
    "LBANN": "https://lbann.readthedocs.io",
    "tarantella": "https://tarantella.readthedocs.io",
}
README = "README.md"
SNAKEMAKE = "https://snakemake.github.io"


def build_crate(
    study: Study,
    runs: pd.DataFrame,
    inputs: Mapping[str, str],
    results: Mapping[str, str],
    other_files: Mapping[str, str],
    workflow: str,
    versions: Mapping[str, str | None],
) -> dict[str, Any]:
    """Return the content of ro-crate-metadata.json.

    All paths are paths in the archive; those of folders end with a slash.

    Args:
        study: The study.
        runs: Rows of runs.csv.
        inputs: Descriptions of the workflow's inputs by path.
        results: Descriptions of its results by path.
        other_files: Descriptions of all other files by path.
        workflow: Path of the Snakefile.
        versions: Commit of `ringside`, and version of `snakemake`.
    """
    crate = ROCrate(version="1.1")
    crate.name, crate.description = study.title, study.question
    ended = runs["ended_at"].dropna().astype(str)
    started = runs["started_at"].dropna().astype(str)
    crate.root_dataset["datePublished"] = ended.max() if len(ended) else None
    crate.root_dataset["license"] = add_licence(crate, study)
    if study.imported:
        crate.root_dataset["isBasedOn"] = add_source(crate, study.imported)
    people = add_authors(crate, study)
    crate.root_dataset["author"] = unwrap_single(people)
    crate.root_dataset["conformsTo"] = [
        crate.add(
            ContextEntity(
                crate,
                address,
                properties={"@type": "CreativeWork", "name": name, "version": address.rpartition("/")[2]},
            )
        )
        for address, name in PROFILES.items()
    ]
    main = crate.add_workflow(
        dest_path=workflow,
        main=True,
        lang="snakemake",
        lang_version=versions["snakemake"],
        properties={"name": "Ringside", "encodingFormat": "text/plain"},
    )
    main["version"] = versions["ringside"] or "not under version control"
    main["url"] = SNAKEMAKE
    main["softwareRequirements"] = unwrap_single(
        [
            crate.add(
                ContextEntity(
                    crate,
                    url,
                    properties={
                        "@type": "SoftwareApplication",
                        "name": name,
                        "softwareVersion": library_version,
                        "url": url,
                    },
                )
            )
            for url, name, library_version in trained_software(runs)
        ]
    )
    input_entities = [add_file(crate, path, description) for path, description in inputs.items()]
    result_entities = [add_file(crate, path, description) for path, description in results.items()]
    main["input"] = add_parameters(crate, input_entities)
    main["output"] = add_parameters(crate, result_entities)
    for path, description in other_files.items():
        entity = add_file(crate, path, description)
        if path == README:
            entity["about"] = crate.root_dataset
    ok = int((runs["status"] == "ok").sum())
    properties = {
        "name": f"Campaign of the study {study.name}",
        "description": f"Tables and figures of {len(runs)} runs, of which {ok} succeeded",
        "actionStatus": "http://schema.org/CompletedActionStatus",
    }
    if not study.imported:  # Times of imported runs belong to the source, not to this campaign.
        properties |= {"startTime": format_time(started.min())} if len(started) else {}
        properties |= {"endTime": format_time(ended.max())} if len(ended) else {}
    action = crate.add_action(
        main, identifier="#campaign", object=input_entities, result=result_entities, properties=properties
    )
    action["agent"] = unwrap_single(people)
    crate.root_dataset["mentions"] = action
    metadata: dict[str, Any] = crate.metadata.generate()
    return metadata


def unwrap_single(entities: list[Any]) -> Any:
    """Return one entity itself and several as a list, the way RO-Crates write JSON-LD."""
    return entities[0] if len(entities) == 1 else entities


def format_time(time: str) -> str:
    """Return a record's time with its offset from UTC in digits."""
    return time.replace("Z", "+00:00")


def add_authors(crate: ROCrate, study: Study) -> list[ContextEntity]:
    """Add and return the authors; an organization if the study names none."""
    entities = []
    for number, author in enumerate(list_authors(study)):
        if "name" in author:
            properties = {"@type": "Organization", "name": author["name"]}
        else:
            properties = {"@type": "Person", "name": f"{author['given-names']} {author['family-names']}"}
        entity = crate.add(
            ContextEntity(crate, author.get("orcid", f"#author-{number + 1}"), properties=properties)
        )
        if "affiliation" in author:
            affiliation = {"@type": "Organization", "name": author["affiliation"]}
            entity["affiliation"] = crate.add(
                ContextEntity(crate, f"#affiliation-{number + 1}", properties=affiliation)
            )
        entities.append(entity)
    return entities


def add_licence(crate: ROCrate, study: Study) -> ContextEntity:
    """Add and return the licence of the records."""
    if study.licence:
        address, name = f"https://spdx.org/licenses/{study.licence}", study.licence
        description = "of records, figures and tables"
    else:
        address, name, description = "#no-licence", "No licence", "The authors state no licence."
    properties = {"@type": "CreativeWork", "name": name, "description": description}
    return crate.add(ContextEntity(crate, address, properties=properties))


def add_source(crate: ROCrate, imported: Imported) -> ContextEntity:
    """Add and return the source of imported measurements, with its licence."""
    stated = imported.description.stated
    is_spdx = re.fullmatch(r"[A-Za-z0-9.+-]+", stated.licence)
    licence = crate.add(
        ContextEntity(
            crate,
            f"https://spdx.org/licenses/{stated.licence}" if is_spdx else "#licence-of-source",
            properties={
                "@type": "CreativeWork",
                "name": stated.licence,
                "description": "of the measurements",
            },
        )
    )
    properties: dict[str, Any] = {"@type": "CreativeWork", "name": stated.source, "license": licence}
    if stated.citation:
        properties["citation"] = stated.citation
    return crate.add(ContextEntity(crate, stated.url or "#source", properties=properties))


def trained_software(runs: pd.DataFrame) -> Iterable[tuple[str, str, str]]:
    """Yield address, name and versions of each training library in the runs."""
    versions = {part.strip() for text in runs["library_version"].dropna() for part in str(text).split(",")}
    by_address: dict[str, list[str]] = {}
    for part in sorted(versions):
        name, _, version = part.partition(" ")
        address = next((url for start, url in SOFTWARE.items() if name.startswith(start)), None)
        if address and version:
            by_address.setdefault(address, []).append(part)
    for address, parts in by_address.items():
        yield address, parts[0].partition(" ")[0], ", ".join(parts)


def add_file(crate: ROCrate, path: str, description: str) -> Any:
    """Add and return a file or a folder."""
    properties = {"name": description}
    if path.endswith("/"):
        return crate.add_dataset(dest_path=path, properties=properties)
    media_type = mimetypes.guess_type(path)[0] or "text/plain"
    return crate.add_file(dest_path=path, properties=properties | {"encodingFormat": media_type})


def add_parameters(crate: ROCrate, entities: Sequence[Any]) -> list[Any]:
    """Add and return a formal parameter for each entity, with the entity as its example."""
    parameters = []
    for entity in entities:
        kind = "Dataset" if entity.id.endswith("/") else "File"
        parameter = crate.add_formal_parameter(
            name=entity["name"],
            additionalType=kind,
            identifier=f"#parameter-{entity.id}",
            properties={"workExample": {"@id": entity.id}},
        )
        entity["exampleOfWork"] = parameter
        parameters.append(parameter)
    return parameters
