"""The command line: its output, the files it saves, and errors in one line with their code."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from socket import gethostname
from typing import Any

import click
import numpy as np
import pytest
from blocking import Pool
from click.testing import CliRunner, Result
from conftest import PATIENCE_S, ROOT, WORDS, free_port
from process import environment, run, run_on_small_disk
from safetensors.numpy import load_file

from shoal import Client
from shoal.cli import search
from shoal.cli.main import main
from shoal.contract.replies import Reply
from shoal.settings import Settings, variable

pytest_plugins = ["cli_fixtures"]


def commands(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command and the words by which it is called."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def succeed(result: Result) -> str:
    """Return the output of a command that succeeded."""
    assert result.exit_code == 0, result.output
    return result.stdout


def fail(result: Result, code: str) -> str:
    """Return the one line of a command that failed."""
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("shoal: ")
    assert line.endswith(f" [{code}]")
    return line


def test_a_missing_library_is_named_with_the_extra_that_installs_it() -> None:
    for library, extra in {"torch": "export", "pyarrow": "parquet", "rq": "jobs", "flask": "all"}.items():

        def use(library: str = library) -> None:
            raise ModuleNotFoundError(name=library)

        result = CliRunner().invoke(type(main)("shoal", callback=use, invoke_without_command=True))
        said = f"needs '{library}', which is not installed: {sys.executable} -m pip install -c {ROOT}/constraints.txt"
        assert f"{said} -e '{ROOT}[{extra}]'" in fail(result, "missing_extra")


def test_help_names_the_variable_of_every_setting_and_describes_every_option() -> None:
    settings = {item.name for item in fields(Settings)}
    for path, command in commands():
        text = " ".join(succeed(CliRunner().invoke(main, [*path, "--help"])).split())
        assert command.help
        for parameter in command.params:
            assert isinstance(parameter, click.Argument) or getattr(parameter, "help", None), (path, parameter.name)
            assert parameter.name not in settings or variable(parameter.name) in text, (path, parameter.name)
    lines = succeed(CliRunner().invoke(main, ["--help"])).partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in lines] == sorted(path[0] for path, _ in commands() if len(path) == 1)
    assert [line for line in lines if line.endswith("...")] == []


def test_a_shell_completes_commands_and_options() -> None:
    completed = {"shoal se": {"serve", "search"}, "shoal index b": {"build"}, "shoal serve --det": {"--detach"}}
    for words, found in completed.items():
        env = {"_SHOAL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        lines = succeed(CliRunner(env=env).invoke(main, prog_name="shoal")).splitlines()
        assert {line.removeprefix("plain,") for line in lines} == found


@pytest.mark.usefixtures("serving")
def test_vectors_are_in_order(shoal: CliRunner, client: Client, pool_settings: dict[str, str], tmp_path: Path) -> None:
    lines = succeed(shoal.invoke(main, ["embed", "storm", "rain", "--no-normalize"])).splitlines()
    wanted = client.embed(["storm", "rain"], normalize=False)
    assert np.array([json.loads(line) for line in lines]) == pytest.approx(wanted, abs=1e-5)
    (line,) = succeed(shoal.invoke(main, ["embed", "--prompt-name", "query"], input="storm\n")).splitlines()
    assert json.loads(line) == pytest.approx(client.embed("storm", prompt_name="query"), abs=1e-5)
    (tmp_path / "texts.txt").write_text("".join(f"{word}\n" for word in WORDS * 20))
    wanted = client.embed(WORDS * 20, dimensions=8)
    for ending in ("npy", "safetensors"):
        out, source = tmp_path / f"vectors.{ending}", ["--file", str(tmp_path / "texts.txt")]
        result = shoal.invoke(main, ["embed", *source, "--out", str(out), "--dimensions", "8"])
        succeed(result)
        assert "160 vectors" in result.stderr
        assert (np.load(out) if ending == "npy" else load_file(out)["vectors"]) == pytest.approx(wanted, abs=1e-5)
    succeed(shoal.invoke(main, ["embed", "--out", str(tmp_path / "none.npy")], input=""))
    assert len(np.load(tmp_path / "none.npy")) == 0
    done = run_on_small_disk(100, "embed", "storm", "--out", tmp_path / "a.safetensors", **pool_settings)
    assert "[disk_full]" in done.stderr


def test_texts_and_files_that_cannot_be_used_are_refused_before_embedding(shoal: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    file = ["--file", str(tmp_path / "latin.txt")]
    for command in (["embed"], ["rerank", "q"]):
        assert "the input is not UTF-8" in fail(shoal.invoke(main, [*command, *file]), "invalid_text")
        assert "give one of them" in fail(shoal.invoke(main, [*command, "storm", *file]), "invalid_request")
    for words, message in (
        (["a", "--out", str(tmp_path / "x.csv")], ".npy"),
        (["--file", "News.CSV.gz", "--out", str(tmp_path / "x.npy")], "News.CSV.gz has records: name a folder"),
        (["a", "--out", ""], '"" is a folder, for the vectors of records'),
        (["a", "--out", str(tmp_path / "nowhere" / "x.npy")], "nowhere"),
        ([*file, "--out", "vectors.v2"], "a folder with a slash at its end, as vectors.v2/"),
    ):
        assert message in fail(shoal.invoke(main, ["embed", *words]), "invalid_request")


@pytest.mark.usefixtures("serving")
def test_a_closed_standard_input_is_empty_and_output_to_a_closed_one_is_dropped(
    pool_settings: dict[str, str], tmp_path: Path
) -> None:
    def run_closed(which: str, *words: str) -> "subprocess.CompletedProcess[str]":
        closed = ["sh", "-c", f'exec "$@" {which}', "sh", sys.executable, "-m", "shoal", *words]
        env = environment(**pool_settings)
        return subprocess.run(closed, env=env, capture_output=True, text=True, timeout=PATIENCE_S)

    for command in ("embed", "search"):
        done, empty = run_closed("<&-", command), run(command, stdin="", cwd=None, **pool_settings)
        assert (done.returncode, done.stdout, done.stderr) == (empty.returncode, empty.stdout, empty.stderr)
    assert run_closed(">&- 2>&-", "embed", "a", "--out", str(tmp_path / "a.npy")).returncode == 0
    assert np.load(tmp_path / "a.npy").shape == (1, 32)


@pytest.mark.usefixtures("serving")
def test_search_has_a_flag_for_each_option_of_a_search(shoal: CliRunner, client: Client) -> None:
    def said(*words: str) -> list[str]:
        return succeed(shoal.invoke(main, ["search", *words])).splitlines()

    hits = client.search("storm europe", k=2)
    assert said("storm europe", "-k", "2") == [f"{hit['score']:.3f}  {hit['id']}  {hit['text']}" for hit in hits]
    assert json.loads(*said("storm europe", "-k", "2", "--json")) == hits
    fused = client.search(["storm", "rain"], k=2, fuse=True, negative=["sun"], fields=["text"])
    words = ["storm", "rain", "--fuse", "--negative", "sun", "--fields", "text", "-k", "2", "--json"]
    assert json.loads(*said(*words)) == fused
    page = ["--like", "7", "-k", "1", "--cursor"]
    last = said(*page, "")[-1]
    assert last.startswith("next page: --cursor ")
    assert json.loads(*said(*page, last.split()[-1], "--json"))["hits"] == client.search(like=["7"], k=2)[0][1:]
    for options in (["--snippet", "{}", "--fields", "id"], ["--fields", "text", "--fields", "id"]):
        (line,) = said("storm rain", "-k", "1", *options)
        assert '  storm rain  id: "' in line
    unknown = fail(shoal.invoke(main, ["search", "storm", "--fields", "no-such"]), "invalid_request")
    assert 'there is no field "no-such": the index has no fields' in unknown
    unknown = fail(shoal.invoke(main, ["search", "storm", "--index", "x"]), "unknown_index")
    assert 'no index "x": this worker serves default' in unknown
    for words in ([], ["storm", "--filter", "{"]):
        assert shoal.invoke(main, ["search", *words]).exit_code == 2


def test_search_prints_facets_and_titles(capsys: pytest.CaptureFixture[str]) -> None:
    facets = [{"topic": {"values": [{"value": "sun", "count": 1_234}, {"value": "rain", "count": 5}]}}]
    hits = [{"id": "7", "score": 0.5, "title": "Rain", "text": "wet"}, {"id": "8", "score": 0.25}]
    search._print_reply(Reply("a", hits=[hits], facets=facets), False, ())
    assert capsys.readouterr().out == '0.500  7  Rain  wet\n0.250  8\ntopic: "sun" 1,234, "rain" 5\n'


def test_status_lists_lanes_and_workers(shoal: CliRunner, client: Client) -> None:
    client.submit("embed", "storm")
    client.broker.execute("HSET", client.keys.unread_load, "result", 2, "bytes", 3_000)
    client.broker.execute("EXPIRE", client.keys.unread_load, 60)
    indexes = {"default": {"count": 1_234}}
    pool = Pool(client.broker, client.keys, alive_s=3_600)
    about = {"state": "ready", "model": "tiny", "engine": "openvino", "precision": "bf16", "indexes": indexes}
    about |= {"index_errors": {"news": "v2/vectors.npy is not what was built"}}
    for host, code in (("another", 1), (gethostname(), 0)):
        pool.announce("w1", about | {"host": host})
        assert shoal.invoke(main, ["status", "--this-worker"]).exit_code == code
    assert succeed(shoal.invoke(main, ["status"])).splitlines() == [
        *("lane interactive: 1 unanswered jobs, 1 texts", "lane bulk: 0 unanswered jobs, 0 texts"),
        *("results not read: 2, 3,000 bytes", "dead letters: 0", "workers alive: 1"),
        *("  w1 ready tiny openvino bf16: default (1,234)", "    index news: v2/vectors.npy is not what was built"),
    ]


def test_an_error_is_one_line_with_its_code(shoal: CliRunner, tmp_path: Path) -> None:
    for command in (["status"], ["embed", "storm"], ["search", "storm"], ["job", "list"]):
        fail(shoal.invoke(main, [*command, "--redis-url", "redis://127.0.0.1:1/0"]), "unavailable")
    result = shoal.invoke(main, ["status"], env={"SHOAL_PORT": "eighty"})
    assert 'SHOAL_PORT is "eighty": it takes a whole number' in fail(result, "bad_setting")
    (tmp_path / "file").write_text("in the way")
    result = CliRunner().invoke(main, ["index", "build", "--local", "--out", str(tmp_path / "file" / "index")])
    assert "check its name and permissions" in fail(result, "file_error")


def test_an_index_is_built_and_described(tiny_source: Path, tiny_model: Path, home: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "news.csv", tmp_path / "index"
    usual: dict[str, Any] = {"model": tiny_source, "home": home, "precision": "f32", "threads": 1}
    usual |= {"redis_url": f"redis://127.0.0.1:{free_port()}/0"}
    build = ("index", "build", source, "--text-column", "headline", "--out", out)
    source.write_text("headline,topic\nstorm over europe,weather\nmarket falls,money\n")
    done = run(*build, **usual)
    assert done.returncode == 0, done.stderr
    assert "no pool answers: this process embeds the texts" in done.stderr
    assert "2 documents" in done.stdout
    info = json.loads(succeed(CliRunner().invoke(main, ["index", "info", str(out)])))
    assert (info["count"], info["source"], info["model"]) == (2, "news.csv", str(tiny_source))
    assert info["fields"] == {"topic": "keyword"}
