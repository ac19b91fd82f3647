"""Read a report without a browser."""

import base64
import gzip
import json
from html.parser import HTMLParser
from pathlib import Path


class Page(HTMLParser):
    """What an HTML page consists of: elements with attributes, scripts' texts by id, visible text."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.text = ""
        self.starts: dict[str, int] = {}  # of sections, in the text
        self.ends: dict[str, int] = {}
        self._sections: list[str] = []
        self._inside: list[str] = []
        self._script = ""
        self.feed(file.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "section":
            self._sections.append(dict(attrs).get("id") or "")
            self.starts[self._sections[-1]] = len(self.text)
        if tag in ("script", "style"):
            self._inside.append(tag)
            self._script = dict(attrs).get("id") or f"{tag}-{len(self.scripts)}"

    def handle_endtag(self, tag: str) -> None:
        if tag == "section":
            self.ends[self._sections.pop()] = len(self.text)
        if tag in ("script", "style"):
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        else:
            self.text += data

    def text_of(self, section: str) -> str:
        """Return the visible text of a section."""
        return self.text[self.starts[section] : self.ends[section]]

    @property
    def data(self) -> dict:
        return json.loads(self.scripts["page-data"])

    def unpacked(self, name: str) -> str:
        return gzip.decompress(base64.b64decode(self.scripts[name])).decode()

    def details(self) -> list[dict]:
        names = [name for name in self.scripts if name.startswith("block-")]
        return [run for name in names for run in json.loads(self.unpacked(name))]
