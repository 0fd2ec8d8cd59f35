"""The command `shoal tune`: find the options of a search that are best on a test collection."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from shoal.cli.collection import Asked, collection_options, evaluator
from shoal.cli.options import REDIS_SETTINGS, settings_options, write_output
from shoal.evaluation.evaluation import Evaluation
from shoal.evaluation.evaluator import Evaluator
from shoal.evaluation.plot import svg
from shoal.evaluation.run import Run
from shoal.evaluation.table import shown_ms, tables
from shoal.evaluation.tuning import RERANKED, Choice, best_of, choose, modes, reranked
from shoal.settings import Settings


@click.command(short_help="Find the options of a search that are best for your queries.")
@collection_options
@click.option(
    "--rerank",
    "depths",
    type=int,
    multiple=True,
    default=RERANKED,
    show_default=True,
    help="Number of hits to try to rerank; repeatable, 0 for none.",
)
@settings_options(*REDIS_SETTINGS, "request_timeout_s", "index_home")
def tune(settings: Settings, asked: Asked, depths: tuple[int, ...], out: Path | None, plot: Path | None) -> None:
    """Try modes of a search, shares of the dense part and depths of a reranker, and say what is best and what it costs.

    The collection is named as for `shoal eval`. What the service or the index does not have is left out.
    """
    with evaluator(settings, asked) as evaluator_:
        evaluation = evaluator_.evaluate(_runs(evaluator_, [depth for depth in depths if depth > 0]))
    choice = choose(evaluation)
    click.echo(f"{tables(evaluation)}\n\n{_words(evaluation, choice)}")
    write_output(out, json.dumps(evaluation.to_map() | {"choice": asdict(choice)}, indent=2))
    write_output(plot, svg(evaluation, asked.title))


def _runs(evaluator_: Evaluator, depths: list[int]) -> list[Run]:
    """Run the modes, then the best of them with a reranker."""
    say = partial(click.echo, err=True)
    dense, *others = modes()
    runs = [evaluator_.run(dense), *evaluator_.run_those_there(others, say)]
    best = runs[best_of(evaluator_.evaluate(runs, with_times=False).values)]
    return runs + evaluator_.run_those_there(reranked(best.setting, depths), say)


def _words(evaluation: Evaluation, choice: Choice) -> str:
    best = evaluation.runs[choice.best].setting
    lines = [
        f"best: {_outline(evaluation, choice.best)}",
        f"expected of it on other queries of the kind: {evaluation.measures[0]} {100 * choice.held_out:.1f} "
        "(mean over queries that had no part in the choice)",
    ]
    if choice.fastest != choice.best:
        lines.append(f"faster, and not known to be worse: {_outline(evaluation, choice.fastest)}")
    return "\n".join([*lines, f"its options: {json.dumps(best.options)}"])


def _outline(evaluation: Evaluation, place: int) -> str:
    mean, times = evaluation.intervals[place][0].mean, evaluation.times[place]
    first = evaluation.intervals[0][0].mean
    cost = f", {shown_ms(times.p50_ms)} ms a search" if times else ""
    return (
        f"{evaluation.names[place]}: {evaluation.measures[0]} {100 * mean:.1f}, "
        f"{100 * (mean - first):+.1f} over {evaluation.names[0]}{cost}"
    )
