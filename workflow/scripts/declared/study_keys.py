"""The keys of config/studies/NAME.yaml: of new measurements, imported ones, and several campaigns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from common.keys import Keys, Line, Maybe, ParsedFrom, Rules, key, optional
from declared.factors import as_list
from declared.paper import Paper
from declared.replicates import IntervalTarget, Names, Percentage, Replicates, as_replicates, as_share
from declared.responses import EPOCH_TIME, RESPONSES

AnswerFactors = str | Annotated[list[str], Rules(unique=True, min_length=1, max_length=2)]


def as_names(written: str | list[str]) -> tuple[str, ...]:
    """Return the names in a list, or a single name as a list of one."""
    return tuple(as_list(written))


@dataclass(frozen=True)
class FigureKeys(Keys):
    """An entry of the key `figures` (see `declared.figure_specs`)."""

    kind: str = key("kind of figure: overview, by_factor, scaling, accuracy, interaction, ...")
    name: Maybe[str] = optional(
        "letters a to z, digits, - and _: the name of the figure's files; default: kind, y and x if given, "
        "joined by -, where y replaces the kinds accuracy and pareto",
        max_length=60,
        pattern=r"^[a-z0-9]+([_-][a-z0-9]+)*\Z",
    )
    x: Maybe[str] = optional(
        "factor on the x axis; for accuracy: epochs, updates or wall_time; for shares: run or epoch"
    )
    y: Maybe[str] = optional(
        "response on the y axis, such as throughput; default: response of the study. For accuracy: accuracy "
        "or, of next tokens, perplexity"
    )
    colour: Maybe[Names] = optional("factor or list of factors whose combinations are the series")
    facet: Maybe[Names] = optional("factor or list of factors whose combinations are the panels")
    filter: Maybe[dict[str, Any]] = optional(
        "draw only cells with these levels: a level or a list of levels for each factor", min_length=1
    )
    target: Maybe[float] = optional(
        "for time_to_accuracy: validation accuracy as a share; default: target_accuracy of the study",
        gt=0,
        le=1,
    )


def _as_given(figures: Sequence[FigureKeys]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {name: value for name, value in vars(figure).items() if value is not None} for figure in figures
    )


@dataclass(frozen=True, kw_only=True)
class Author(Keys):
    """An entry of the key `authors`, in the words of CITATION.cff."""

    family_names: str = key("family name, such as Lovelace", alias="family-names", min_length=1)
    given_names: str = key("given name, such as Ada", alias="given-names", min_length=1)
    affiliation: Maybe[str] = optional("university or company", min_length=1)
    orcid: Maybe[str] = optional(
        "ORCID iD, such as https://orcid.org/0000-0000-0000-0000",
        pattern=r"^https://orcid\.org/\d{4}-\d{4}-\d{4}-\d{3}[0-9X]\Z",
    )


@dataclass(frozen=True, kw_only=True)
class QuestionKeys(Keys):
    """The keys that every study has: its question and its products."""

    title: Line = key("title for figures and the report")
    question: Line = key("question that the study answers")
    target_accuracy: Maybe[float] = optional(
        "validation accuracy as a share, such as 0.9: the table time_to_accuracy says how long each cell "
        "trains until it reaches it",
        gt=0,
        le=1,
    )
    margin: Maybe[Annotated[float, ParsedFrom(Percentage, as_share)]] = optional(
        "difference of mean responses that does not matter, such as '5 %'; at most 50 %. The table of "
        "effects then tests which cells are equal within it"
    )
    answer_factors: Annotated[tuple[str, ...], ParsedFrom(AnswerFactors, as_names)] = key(
        "factor, or list of at most two factors, that the question is about: the answer in report and paper "
        "opens with a sentence about each; default: the first of `factors` that varies, other than model "
        "and dataset",
        default=(),
        alias="answer",
    )
    extra_p: bool = key(
        "add predictions of Extra-P to the prediction table; its environment is built first", default=False
    )
    authors: tuple[Author, ...] = key(
        "authors of the study, for CITATION.cff and the RO-Crate of the archive", default=(), min_length=1
    )
    anonymous: bool = key(
        "leave names of hosts, users, sites and authors, and paths, out of the report and of the paper, for "
        "double-blind review",
        default=False,
    )
    licence: Maybe[str] = optional(
        "licence of the study's records, figures and tables: an SPDX identifier such as CC-BY-4.0",
        pattern=r"^[A-Za-z0-9.+-]+\Z",
    )
    response: Literal[tuple(RESPONSES)] = key(  # type: ignore[valid-type]
        "what figures and tables compare; docs/reference/figures.md explains each", default=EPOCH_TIME.name
    )
    figures: Annotated[
        tuple[Any, ...], ParsedFrom(Annotated[tuple[FigureKeys, ...], Rules(min_length=1)], _as_given)
    ] = key(
        "figures of the study, in this order, instead of the default ones; docs/reference/figures.md "
        "lists the keys of each kind",
        default=(),
    )
    paper: Annotated[Paper, Rules(filled=True)] = key(
        "contents of the paper; all other figures and tables are in its supplement", default_factory=Paper
    )


@dataclass(frozen=True, kw_only=True)
class StudyKeys(QuestionKeys):
    """The keys of config/studies/NAME.yaml. A study names no account, no partition and no path."""

    seed: int = key(
        "number from which the order of the runs and the seed of every run are derived", ge=0, le=4294967295
    )
    design: Literal["full", "fractional"] = key(
        "full: all combinations of levels; fractional: a fraction of them, to screen many factors with two "
        "levels each"
    )
    resolution: Maybe[Literal[3, 4, 5]] = optional(
        "minimum resolution of a fractional design; default: 4. 3: main effects are not aliased with each "
        "other; 4: nor with two-way interactions; 5: two-way interactions are not aliased with each other, "
        "either"
    )
    replicates: Annotated[
        Replicates, ParsedFrom(Annotated[int, Rules(ge=1, le=1000)] | IntervalTarget, as_replicates)
    ] = key("independent repetitions of every cell, each with new processes: a number, or an interval target")
    factors: dict[str, Any] = key(
        "factors with their levels: a list varies a factor, a single value fixes it; `custom` has factors of "
        "your own, such as {tp: [1, 2, 4]}; everywhere else such a factor is called custom_tp "
        "(docs/reference/factors.md)",
        min_length=1,
    )
    exclude: tuple[Annotated[dict[str, Any], Rules(min_length=1)], ...] = key(
        "cells to leave out; each entry names one or more factors with a level or a list of levels, such as "
        "{framework: pytorch-single, nodes: [2, 4]}",
        default=(),
    )
    step_times: bool = key("write steps.csv with the time of every training step", default=False)
    node_check: bool = key(
        "whether the first job of the campaign compares the nodes (not with launcher local), so that later "
        "jobs leave out slow ones; the records of runs state the reasons",
        default=False,
    )


@dataclass(frozen=True, kw_only=True)
class ImportedStudyKeys(QuestionKeys):
    """The keys of config/studies/NAME.yaml for measurements made elsewhere."""

    imported: str = key(
        "folder with import.yaml, runs.csv and epochs.csv, relative to the checkout, which ./ringside import "
        "writes",
        min_length=1,
    )


@dataclass(frozen=True, kw_only=True)
class CombinedStudyKeys(QuestionKeys):
    """The keys of config/studies/NAME.yaml for the runs of several campaigns."""

    campaigns: Annotated[tuple[str, ...], Rules(unique=True, min_length=2)] = key(
        "campaigns whose runs are shown together: names of studies with results, or folders with runs.csv "
        "and epochs.csv, relative to the checkout. Each is a level of the factor custom_campaign"
    )
