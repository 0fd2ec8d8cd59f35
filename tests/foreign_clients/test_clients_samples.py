"""The samples of code on the service's page run as they are copied, and find the hits that the page shows."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from browser import OpenPage, enter_key
from conftest import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Page

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
expect = sync_api.expect

pytest_plugins = ["browser_fixtures"]

pytestmark = pytest.mark.wide

#: Characters with a meaning in shells, JSON or Python.
ODD = """storm's "europe" $HOME `id` \\n {0} %s é 洪水"""

#: Code after a sample in Python that prints the texts of its hits, or the number of its vectors.
FOUND = "\nimport json; print(json.dumps([hit['text'] for hit in hits] if 'hits' in globals() else len(vectors)))\n"

#: The part of the page's address that asks for each search, by the search's name.
ASKED = {
    "words": "#search?query={}&mode=lexical&group=topic",
    "filtered": '#search?query={}&filter={{"topic":{{"in":["storm","rain"]}}}}&diversity=0.5',
    "like": "#search?like=2",
}


def show(open_page: OpenPage, keyed: tuple[str, str], address: str) -> "Page":
    """Open the page at an address and enter the key; return the page."""
    page = open_page(keyed[0] + address, permissions=["clipboard-read", "clipboard-write"])
    enter_key(page, keyed[1])
    if address.startswith("#search"):
        page.get_by_text("As code").click()
    expect(page.locator(".code code")).to_be_visible()
    return page


def copy(page: "Page", name: str) -> str:
    """Copy the named sample with the page's button, and return it."""
    code = page.get_by_role("region", name="This request as code")
    code.get_by_role("button", name=name, exact=True).click()
    expect(code.get_by_role("button", name=name, exact=True)).to_have_attribute("aria-pressed", "true")
    code.get_by_role("button", name="Copy", exact=True).click()
    expect(code.get_by_role("button", name="Copied")).to_be_visible()
    return str(page.evaluate("navigator.clipboard.readText()"))


def run(command: list[str], key: str, given: str = "") -> str:
    """Run a command with the key in the environment, and return its output."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, env=os.environ | {"SHOAL_KEY": key}, input=given, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
@pytest.mark.parametrize("asked", ASKED)
def test_samples_of_a_search_in_curl_and_python_work(open_page: OpenPage, keyed: tuple[str, str], asked: str) -> None:
    page = show(open_page, keyed, ASKED[asked].format("storm"))
    answer = json.loads(run(["sh", "-c", copy(page, "curl").replace("curl ", "curl -s ", 1)], keyed[1]))
    found = json.loads(run([sys.executable, "-"], keyed[1], copy(page, "Python") + FOUND).splitlines()[-1])
    texts = page.locator(".hit .text").all_inner_texts()
    assert len(texts) > 1
    assert [hit["text"] for hit in answer["results"][0]][: len(texts)] == texts
    assert found[: len(texts)] == texts


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_samples_of_a_comparison_work_with_odd_texts_and_options(open_page: OpenPage, keyed: tuple[str, str]) -> None:
    page = show(open_page, keyed, "#compare")
    page.get_by_label("Up to 20 texts").fill(f"{ODD}\nmarket falls")
    expect(page.locator(".matrix td button")).to_have_count(4)
    page.get_by_label("Dimensions").fill("0.5")
    page.get_by_label("Pooling").select_option("mean")
    page.get_by_role("button", name="beginning").click()
    expect(page.locator(".code code")).to_contain_text("truncation_side")
    command = copy(page, "curl")
    shown = json.loads(command.partition("-d '")[2].rstrip("'").replace("'\\''", "'"))
    assert (shown["inputs"], shown["pooling"]) == ([ODD, "market falls"], "mean")
    vectors = json.loads(run(["sh", "-c", command.replace("curl ", "curl -s ", 1)], keyed[1]))
    assert [len(vector) for vector in vectors] == [shown["dimensions"]] * 2
    assert run([sys.executable, "-"], keyed[1], copy(page, "Python") + FOUND).splitlines()[-1] == "2"


@pytest.mark.skipif(not importlib.util.find_spec("openai"), reason="needs openai: scripts/test-clients has it")
def test_the_sample_for_openais_client_works(open_page: OpenPage, keyed: tuple[str, str]) -> None:
    page = show(open_page, keyed, "#compare")
    printed = run([sys.executable, "-"], keyed[1], copy(page, "openai") + FOUND)
    assert int(printed) == len(page.get_by_label("Up to 20 texts").input_value().splitlines())
