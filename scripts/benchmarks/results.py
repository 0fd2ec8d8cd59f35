"""The figures of a run, to be looked up."""

from collections.abc import Iterable

from shoal.bench.trial import Row


class Results:
    """The rows of a run by scenario, case and target."""

    def __init__(self, rows: Iterable[Row]):
        self.rows = list(rows)
        self._by_name = {(row.scenario, row.case, row.target): row for row in self.rows}

    @property
    def scenarios(self) -> list[str]:
        """The scenarios that were run, in order."""
        return list(dict.fromkeys(row.scenario for row in self.rows))

    def median(self, scenario: str, case: str, target: str, figure: str) -> float:
        """The median of a figure.

        Raises KeyError if it was not measured.
        """
        return self._by_name[scenario, case, target].median(figure)

    def medians(self, scenario: str, figure: str, target: str = "", start: str = "") -> list[float]:
        """The medians of a figure in all rows of the scenario, or in those of a target, or whose case starts so.

        Raises KeyError if there are none.
        """
        rows = [row for row in self.rows if row.scenario == scenario and row.case.startswith(start)]
        found = [row.median(figure) for row in rows if figure in row.figures and target in ("", row.target)]
        if not found:
            raise KeyError(scenario, figure, target, start)
        return found
