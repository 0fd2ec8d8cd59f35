"""README.md and the pages under docs/ say what the code says."""

import re
from dataclasses import fields

import click
import pytest
from api_stub import StubWorker
from flask.testing import FlaskClient
from page import ROOT, read, table
from prometheus_client.parser import text_string_to_metric_families

from shoal.cli.main import main
from shoal.settings import Settings, variable

pytest_plugins = ["api_fixtures"]

PAGES = ["README.md", "SECURITY.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


def commands(group: click.Group, path: str = "shoal") -> list[str]:
    """Every command below the group, in full."""
    context, found = click.Context(group), []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        found += commands(command, f"{path} {name}") if isinstance(command, click.Group) else [f"{path} {name}"]
    return found


def test_every_setting_is_in_the_readme_with_its_default_and_help() -> None:
    rows = table("README.md", "variable")
    assert list(rows) == [f"`{variable(item.name)}`" for item in fields(Settings)]
    for item in fields(Settings):
        default, text = rows[f"`{variable(item.name)}`"]
        choices = item.metadata["choices"]
        assert default == (f"`{item.default}`" if item.default != "" else "")
        assert text == item.metadata["help"] + (f" One of {', '.join(choices)}." if choices else "")


def test_every_route_is_in_the_readme(api: FlaskClient) -> None:
    paths = api.get("/openapi.json").get_json()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert set(re.findall(r"`([A-Z]+ /[^`?]*)", "".join(table("README.md", "route")))) == routes


def test_every_command_is_in_the_readme() -> None:
    listed = "".join(table("README.md", "command"))
    assert [command for command in commands(main) if not re.search(rf"`{command}[` ]", listed)] == []


def test_every_metric_is_listed(api: FlaskClient, stub: StubWorker) -> None:
    stub.announce()
    api.get("/nowhere")
    rows = table("docs/metrics.md", "Name")
    exposed = api.get("/metrics").get_data(as_text=True)
    kinds = dict(re.findall(r"^# TYPE (\w+(?<!_created)) (\w+)$", exposed, re.MULTILINE))
    meanings = dict(re.findall(r"^# HELP (\w+(?<!_created)) (.+)$", exposed, re.MULTILINE))
    assert {name.strip("`"): (kind, meaning) for name, (kind, _, meaning) in rows.items()} == {
        name: (kind, meanings[name]) for name, kind in kinds.items()
    }


def test_every_metric_has_the_labels_that_are_listed(api: FlaskClient, stub: StubWorker) -> None:
    stub.announce()
    api.get("/nowhere")
    rows = {name.strip("`"): cells for name, cells in table("docs/metrics.md", "Name").items()}
    for family in text_string_to_metric_families(api.get("/metrics").get_data(as_text=True)):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert name.endswith("_created") or ", ".join(f"`{label}`" for label in sorted(labels)) == rows[name][1]


def test_every_file_that_the_architecture_names_exists() -> None:
    page = read("docs/architecture.md")
    names = set(re.findall(r"`([\w.-]+/[\w./-]*|[\w-]+\.(?:py|lua|yml|toml))`", page))
    assert len(names) > 5
    assert [name for name in names if not (ROOT / name).exists() and not list((ROOT / "shared").rglob(name))] == []


def test_every_step_of_a_jobs_life_names_its_file() -> None:
    rows = table("docs/architecture.md", "step")
    assert [step.partition(".")[0] for step in rows] == [str(n) for n in range(1, len(rows) + 1)]
    for files, _ in rows.values():
        assert all((ROOT / name.strip("` ")).exists() for name in files.split(","))


@pytest.mark.parametrize("name", PAGES)
def test_links_between_pages_lead_somewhere(name: str) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", read(name)):
        path = (ROOT / name).parent / target if target else ROOT / name
        assert path.exists(), target
        headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE) if anchor else []
        anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert not anchor or anchor in anchors


def test_every_test_that_the_security_page_names_exists() -> None:
    named = re.findall(r"`(tests/\w+\.py)(?:::(\w+))?`", read("SECURITY.md"))
    assert len(named) > 5
    assert [(file, test) for file, test in named if not re.search(rf"(class|def) {test}\b", read(file)) and test] == []
