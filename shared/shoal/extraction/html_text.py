"""The text of a web page. Needs selectolax."""

from typing import Any

from shoal.extraction.decoding import decode
from shoal.extraction.kinds import Extracted, one_line

#: Marks that no text has, while one is made: the ends of lines and paragraphs, and the white space of `pre` elements.
_LINE, _PARAGRAPH, *_KEPT = map(chr, range(0xFDD0, 0xFDD5))
_WHITE_SPACE = " \t\n"
_KEEP = str.maketrans(dict(zip(_WHITE_SPACE, _KEPT, strict=True)))

#: The marks of elements that begin and end a line or a paragraph, or have a blank before them.
_MARKS = {
    **dict.fromkeys(("address", "aside", "body", "br", "caption", "center", "dd", "details", "div", "dt"), _LINE),
    **dict.fromkeys(("fieldset", "figcaption", "form", "header", "hr", "legend", "li", "main", "option"), _LINE),
    **dict.fromkeys(("summary", "tbody", "tfoot", "thead", "tr"), _LINE),
    **dict.fromkeys(("article", "blockquote", "dl", "figure", "h1", "h2", "h3", "h4", "h5", "h6"), _PARAGRAPH),
    **dict.fromkeys(("ol", "p", "pre", "section", "table", "ul"), _PARAGRAPH),
    **dict.fromkeys(("td", "th"), " "),
}

#: Elements without a text of the page: programs, pictures, and what leads to other pages.
_LEFT_OUT = {
    *("audio", "button", "canvas", "datalist", "dialog", "embed", "footer", "head", "iframe", "input", "math", "nav"),
    *("noscript", "object", "script", "select", "style", "svg", "template", "textarea", "title", "video"),
}


def extract_html(data: bytes) -> Extracted:
    """Return the text of a page, a line for each block, with empty lines between paragraphs.

    It is that of the only `main` or `article` element, if there is one, and has no navigation or footer. Raises
    UnreadableFile.
    """
    from selectolax.lexbor import LexborHTMLParser

    page = LexborHTMLParser(decode(data, may_declare=True))
    titles = [one_line(node.text()) for tag in ("title", "h1") if (node := page.css_first(tag))]
    found = [nodes[0] for tag in ("main", "article") if len(nodes := page.css(tag)) == 1]
    texts = (_text(node) for node in (*found, page.body) if node)
    return Extracted(next(filter(None, texts), ""), next(filter(None, titles), ""))


def _text(root: Any) -> str:
    paragraphs = []
    for paragraph in _marked(root).split(_PARAGRAPH):
        lines = [" ".join(line.split()).strip(_KEPT[-1]) for line in paragraph.split(_LINE) if not line.isspace()]
        if text := "\n".join(filter(None, lines)):
            paragraphs.append(text)
    text = "\n\n".join(paragraphs)
    for mark, character in zip(_KEPT, _WHITE_SPACE, strict=True):
        text = text.replace(mark, character)
    return text.strip()


def _marked(root: Any) -> str:
    """Return the texts and marks of an element. No step depends on how deep elements are nested."""
    parts: list[str] = []
    node, is_done, num_pre, root_id = root, False, 0, root.mem_id
    while True:
        tag, child = node.tag, None
        if tag == "-text":
            text = node.text(deep=False)
            parts.append(text.translate(_KEEP) if num_pre else text)
        elif tag not in _LEFT_OUT:
            parts.append(_MARKS.get(tag, ""))
            child = None if is_done else node.first_child
            if tag == "pre":
                num_pre += bool(child) - is_done
        if child:
            node = child
            continue
        if node.mem_id == root_id:
            return "".join(parts)
        following = node.next
        node, is_done = (following, False) if following else (node.parent, True)
