"""The parts of the page that need no browser, run by node: their results, drawings and requests."""

import json
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from javascript import NODE, needs_node

from shoal_api.routes.pages import FOLDER

pytestmark = needs_node

#: The parts of a browser that the modules need, the modules, and `text`, which returns a drawing as HTML.
BEFORE = """
globalThis.document = { createComment() {}, createTreeWalker() {}, baseURI: "http://localhost:8080/" };
globalThis.sessionStorage = new Map();
sessionStorage.getItem = (name) => sessionStorage.get(name) ?? null;
const parts = ["ask", "hit", "quantity"].map((name) => `parts/${name}`);
const modules = await Promise.all(["api", ...parts, "views/pool"].map((name) => import(`./${name}.js`)));
const [{ Api }, ask, hit, { duration }, pool] = modules;
function text(part) {
  if (Array.isArray(part)) return part.map(text).join("");
  if (!part?.strings) return typeof part === "function" ? "" : String(part);
  return part.strings.reduce((all, string, n) => all + text(part.values[n - 1]) + string);
}
"""

Run = Callable[[str], Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a function that runs JavaScript beside the page's modules, and returns the value of `found` at its end."""
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
    (folder / "package.json").write_text('{"type": "module"}')

    def run(script: str) -> Any:
        (folder / "test.js").write_text(f"{BEFORE}{script}\nconsole.log(JSON.stringify(found));", "utf-8")
        done = subprocess.run([NODE, "test.js"], cwd=folder, capture_output=True, text=True, timeout=180)
        assert not done.returncode, done.stderr
        return json.loads(done.stdout)

    return run


def test_a_time_has_its_unit_and_from_a_minute_on_the_next_smaller_one(run: Run) -> None:
    found = run("const found = [0.0125, 5, 59.5, 60, 100, 7_320, 7_200, 200_000].map(duration);")
    assert found == ["12.5 ms", "5 s", "59.5 s", "1 min", "1 min 40 s", "2 h 2 min", "2 h", "2 days 7 h"]


def test_rates_add_up_all_workers_and_what_the_api_found_in_the_cache(run: Run) -> None:
    beats = [
        ({"jobs": 9, "texts": 0, "busy_s": 0, "cache_hits": 0}, {"jobs": 50, "busy_s": 0}),
        ({"jobs": 9, "texts": 50, "busy_s": 8, "cache_hits": 10, "cache_misses": 60, "queue_s": 2}, {"jobs": 5}),
        ({"jobs": 19, "texts": 100, "busy_s": 9, "cache_hits": 20, "cache_misses": 120, "queue_s": 4}, {"jobs": 10}),
    ]
    pools: list[dict[str, Any]] = [
        {"time": 5.0 * n, "api_cache_hits": 20 * n, "workers": workers}
        for n, of_both in enumerate(beats)
        for workers in [[{"id": i, "written_at": 4.0 * n, "counters": c} for i, c in zip("ab", of_both, strict=True)]]
    ]
    back = {"time": -5.0, "workers": [one | {"written_at": -5.0} for one in pools[2]["workers"]], "api_cache_hits": 90}
    script = "const { Meter } = await import('./parts/meter.js'), meter = new Meter();"
    first, _, last, later, set_back = run(
        f"{script} const pools = {json.dumps([*pools, pools[2] | {'time': 60.0}, back])};"
        "const found = pools.map((pool) => meter.measure(pool));"
    )
    assert (first["jobs"], first["busy"], first["ofWorker"]) == (None, None, {"a": None, "b": None})
    assert (last["jobs"], last["computed"], last["cached"]) == (10 / 8, 100 / 8, 20 / 8 + 4)
    assert (last["hits"], last["steps"]["queue"]) == (6.5 / (6.5 + 120 / 8), 4 / 10)
    assert (last["busy"], last["ofWorker"]["a"]) == (0.5, {"computed": 12.5, "busy": 1})
    assert (later["jobs"], later["cached"]) == (10 / 8, 20 / 8)
    assert (set_back["jobs"], set_back["cached"]) == (None, 0)


def test_a_question_survives_the_address_and_a_wrong_filter_is_shown(run: Run) -> None:
    asked = {"query": "a storm", "alpha": 0.5, "rerank": True, "filter": {"year": {"in": [2020]}}}
    question, address, filters = run(
        f"const given = {{ ...ask.NOTHING, ...{json.dumps(asked)} }}, params = ask.paramsOf(given);"
        "const filter = ask.withValue(ask.withValue({}, 'and', 'x'), 'year', 2);"
        "const found = [ask.askOf(params), [...params.keys()], "
        "[filter, ask.chosenValues(filter, 'and'), ask.withValue(filter, 'and', 'x')]];"
    )
    assert {name: question[name] for name in asked} == asked
    assert address == ["query", "alpha", "rerank", "filter"]
    assert filters == [{"\\and": {"in": ["x"]}, "year": {"in": [2]}}, ["x"], {"year": {"in": [2]}}]
    filters = [{"topic": {"in": "a storm"}}, {"topic": 5}, {"topic": None}, {"topic": {"in": ["a", "b"], "gte": 1}}]
    shown, chosen = run(
        f"const {{ chosenFilters }} = await import('./parts/facets.js'), filters = {json.dumps(filters)};"
        "const found = [filters.map((filter) => text(chosenFilters(filter))), ask.chosenValues(filters[0], 'topic')];"
    )
    assert ["a storm" in shown[0], "a or b from 1" in shown[3], chosen] == [True, True, ["a storm"]]


def test_marks_count_characters_and_only_addresses_of_the_web_are_links(run: Run) -> None:
    row = "const row = (hit_) => text(hit.hitRow({ id: 'a', score: 0.5, ...hit_ }, { filter: {} }, {}, 1, true, {}));"
    marked, links = run(
        f"{row} const found = [row({{ snippet: {{ text: '🌧 storm', highlights: [[2, 7]] }} }}),"
        "row({ good: 'https://example.org/a', bad: 'javascript:alert(1)' })];"
    )
    assert "🌧 <mark>storm</mark>" in marked
    assert links.count("<a href=") == 1
    assert "<a href=https://example.org/a" in links


def test_a_command_quotes_its_body_for_the_shell(run: Run) -> None:
    sample = """const found = (await import("./parts/code.js")).curlSample("search", { queries: "it's" }, true);"""
    command = run(sample)
    shown = subprocess.run(["sh", "-c", command.replace("curl ", "printf '%s\\n' ", 1)], capture_output=True, text=True)
    assert shown.stdout.splitlines()[-1] == '{"queries":"it\'s"}'
    assert '-H "Authorization: Bearer $SHOAL_KEY"' in command


def test_a_request_ends_in_its_time_and_is_sent_again_with_a_key_that_is_new(run: Run) -> None:
    keys, code, num_refused = run("""
    const api = new Api(() => (refused += 1)), keys = [];
    let refused = 0;
    const refusal = { ok: false, status: 401, json: async () => ({ error: { code: "unauthorized", message: "no" } }) };
    globalThis.sessionStorage.setItem = (name, value) => sessionStorage.set(name, value);
    globalThis.fetch = async (path, { headers }) => {
      keys.push(headers.Authorization ?? "");
      api.key = "new";
      return headers.Authorization ? { ok: true, json: async () => ({}), headers: new Headers() } : refusal;
    };
    await api.get("info");
    api.timeoutMs = 1;
    const never = (signal) => new Promise((_, reject) => { if (signal) signal.onabort = () => reject(signal.reason); });
    const late = new Promise((end) => setTimeout(end, 60_000));
    globalThis.fetch = (path, { signal }) => Promise.race([never(signal), late]);
    const found = [keys, await api.get("info").catch((error) => error.code), refused];
    setTimeout(() => process.exit(0));
    """)
    assert (keys, code, num_refused) == (["", "Bearer new"], "away", 0)


def test_a_view_that_the_user_has_left_sends_no_requests(run: Run) -> None:
    is_ended = run("""
    let asked;
    pool.enter({ api: { get: (path, { signal }) => new Promise(() => (asked = signal)) }, render() {} });
    pool.leave();
    const found = asked.aborted;
    """)
    assert is_ended
