"""Size limits, checked before anything is put into the queue."""

from collections.abc import Sequence

from shoal.errors import TooLarge


def check_texts(texts: Sequence[str], max_texts: int, max_text_chars: int, remedy: str) -> None:
    """Raises TooLarge if there are too many texts, saying the remedy, or if one is too long."""
    if len(texts) > max_texts:
        raise TooLarge(f"the request has {len(texts):,} texts and may have {max_texts:,}: {remedy}")
    for number, text in enumerate(texts):
        if len(text) > max_text_chars:
            raise TooLarge(
                f"text {number} has {len(text):,} characters and may have {max_text_chars:,}: cut it into passages"
            )
