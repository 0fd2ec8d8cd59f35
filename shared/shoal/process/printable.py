"""Texts from outside on a terminal and in a log: on one line, and without what a terminal would obey."""

#: Control characters, separators of lines and paragraphs, characters that turn the direction of a text, and halves of
#: surrogate pairs, which no terminal takes.
_UNPRINTABLE = (
    range(0x20),
    range(0x7F, 0xA0),
    range(0x2028, 0x202F),
    range(0x2066, 0x206A),
    range(0xD800, 0xE000),
)

#: Their escapes, as JSON has them.
_ESCAPES = {code: f"\\u{code:04x}" for codes in _UNPRINTABLE for code in codes} | {9: r"\t", 10: r"\n", 13: r"\r"}


def printable(text: str) -> str:
    """Return the text on one line, with JSON's escapes for what a terminal would obey; JSON stays JSON."""
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPES)
