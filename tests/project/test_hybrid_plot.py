"""scripts/hybrid_plot.py draws what `shoal eval --json` has written."""

from typing import Any
from xml.etree import ElementTree

import hybrid_plot


def setting(value: float, **options: Any) -> dict[str, Any]:
    """Return a setting as `shoal eval --json` has it."""
    return {"options": options, "measures": {"nDCG@10": {"mean": value}}}


def test_the_picture_has_a_panel_for_each_collection_with_its_figures() -> None:
    found = {
        "settings": [
            setting(0.4, mode="dense"),
            setting(0.35, mode="lexical"),
            setting(0.45, mode="hybrid", alpha=0.7),
            setting(0.9, mode="hybrid", alpha=0.7, rerank={"top_n": 50}),
        ]
    }
    curve = hybrid_plot.curve_of(found)
    assert list(curve) == [0.0, 0.7, 1.0]
    assert [round(value, 6) for value in curve.values()] == [35, 45, 40]
    picture = ElementTree.fromstring(hybrid_plot.svg({"A & B": curve, "C": curve}))
    texts = [element.text for element in picture if element.tag.endswith("text")]
    assert {"A & B", "C"} <= {*texts}
    assert texts.count("dense 40.0, hybrid 45.0 (+5.0)") == 2
