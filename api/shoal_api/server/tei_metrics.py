"""Text Embeddings Inference's names for what Shoal measures, for dashboards and autoscalers that know them."""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

#: The last part of the routes that embed, of all protocols: those of a protocol may be mounted below a path.
_ROUTES = ("/embed", "/embed_all", "/similarity", "/", "/embeddings", "/vectors")


def tei_metrics(families: Iterable[Metric]) -> Iterator[Metric]:
    """Yield the metrics that can be made of Shoal's own.

    They have the names of that service, which ends counters with no `_total`; so they count as of no type.
    """
    found = {family.name: family.samples for family in families}
    requests = [sample for sample in found.get("shoal_http_request_seconds", ()) if _embeds(sample)]
    counted = [sample for sample in requests if sample.name.endswith("_count")]
    failed: Counter[str] = Counter()
    for sample in counted:
        if word := _failure(int(sample.labels["status"])):
            failed[word] += int(sample.value)
    num_requests = sum(sample.value for sample in counted)
    yield _untyped("te_request_count", "Requests to embed or compare texts.", num_requests)
    yield _untyped("te_request_success", "Those that were answered.", num_requests - failed.total())
    failures = Metric("te_request_failure", "Those that were answered with an error.", "unknown")
    for word in ("validation", "overloaded", "inference"):
        failures.add_sample(failures.name, {"err": word}, failed[word])
    yield failures
    yield _durations([sample for sample in requests if int(sample.labels["status"]) < 400])
    if "shoal_lane_texts" in found:
        num_texts = sum(sample.value for sample in found["shoal_lane_texts"])
        yield _untyped("te_queue_size", "Texts that wait or are being embedded, of all lanes.", num_texts)


def _embeds(sample: Sample) -> bool:
    route, method = sample.labels.get("route", ""), sample.labels.get("method")
    return method == "POST" and route.endswith(_ROUTES)


def _failure(status: int) -> str:
    """Return the word for an error with this status; an empty one for a status of success."""
    if status == 429:
        return "overloaded"
    return "" if status < 400 else "inference" if status >= 500 or status == 424 else "validation"


def _untyped(name: str, meaning: str, value: float) -> Metric:
    metric = Metric(name, meaning, "unknown")
    metric.add_sample(name, {}, value)
    return metric


def _durations(answered: Iterable[Sample]) -> Metric:
    """Return the histogram of the times to answer, of all routes and statuses together."""
    sums: dict[tuple[str, str], float] = {}
    for sample in answered:
        suffix = sample.name.rpartition("_")[2]
        if suffix != "created":
            key = (suffix, sample.labels.get("le", ""))
            sums[key] = sums.get(key, 0.0) + sample.value
    metric = Metric("te_request_duration", "Time to answer those that were answered, in seconds.", "histogram")
    for (suffix, limit), value in sums.items():
        metric.add_sample(f"{metric.name}_{suffix}", {"le": limit} if limit else {}, value)
    return metric
