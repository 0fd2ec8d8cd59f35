"""Dead letters as lists have them."""

from typing import Any

from shoal.queue.blame import DeadLetter


def describe(letter: DeadLetter) -> dict[str, Any]:
    """Return what names a dead letter and its job, without texts, as JSON has it."""
    outline = letter.outline()
    return {
        "id": letter.id,
        "time": letter.time_s,
        "job_id": outline.id,
        "op": outline.op,
        "num_texts": outline.num_texts,
        "lane": letter.lane,
        "deliveries": letter.deliveries,
        "worker": letter.worker,
        "reason": letter.reason,
    }
