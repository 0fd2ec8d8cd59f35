"""What precision costs in quality: public judgements, with vectors and hits of a running service."""

from stack import DATA, datasets, index_of

from benchmarks.plan import Plan, precisions, say
from benchmarks.server import shoal
from shoal.bench.trial import Row


def run(plan: Plan) -> list[Row]:
    """STS-B dev and Cranfield in each precision; once, because nothing in them is left to chance."""
    if not (DATA / "datasets.py").exists():
        say("quality: the data folder is not there; name it with SHOAL_DATA")
        return []
    import quality  # which imports torch

    rows = []
    index = index_of("cranfield", datasets().cranfield()[0])
    for name, environment in precisions().items():
        with shoal(name, {"default": index}, environment=environment) as server:
            rows.append(Row("quality", "STS-B dev", name, {"Spearman x 100": [quality.sts(server.url)]}))
            rows.append(Row("quality", "Cranfield", name, {"nDCG@10 x 100": [quality.cranfield(server.url)]}))
    return rows
