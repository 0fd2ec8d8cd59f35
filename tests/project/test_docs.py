"""README.md and the pages under docs/ agree with the code."""

import asyncio
import json
import os
import re
import shlex
import tomllib
from operator import attrgetter
from typing import Any

import click
import numpy as np
import pytest
from api_stub import OWN, MakeApp, StubWorker, examples
from flask.testing import FlaskClient
from page import ROOT, read, table
from test_ready import recent

import shoal
from shoal import HttpClient
from shoal.cli.main import main
from shoal.contract.keys import Keys
from shoal.contract.options import CHOICES, OPTION_DEFAULTS
from shoal.operations.search_options import SEARCH_DEFAULTS
from shoal.records.source import Source
from shoal.settings import DEFAULTS
from shoal_workers.build_command import SAMPLE

pytest_plugins = ["api_fixtures", "http_fixtures"]

PAGES = ["README.md", "SECURITY.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]

#: The pages with the routes: Shoal's own routes, and the routes of compatible protocols.
HTTP_PAGES = ("docs/http.md", "docs/compatibility.md")

#: The Redis of the first service on a machine.
DEFAULT_URL = "redis://127.0.0.1:6390/0"

#: Largest number of lines that a newcomer reads first: the README before its second section.
FIRST_SCREEN = 45


def blocks(name: str, language: str) -> list[str]:
    """Return the blocks of code of a page in that language."""
    return re.findall(rf"^```{language}\n(.*?)^```", read(name), re.MULTILINE | re.DOTALL)


def commands(group: click.Group, path: str = "shoal") -> list[str]:
    """Return the full name of every command below the group."""
    context, found = click.Context(group), []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        found += commands(command, f"{path} {name}") if isinstance(command, click.Group) else [f"{path} {name}"]
    return found


def test_every_route_is_listed(api: FlaskClient) -> None:
    paths = api.get("/openapi.json").get_json()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    rows = [row for page in HTTP_PAGES for row in table(page, "route")]
    assert set(re.findall(r"`([A-Z]+ /[^`?]*)", "".join(rows))) == routes


def test_every_option_is_listed_with_its_default() -> None:
    rows = table("docs/http.md", "option")
    assert {name.strip("`"): json.loads(default.strip("`")) for name, (default, _) in rows.items()} == OPTION_DEFAULTS
    for name, allowed in CHOICES.items():
        assert [word for word in allowed if word and f"`{word}`" not in rows[f"`{name}`"][1]] == []
    of_search = table("docs/http.md", "search option")
    listed = {name.strip("`"): json.loads(default.strip("`")) for name, (default, _) in of_search.items()}
    assert listed.pop("negative") is None  # a list of texts, which a job counts in num_negative
    assert listed == {name: default for name, default in SEARCH_DEFAULTS.items() if name != "num_negative"}


#: Fields in Cohere's `meta` and in a `usage`, which only clients of other services read.
UNNAMED = {"api_version", "is_experimental", "billed_units", "input_tokens", "completion_tokens"}


def test_the_http_pages_name_every_field_of_requests_and_answers(api: FlaskClient, stub: StubWorker) -> None:
    stub.announce(model="sentence-transformers/all-MiniLM-L6-v2", recent=[recent("1", 1.0)])
    schemas = api.get("/openapi.json").get_json()["components"]["schemas"]
    names = {name for schema in schemas.values() for name in schema.get("properties", {})}
    assert len(names) > 40
    paths = ("/v1/pool", "/info", "/v1/indexes", "/v1/models", "/models", "/api/tags", "/api/version")
    asked = [api.post(path, json=body) for path, body in examples(api) if not path.startswith(("/v1/bulk", "/v1/i"))]
    for answer in (*asked, *map(api.get, paths)):
        assert answer.status_code < 300, answer.text
        names |= set(re.findall(r'"(\w+)":', answer.data.decode("latin-1")))
    page = "".join(map(read, HTTP_PAGES))
    assert sorted(name for name in names - UNNAMED if not re.search(rf"[`\"]{name}[`\"]", page)) == []


def test_the_http_page_lists_every_header_of_its_own(make_app: MakeApp) -> None:
    """A page in a browser may send and read all of them."""
    api = make_app(cors_origins="*").test_client()
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    sent = [name.strip("`") for name in table("docs/http.md", "request header")]
    allowed = api.options("/embed", headers=asked | {"Access-Control-Request-Headers": ", ".join(sent)}).headers
    read_by_pages = api.get("/health", headers=asked).headers["Access-Control-Expose-Headers"]
    received = {name.strip("`") for name in table("docs/http.md", "response header")}
    assert set(allowed["Access-Control-Allow-Headers"].split(", ")) == set(sent)
    assert received - set(read_by_pages.split(", ")) == {"Allow"}
    assert set(read_by_pages.split(", ")) <= received


def test_the_description_has_the_headers_and_the_examples_of_the_http_page(api: FlaskClient) -> None:
    description = api.get("/openapi.json").get_json()
    operations = [about for methods in description["paths"].values() for about in methods.values()]
    own = [about for about in operations if {*about["tags"]} & OWN]
    responses = [response for about in own for response in about["responses"].values()]
    described = {name for response in responses for name in response.get("headers", {})}
    received = {name.strip("`") for name in table("docs/http.md", "response header")}
    assert described == received - {"Allow", "RateLimit", "RateLimit-Policy"}
    examples = [schema.get("example") for schema in description["components"]["schemas"].values()]
    page = [json.loads(text) for text in re.findall(r"^ *```json\n(.*?)```", read("docs/http.md"), re.M | re.S)]
    page += [json.loads(body) for body in re.findall(r"curl .* -d '([^']+)'", read("docs/http.md"))]
    assert len(page) > 5
    undescribed = ({"embeddings", "chunks"}, {"index", "num", "position"})  # these are maps in the description
    page = [each for each in page if isinstance(each, list) or ({*each} not in undescribed and "kind" not in each)]
    assert [example for example in page if example not in examples] == []


def test_the_http_page_has_the_limits_of_the_api(make_app: MakeApp) -> None:
    limits = make_app(request_timeout_s=DEFAULTS.request_timeout_s).test_client().get("/info").get_json()["limits"]
    cells = " ".join(default for default, _ in table("docs/http.md", "limit").values())
    listed = {name: float(text.replace(",", "")) for text, name in re.findall(r"([\d,]+)[^`\d]*\(`(\w+)`\)", cells)}
    assert listed == limits


def test_clients_of_other_projects_are_listed_in_their_tested_versions() -> None:
    groups = tomllib.loads(read("pyproject.toml"))["dependency-groups"]
    files = ("constraints-older-clients.txt", "constraints.txt")
    pinned = dict(line.split("==") for name in files for line in read(name).splitlines() if "==" in line)
    rows = {name.strip("`"): version for name, (version, *_) in table("docs/compatibility.md", "client").items()}
    assert {*groups["clients"], *groups["older-clients"]} <= rows.keys()
    assert rows == {name: pinned[name] for name in rows}


def test_every_extra_and_every_command_is_listed_and_every_file_that_is_named_exists() -> None:
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    assert {name.strip("`") for name in table("docs/operating.md", "extra")} == {"none", *extras}
    listed = "".join(table("docs/operating.md", "command"))
    assert [command for command in commands(main) if not re.search(rf"`{command}[` ]", listed)] == []
    page = read("docs/architecture.md")
    names = set(re.findall(r"`([\w.-]+/[\w./-]*|[\w-]+\.(?:py|lua|yml|toml))`", page))
    assert len(names) > 5
    folders = [ROOT / name for name in ("shared", "api", "workers")]
    found = {name for name in names if (ROOT / name).exists() or any(list(path.rglob(name)) for path in folders)}
    assert names - found == set()


def test_the_readme_begins_with_what_a_newcomer_needs_and_shows_what_the_code_and_the_pages_say() -> None:
    readme = read("README.md")
    first, _, rest = readme.partition("\n## Next steps\n")
    assert rest
    assert len(first.splitlines()) <= FIRST_SCREEN
    assert first.index("./scripts/run") < first.index("curl -s localhost:8080/search") < first.index('"results"')
    (answer,) = blocks("README.md", "json")
    documents = {document.id: document for document in Source(SAMPLE, "headline")}
    (hits,) = json.loads(answer)["results"]
    assert len(hits) == 3
    for hit in hits:
        document = documents[hit["id"]]
        assert hit == {"id": document.id, "score": hit["score"], "text": document.text, **document.fields}
    measured = re.findall(
        r"^\| 64 connections x 1 headline \| (\w+) \| ([\d,]+)", read("docs/performance.md"), re.MULTILINE
    )
    rates, text = dict(measured), " ".join(readme.split())
    assert f"{rates['shoal']} a second against {rates['baseline']} and {rates['infinity']}, from 64 " in text
    numbers = {name: int(rate.replace(",", "")) for name, rate in rates.items()}
    ratios = [round(numbers["shoal"] / numbers[peer], 1) for peer in ("baseline", "infinity")]
    assert [float(ratio) for ratio in re.findall(r"([\d.]+) times as many", text)] == ratios
    linked = set(re.findall(r"\]\(([^)#]+)\)", readme))
    assert [name for name in PAGES if name not in linked and name != "README.md"] == []


def run_program(name: str, redis_url: str, keys: Keys, word: str = "") -> dict[str, Any]:
    """Run the first program of a page that has the word, with clients of the test's own pool."""
    program = next(block for block in blocks(name, "python") if word in block)
    place, found = f"{redis_url!r}, key_prefix={keys.prefix!r}, pool={keys.pool!r}", dict[str, Any]()
    exec(program.replace(f'"{DEFAULT_URL}"', place).replace(" Client()", f" Client({place})"), found)
    return found


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize(("name", "hits"), [("README.md", "hits"), ("docs/python.md", "second")])
def test_the_program_of_a_page_runs(name: str, hits: str, redis_url: str, keys: Keys) -> None:
    found = run_program(name, redis_url, keys)
    assert (len(found["vectors"]), len(found[hits])) == (2, 3)


@pytest.mark.usefixtures("serving")
def test_the_async_program_of_the_python_page_runs(redis_url: str, keys: Keys) -> None:
    pytest.importorskip("fastapi")
    found = run_program("docs/python.md", redis_url, keys, "AsyncClient")

    async def ask() -> list[Any]:
        async with found["lifespan"](found["app"]):
            return list(await found["similar"]("storm"))

    assert len(asyncio.run(ask())) == 3


def test_the_program_over_http_runs(http: HttpClient, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = [block for block in blocks("docs/python.md", "python") if "HttpClient" in block]
    found: dict[str, Any] = {}
    exec(program.replace('"http://localhost:8080"', repr(http.url)), found)
    assert np.shape(found["vectors"]) == (2, 16)
    assert capsys.readouterr().out.endswith("(1, 32)\n")


def test_every_method_of_the_python_page_exists() -> None:
    methods = set(re.findall(r"`((?:Http|Async)?(?:Client|\w*Handle)\.\w+)`", read("docs/python.md")))
    assert len(methods) > 10
    assert all(callable(attrgetter(name)(shoal)) for name in methods)


def test_every_curl_command_is_answered(make_app: MakeApp, stub: StubWorker, redis_url: str, keys: Keys) -> None:
    stub.announce(model=DEFAULTS.model)
    further = StubWorker(redis_url, Keys(keys.prefix, "e5"))
    further.start(model="intfloat/multilingual-e5-small")
    api = make_app(pools="e5").test_client()
    text = "".join(read(name) for name in PAGES)
    asked = re.findall(r"""curl -s localhost:8080(/\S+)(?: -H "[^"]*")? -d '([^']+)'""", text)
    assert len(asked) == text.count("curl -s localhost:8080") > 4
    assert [(path, body) for path, body in asked if api.post(path, data=body).status_code != 200] == []
    further.stop()


@pytest.mark.parametrize("name", PAGES)
def test_every_command_on_a_page_has_its_flags(name: str) -> None:
    inline = re.findall(r"`(shoal\s[^`]*)`", re.sub(r"^```.*?^```", "", read(name), flags=re.MULTILINE | re.DOTALL))
    for line in "".join(blocks(name, "sh")).splitlines() + inline:
        words = shlex.split(re.sub(r"^\S+=\$\(|\)? *(#.*)?$", "", line))
        if words[:1] == ["./scripts/run"]:
            words = ["shoal", "serve", *words[1:]]
        if words[:1] != ["shoal"]:
            continue
        command: click.Command | None = main
        for word in words[1:]:
            if isinstance(command, click.Group) and not word.startswith("-"):
                command = command.get_command(click.Context(command), word)
        assert command, line
        flags = {flag for option in command.params for flag in option.opts}
        assert [word for word in words if word.startswith("-") and word.partition("=")[0] not in flags] == []


def test_the_pages_name_exactly_the_existing_scripts() -> None:
    named = {script for name in PAGES for script in re.findall(r"(?<![\w/])(?:\./)?scripts/([\w-]+)", read(name))}
    there = {path.name for path in (ROOT / "scripts").iterdir()}
    assert named - there == set()
    programs = {path.name for path in (ROOT / "scripts").iterdir() if path.is_file() and os.access(path, os.X_OK)}
    assert programs - named == set()
    assert len(programs) > 5


@pytest.mark.parametrize("name", PAGES)
def test_links_between_pages_lead_somewhere(name: str) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", read(name)):
        path = (ROOT / name).parent / target if target else ROOT / name
        assert path.exists(), target
        headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE) if anchor else []
        anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert not anchor or anchor in anchors


@pytest.mark.parametrize("name", ["SECURITY.md", "docs/reliability.md"])
def test_every_test_that_a_page_names_exists(name: str) -> None:
    named = re.findall(r"`(?:tests/[\w/]+/)?(test_\w+\.py)(?:::(\w+))?`", read(name))
    assert len(named) > 5
    texts = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    assert [(file, test) for file, test in named if not re.search(rf"(class|def) {test}\b", texts[file])] == []
