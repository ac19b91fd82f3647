"""CITATION.cff of a study (Citation File Format 1.2.0)."""

from typing import Any

import yaml

from declared.study import Study


def authors(study: Study) -> list[dict[str, str]]:
    """Who is to be cited; the authors of the study, without a name, where it names none."""
    named = [
        {name.replace("_", "-"): value for name, value in vars(author).items() if value} for author in study.authors
    ]
    return named or [{"name": f"The authors of {study.name}"}]


def citation(study: Study, date: str, version: str | None) -> str:
    """The file's text. `date`: of the last record, YYYY-MM-DD; `version`: the commit."""
    said: dict[str, Any] = {
        "cff-version": "1.2.0",
        "message": "If you use these records, please cite them as below.",
        "type": "dataset",
        "title": study.title,
        "abstract": study.question,
        "authors": authors(study),
        "date-released": date,
    }
    if version:
        said["commit"] = version
    if study.licence:
        said["license"] = study.licence
    return yaml.safe_dump(said, sort_keys=False, allow_unicode=True)
