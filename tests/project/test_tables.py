"""The tables of settings, error codes and metrics in docs/ agree with the code; `scripts/tables` writes them."""

import re
from dataclasses import fields

from api_stub import StubWorker
from flask.testing import FlaskClient
from page import ERRORS, agree, table
from prometheus_client.parser import text_string_to_metric_families

from shoal.errors import BY_CODE
from shoal.settings import Settings, variable
from shoal_api.schema.error_statuses import STATUS

pytest_plugins = ["api_fixtures"]

OPERATING = "docs/operating.md"


def test_every_setting_is_listed_with_its_default_and_help() -> None:
    rows = []
    for item in fields(Settings):
        choices = item.metadata["choices"]
        text = item.metadata["help"] + (f" One of {', '.join(choices)}." if choices else "")
        rows.append((f"`{variable(item.name)}`", f"`{item.default}`" if item.default != "" else "", text))
    agree(OPERATING, "variable", rows)


def test_every_error_code_is_listed_with_its_status() -> None:
    """The columns with the occasion and the remedy of a code are written by hand."""
    listed = table(ERRORS, "Code")
    rows = []
    for code in dict.fromkeys([*STATUS, *BY_CODE]):
        _, when, remedy = listed.get(f"`{code}`", ["", "", ""])
        rows.append((f"`{code}`", str(STATUS.get(code, "exit 1")), when, remedy))
    agree(ERRORS, "Code", rows)
    assert all(when and remedy for *_, when, remedy in rows)


def test_every_metric_is_listed_with_its_labels(api: FlaskClient, stub: StubWorker) -> None:
    stub.announce()
    api.get("/nowhere")
    api.post("/embed", json={"inputs": ["a", "b"]})
    exposed = api.get("/metrics").get_data(as_text=True)
    kinds = dict(re.findall(r"^# TYPE (\w+(?<!_created)) (\w+)$", exposed, re.MULTILINE))
    rows = []
    for family in text_string_to_metric_families(exposed):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        if name in kinds:
            told = ", ".join(f"`{label}`" for label in sorted(labels))
            rows.append((f"`{name}`", kinds[name], told, family.documentation))
    assert len(rows) == len(kinds)
    agree(OPERATING, "Name", rows)
