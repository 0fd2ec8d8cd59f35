"""The text of a Markdown file: its words without the signs of its form, as far as these stand alone."""

import re
from collections.abc import Iterator

from shoal.extraction.decoding import decode
from shoal.extraction.kinds import Extracted, one_line

_HEADING = re.compile(r" {0,3}#{1,6}[ \t](.*)")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-{2,})[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_RULE = re.compile(r" {0,3}(?:[-*_|:][ \t]*){3,}$")
_QUOTE = re.compile(r"^(?: {0,3}>[ \t]?)+")
_DEFINITION = re.compile(r" {0,3}\[[^\]\[]{1,200}\]:[ \t]+\S{1,2000}")
_LINK = re.compile(r"!?\[([^\]\[\n]{0,500})\](?:\([^()\n]{0,2000}\)|\[[^\]\[\n]{0,200}\])")
_TAG = re.compile(r"</?[A-Za-z][^<>\n]{0,500}>")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3}|_{1,3}|`{1,2})(?=\S)([^*_`\n]{1,500}?)(?<=\S)\1(?!\w)")
_TITLE = re.compile(r"^title:(.*)", re.MULTILINE)


def extract_markdown(data: bytes) -> Extracted:
    """Return the text of a file, and its title: that of its front matter, or its first heading.

    Raises UnreadableFile.
    """
    text, front = decode(data).replace("\r\n", "\n"), ""
    if text.startswith("---\n") and (end := text.find("\n---\n", 3)) >= 0:
        front, text = text[4:end], text[end + 5 :]
    titles = [found[1].strip(" \t").strip("\"'") for found in _TITLE.finditer(front)]
    lines = list(_lines(_without_comments(text).split("\n")))
    titles += [line for line, is_heading in lines if is_heading]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(line for line, _ in lines))
    return Extracted(text.strip(), next(filter(None, map(one_line, titles)), ""))


def _without_comments(text: str) -> str:
    parts, start = [], 0
    while (begin := text.find("<!--", start)) >= 0 and (end := text.find("-->", begin + 4)) >= 0:
        parts.append(text[start:begin])
        start = end + 3
    return "".join([*parts, text[start:]])


def _lines(lines: list[str]) -> Iterator[tuple[str, bool]]:
    """Yield the text of each line, and whether it is a heading; code stays as it is."""
    fence = ""
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        found = _FENCE.match(line)
        if fence:
            if found and found[1].startswith(fence):
                fence = ""
            else:
                yield line, False
        elif found:
            fence = found[1]
        elif heading := _HEADING.match(line):
            yield _inline(heading[1].lstrip(" \t").rstrip(" \t#")), True
        elif not _RULE.match(line) and not _UNDERLINE.match(line) and not _DEFINITION.match(line):
            is_heading = bool(line.strip() and following.strip() and _UNDERLINE.match(following))
            yield _inline(_QUOTE.sub("", line)), is_heading


def _inline(line: str) -> str:
    return _EMPHASIS.sub(r"\2", _TAG.sub("", _LINK.sub(r"\1", line)))
