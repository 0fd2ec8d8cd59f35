"""The sample headlines: at least 1,000, all different, in topics of at least 40."""

from collections import Counter

from shoal.records.source import Source
from shoal_workers.build_command import SAMPLE

SOURCE = Source(SAMPLE, "headline")


def test_there_are_a_thousand_distinct_headlines() -> None:
    texts = [document.text for document in SOURCE]
    assert len(texts) >= 1_000
    assert len({" ".join(text.lower().split()) for text in texts}) == len(texts)


def test_there_are_25_topics_of_40_or_so() -> None:
    topics = Counter(document.fields["topic"] for document in SOURCE)
    assert len(topics) == 25
    assert min(topics.values()) >= 40


def test_they_read_like_headlines() -> None:
    texts = [document.text for document in SOURCE]
    assert all(text == text.strip() and 15 <= len(text) <= 150 for text in texts)
    openings = Counter(" ".join(text.split()[:3]) for text in texts)
    assert openings.most_common(1)[0][1] <= 5
