"""Files of TREC: a run, as trec_eval reads it."""

from typing import TextIO

from shoal.evaluation.run import Run


def write_run(file: TextIO, run: Run, name: str = "shoal") -> None:
    """Write the hits of a run: a line with query, Q0, document, rank, score and name for each.

    The score is 1 / rank: trec_eval sorts by it. Ids with white space in them have it replaced by underscores.
    """
    for query, ranking in run.rankings.items():
        for rank, document in enumerate(ranking, 1):
            file.write(f"{'_'.join(query.split())} Q0 {'_'.join(document.split())} {rank} {1 / rank:.6f} {name}\n")
