"""The findings of the doctor: one for each check of a site."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A line of the doctor: verdict (ok, warn or FAIL), subject, code, and text with result and advice."""

    verdict: str
    subject: str
    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.verdict:4}  {self.subject}: {self.text}"


def ok(subject: str, text: str) -> Finding:
    """Return a finding without a problem."""
    return Finding("ok", subject, "ok", text)


def warn(subject: str, code: str, text: str) -> Finding:
    """Return a finding about a problem that runs survive; `code` is the kind of problem."""
    return Finding("warn", subject, code, text)


def fail(subject: str, code: str, text: str) -> Finding:
    """Return a finding about a problem that makes runs fail; `code` is the kind of problem."""
    return Finding("FAIL", subject, code, text)
