"""The text of a web page. Needs selectolax."""

from typing import Any

from shoal.extraction.decoding import decode
from shoal.extraction.kinds import Extracted, one_line

#: Elements that begin and end a line.
_BLOCKS = {
    *("address", "article", "aside", "blockquote", "body", "br", "caption", "center", "dd", "details"),
    *("div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4"),
    *("h5", "h6", "header", "hr", "legend", "li", "main", "ol", "option", "p", "pre", "section", "summary"),
    *("table", "tbody", "tfoot", "thead", "tr", "ul"),
}

#: Elements that end a paragraph.
_PARAGRAPHS = {
    *("article", "blockquote", "dl", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "ol", "p", "pre"),
    *("section", "table", "ul"),
}

#: Elements with a blank before them.
_CELLS = frozenset(("td", "th"))

#: Elements without a text of the page: programs, pictures, and what leads to other pages.
_LEFT_OUT = {
    *("audio", "button", "canvas", "datalist", "dialog", "embed", "footer", "head", "iframe", "input"),
    *("math", "nav", "noscript", "object", "script", "select", "style", "svg", "template", "textarea"),
    *("title", "video"),
}

#: Elements that hold the text proper, if there is one alone of them in a page.
_MAIN = ("main", "article")


def extract_html(data: bytes) -> Extracted:
    """Return the text of a page, a line for each block, with empty lines between paragraphs.

    It is that of the only `main` or `article` element, if there is one, and has no navigation or footer. Raises
    UnreadableFile.
    """
    from selectolax.lexbor import LexborHTMLParser

    page = LexborHTMLParser(decode(data, may_declare=True))
    titles = [node.text() for tag in ("title", "h1") if (node := page.css_first(tag))]
    title = next((title for title in map(one_line, titles) if title), "")
    for tag in _MAIN:
        found = page.css(tag)
        if len(found) == 1 and (text := _text(found[0])):
            return Extracted(text, title)
    return Extracted(_text(page.body) if page.body else "", title)


def _text(root: Any) -> str:
    """Return the text of an element. No step depends on how deep elements are nested."""
    lines = _Lines()
    node, is_done = root, False
    while True:
        tag = node.tag
        if is_done:
            lines.end(tag)
        elif tag == "-text":
            lines.add(node.text(deep=False))
        elif tag and tag not in _LEFT_OUT:
            lines.begin(tag)
            if child := node.first_child:
                node = child
                continue
            lines.end(tag)
        if node.mem_id == root.mem_id:
            return str(lines)
        following = node.next
        node, is_done = (following, False) if following else (node.parent, True)


class _Lines:
    """The lines of a text while it is put together. White space is one blank, but within `pre` elements."""

    def __init__(self) -> None:
        self._num_pre = 0
        self._lines: list[str] = []
        self._parts: list[str] = []

    def add(self, text: str) -> None:
        """Add text to the line under way."""
        self._parts.append(text)

    def begin(self, tag: str) -> None:
        """Note the beginning of an element."""
        if tag in _BLOCKS:
            self._break(tag in _PARAGRAPHS)
        elif tag in _CELLS:
            self._parts.append(" ")
        self._num_pre += tag == "pre"

    def end(self, tag: str) -> None:
        """Note the end of an element."""
        if tag in _BLOCKS:
            self._break(tag in _PARAGRAPHS)
        self._num_pre -= tag == "pre"

    def _break(self, is_paragraph: bool) -> None:
        line = "".join(self._parts)
        self._parts = []
        line = line.strip("\n") if self._num_pre else " ".join(line.split())
        if line:
            self._lines.append(line)
        if is_paragraph and self._lines and self._lines[-1]:
            self._lines.append("")

    def __str__(self) -> str:
        self._break(is_paragraph=False)
        return "\n".join(self._lines).strip()
