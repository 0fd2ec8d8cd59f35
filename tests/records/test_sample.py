"""The sample headlines: at least 1,000, all different, in topics of at least 40."""

from collections import Counter

from shoal.records.source import Source
from shoal_workers.build_command import SAMPLE


def test_there_are_a_thousand_distinct_headlines_of_25_topics() -> None:
    documents = list(Source(SAMPLE, "headline"))
    texts = [document.text for document in documents]
    assert len({" ".join(text.lower().split()) for text in texts}) == len(texts) >= 1_000
    assert all(text == text.strip() and 15 <= len(text) <= 150 for text in texts)
    assert Counter(" ".join(text.split()[:3]) for text in texts).most_common(1)[0][1] <= 5
    topics = Counter(document.fields["topic"] for document in documents)
    assert (len(topics), min(topics.values()) >= 40) == (25, True)
