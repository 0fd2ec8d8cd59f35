"""`shoal serve` starts and watches its processes, and leaves no process behind, however it ends."""

import fcntl
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, TextIO

import psutil
import pytest
from api_stub import INDEX
from blocking import Pool
from conftest import PATIENCE_S, free_port, wait_until
from process import Process, environment, run
from queues import queue_of

from shoal import Client
from shoal.broker import embedded
from shoal.contract.keys import Keys
from shoal.errors import IndexNotFound, NotReady, ShoalError
from shoal.long_jobs.long_jobs import LongJobs
from shoal.settings import PORT_FILE, Settings
from shoal.supervisor import background
from shoal.supervisor.background import PID_FILE
from shoal.supervisor.process import Service
from shoal.supervisor.serve import print_summary
from shoal.supervisor.supervisor import MAX_RETRIES, Supervisor, is_ready
from shoal_workers.model.model import prepared_folder

#: A program that fails the first few times, and then becomes the command in its arguments.
FAIL = """
import os, pathlib, sys
starts, times, words = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
starts.open("ab").write(b".")
if starts.stat().st_size <= times:
    print(words, file=sys.stderr)
    sys.exit(3)
os.execv(sys.argv[4], sys.argv[4:])
"""


@pytest.fixture
def settings(
    redis_url: str, keys: Keys, tiny_source: Path, tiny_model: Path, home: Path, index_folder: Path, tmp_path: Path
) -> dict[str, Any]:
    """Return settings of a service with the tests' Redis, the tiny model and its own home folder."""
    (own := tmp_path / "home").mkdir()
    (own / "models").symlink_to((home / "models").absolute())
    found: dict[str, Any] = {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool, "port": free_port()}
    return found | {"home": own, "model": tiny_source, "precision": "f32", "threads": 1, "indexes": index_folder}


def running(settings: dict[str, Any], *end: str) -> list[int]:
    """Return the ids of the service's processes whose command has this end."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = tuple(process.cmdline())
            if (
                process.environ().get("SHOAL_HOME") == str(settings["home"])
                and command[len(command) - len(end) :] == end
            ):
                found.append(process.pid)
    return found


def pid_of_api(settings: dict[str, Any]) -> int:
    """Return the id of the API's first process, or 0."""
    return next(
        (pid for pid in running(settings, "shoal", "api") if psutil.pid_exists(pid) and os.getpgid(pid) == pid), 0
    )


def search(settings: dict[str, Any]) -> list[Any]:
    body = json.dumps({"queries": "storm", "k": 3}).encode()
    with closing(HTTPConnection("127.0.0.1", settings["port"], timeout=PATIENCE_S)) as connection:
        connection.request("POST", "/search", body)
        return list(json.load(connection.getresponse())["results"][0])


def assert_refused(done: "subprocess.CompletedProcess[str]", code: str) -> None:
    """Check that the command ended with one line for its error, and without a traceback."""
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if re.search(r"\[[a-z_]+\]", line)]
    assert line.startswith("shoal: ")
    assert line.endswith(f"[{code}]")
    assert "Traceback" not in done.stderr


def test_a_service_in_the_background(settings: dict[str, Any], client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # a proxy, which is not used for addresses of this machine
    (settings["home"] / PID_FILE).write_text("9" * 20)  # a file of an earlier service
    (settings["home"] / "serve.log").write_text("earlier\nstop:   Ctrl-C\n")
    done = run("serve", "--detach", **settings)
    try:
        assert done.returncode == 0, done.stderr
        assert f"curl -s http://localhost:{settings['port']}/search" in done.stdout
        assert "earlier" not in done.stdout
        assert len(search(settings)) == 3
        pid = int((settings["home"] / PID_FILE).read_text())
        assert os.getsid(pid) == pid  # the end of the terminal does not end the service
        assert_refused(run("serve", "--detach", **settings), "bad_setting")
        own = {name: settings[name] for name in ("redis_url", "key_prefix", "pool")}
        with LongJobs(Settings(**own)) as jobs:
            wait_until(lambda: jobs.num_runners() == 1)

        ((first, about),) = client.pool.ready().items()
        api = pid_of_api(settings)
        os.kill(about["pid"], signal.SIGKILL)
        os.kill(api, signal.SIGKILL)
        wait_until(lambda: client.pool.ready().keys() - {first} and pid_of_api(settings) not in (0, api))
        wait_until(lambda: is_ready(Settings(port=settings["port"])))
        assert len(search(settings)) == 3
        printed = (settings["home"] / "serve.log").read_text()
        assert all(f"{name} was ended by SIGKILL, and is started again\n" in printed for name in ("api", "worker 1"))
    finally:
        stopped = run("serve", "--stop", **settings)
    assert "stopped (process" in stopped.stdout
    assert running(settings) == []
    assert client.pool.workers().keys() <= {first}
    assert "nothing runs" in run("serve", "--stop", **settings).stdout


@pytest.mark.wide
def test_two_services_on_a_machine(settings: dict[str, Any], home: Path, tmp_path: Path) -> None:
    own = {name: settings[name] for name in ("model", "precision", "threads")}
    places = [tmp_path / name for name in ("first", "second = one")]
    for place in places:
        place.mkdir()
        (place / "models").symlink_to((home / "models").absolute())
        place.joinpath("headlines.csv").write_text(f"headline\nthe headline of {place.name}\n")
    try:
        for place in places:
            flags = ("--sample", "--detach", "--home", place.name, "--port", free_port())
            done = run("serve", *flags, cwd=tmp_path, long_jobs=0, **own)
            assert done.returncode == 0, done.stderr
            assert f"default with 1,025 documents\nAPI:    http://localhost:{flags[-1]}" in done.stdout
            assert f"--home {shlex.quote(str(place))}\n" in done.stdout
        for place in places:
            words = ("--text-column", "headline", "--name", "mine", "--home", place)
            assert run("index", "build", place / "headlines.csv", *words).returncode == 0
            with Client(home=str(place), timeout_s=PATIENCE_S) as client:
                wait_until(lambda pool=client.pool: any("mine" in one["indexes"] for one in pool.ready().values()))  # type: ignore[misc]
            assert run("search", "headline", "--index", "mine", "--home", place).stdout.endswith(f"of {place.name}\n")
        first, second = (int((place / PORT_FILE).read_text()) for place in places)
        assert first != second
        again = run("serve", "--sample", "--detach", "--workers", 3, home=places[0])
        assert_refused(again, "bad_setting")
        assert "stop it first, by this command with --stop" in again.stderr
    finally:
        stopped = run("serve", "--stop", home=places[1])
        left = run("status", home=places[0])
        run("serve", "--stop", home=places[0])
    assert "stopped (process" in stopped.stdout
    assert "lane interactive" in left.stdout


@pytest.mark.parametrize("name", ["a,b", "file"])
def test_a_home_that_cannot_be_used_is_reported_before_the_sample_is_built(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    done = run("serve", "--sample", home=tmp_path / name)
    assert_refused(done, "bad_setting")
    assert "choose another" in done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted({name, "file"})


def test_a_service_uses_its_own_redis_alone_and_other_commands_find_it(tmp_path: Path, redis_url: str) -> None:
    supervisor = Supervisor(Settings(home=str(tmp_path), redis_port=free_port(), workers=0, long_jobs=0))
    supervisor.services.clear()
    own = supervisor.settings
    try:
        supervisor.start()
        assert Settings(home=str(tmp_path)).redis_address == own.redis_address
        supervisor.stop()
        port = int(redis_url.rpartition(":")[2].partition("/")[0])
        supervisor.settings = replace(own, redis_port=port)
        supervisor.redis = Service("redis", embedded.command(supervisor.settings), {})
        with pytest.raises(NotReady, match=f"ended at once .*port {port}"):
            supervisor.start()
    finally:
        supervisor.stop()


def test_redis_stops_last_and_the_api_first(tmp_path: Path) -> None:
    supervisor = Supervisor(Settings(home=str(tmp_path), redis_port=free_port(), workers=2))
    assert supervisor.redis
    services = [*supervisor.services, supervisor.redis]
    ended, names = tmp_path / "ended", [service.name for service in services]
    ended.touch()
    for service in services:
        note = f"trap 'echo {service.name} >> {ended}; exit' TERM; touch {tmp_path}/{service.name.replace(' ', '')}"
        service.command = ["bash", "-c", f"{note}; while :; do read -t 1 <> <(:); done"]
        service.start()
    wait_until(lambda: all((tmp_path / name.replace(" ", "")).exists() for name in names))
    supervisor.stop()
    assert ended.read_text().splitlines() == ["api", "jobs", "worker 1", "worker 2", "redis"]
    assert [service.name for service in Supervisor(Settings(workers=0, long_jobs=0)).services] == ["api"]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), (signal.SIGHUP, 0), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_no_process_is_left(
    settings: dict[str, Any], tmp_path: Path, number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Process, "launcher", () if number == signal.SIGHUP else ("nohup",))
    with Process(tmp_path / "log", "serve", "--workers", 2, "--try", "rain", **settings) as stack:
        wait_until(lambda: "curl" in stack.output)
        assert "search: rain" in stack.output
        assert len(running(settings)) >= 4
        ignored = re.findall(r"SigIgn:\s*(\w+)", Path(f"/proc/{stack.pid}/status").read_text())
        assert int(ignored[0], 16) % 2 == (number != signal.SIGHUP)  # SIGHUP has the number 1
        stack.send(number)
        assert stack.wait() == code
    wait_until(lambda: running(settings) == [])


def test_the_summary(client: Client, redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        print_summary(Settings(redis_url=silent_url, home=str(tmp_path), workers=2))
    printed = capsys.readouterr().out
    assert "ready:  2 workers" in printed
    assert "search: no answer yet: Redis does not answer" in printed
    assert "\nstop:   Ctrl-C" in printed
    pool, keys = queue_of(client).pool, client.keys
    settings = Settings(redis_url=redis_url, key_prefix=keys.prefix, pool=keys.pool)
    print_summary(settings)
    assert "ready:  no worker runs" in (said := capsys.readouterr().out)
    assert "authorization" not in said
    for name, pid, indexes in (("a", 1, {}), ("b", os.getpid(), {"news": INDEX})):
        pool.announce(name, {"state": "ready", "host": socket.gethostname(), "pid": pid, "indexes": indexes})
    print_summary(replace(settings, api_keys_file="keys"), pids=[os.getpid()])
    assert "ready:  1 worker with" in (said := capsys.readouterr().out)
    assert "index news" in said
    assert '-H "authorization: Bearer $YOUR_KEY"' in said


@pytest.fixture
def preparing(settings: dict[str, Any], tmp_path: Path) -> Iterator[TextIO]:
    """Lock a model that is not prepared, and yield the lock. The workers of the service wait for it."""
    settings["home"] = tmp_path / "empty"
    folder = prepared_folder(settings["home"], str(settings["model"]))
    folder.parent.mkdir(parents=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
        assert running(settings) == []


@pytest.mark.wide
@pytest.mark.usefixtures("preparing")
@pytest.mark.parametrize(("flags", "number"), [((), signal.SIGTERM), (("--detach",), signal.SIGINT)])
def test_a_stop_during_the_preparation_of_the_model_ends_all_processes(
    settings: dict[str, Any], tmp_path: Path, flags: tuple[str, ...], number: signal.Signals
) -> None:
    log = settings["home"] / "serve.log" if flags else tmp_path / "log"
    with Process(tmp_path / "log", "serve", *flags, **settings) as stack:
        wait_until(lambda: log.exists() and "another process" in log.read_text())
        stack.send(number)
        assert stack.wait() == 1
        assert not flags or "stopping …" in stack.output


@pytest.mark.wide
def test_own_workers_must_be_ready(settings: dict[str, Any], client: Client, preparing: TextIO, tmp_path: Path) -> None:
    Pool(queue_of(client).broker, client.keys, alive_s=3_600).announce("a", {"state": "ready", "indexes": {}})
    with Process(tmp_path / "log", "serve", **settings | {"indexes": ""}) as stack:
        wait_until(lambda: is_ready(Settings(port=settings["port"])) and "another process" in stack.output)
        assert "curl" not in stack.output
        fcntl.flock(preparing, fcntl.LOCK_UN)
        wait_until(lambda: "curl" in stack.output)
        assert f"ready:  1 worker with {settings['model']}" in stack.output
        assert stack.terminate() == 0


def test_a_log_may_have_bytes_that_are_not_utf_8(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"  # the log contains the name of the home folder
    log.write_bytes(f"\n{background.LAST_LINE}".encode() + b"/caf\xe9")
    with subprocess.Popen(["sleep", str(PATIENCE_S)]) as process:
        try:
            background._wait_for_summary(process.pid, log)
        finally:
            process.kill()


@pytest.mark.parametrize("flags", [(), ("--detach",)])
def test_a_port_in_use_is_reported_and_no_process_is_left(settings: dict[str, Any], flags: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", settings["port"])):
        done = run("serve", *flags, **settings)
    assert_refused(done, "port_in_use")
    assert f"127.0.0.1:{settings['port']}" in done.stderr
    assert running(settings) == []


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({"indexes": "other=/nowhere"}, "index_not_found", "shoal: /nowhere holds no index"),
        pytest.param({"model": "/nowhere"}, "model_not_found", "worker 1 could not start", marks=pytest.mark.wide),
        pytest.param({"redis_url": "redis://127.0.0.1:1/0"}, "unavailable", "Redis", marks=pytest.mark.wide),
    ],
)
def test_a_failed_start_is_reported(settings: dict[str, Any], changed: dict[str, str], code: str, words: str) -> None:
    done = run("serve", **settings | changed)
    assert_refused(done, code)
    assert words in done.stderr
    assert running(settings) == []


@pytest.mark.parametrize(
    ("times", "words", "error", "told", "num_starts"),
    [
        (MAX_RETRIES, "filesystem error", None, "", MAX_RETRIES + 1),
        (9, "disk error", NotReady, "ended with exit code 3 before it was ready: disk error", MAX_RETRIES + 1),
        (9, "shoal: no index [index_not_found]", IndexNotFound, "could not start: no index", 1),
    ],
    ids=["a third time", "given up", "an error with a remedy"],
)
def test_a_worker_that_ends_is_started_again_or_given_up_with_the_reason(
    settings: dict[str, Any],
    tmp_path: Path,
    times: int,
    words: str,
    error: type[ShoalError] | None,
    told: str,
    num_starts: int,
) -> None:
    texts = {key: str(value) for key, value in settings.items() if not isinstance(value, int)}
    supervisor, starts = Supervisor(Settings(**(settings | texts))), tmp_path / "starts"
    worker = supervisor.services[-1]
    worker.command = [sys.executable, "-c", FAIL, str(starts), str(times), words, *worker.command]
    try:
        supervisor.start()
        with pytest.raises(error, match=f"worker 1 {told}") if error else nullcontext():
            supervisor.wait_until_ready()
        assert starts.stat().st_size == num_starts  # a byte for each start
        assert error or is_ready(supervisor.settings)
    finally:
        supervisor.stop()


def test_an_error_of_a_process_is_left_to_the_supervisor(capfd: pytest.CaptureFixture[str]) -> None:
    lines = ["a warning", NotReady("the model is being fetched").line]
    service = Service("worker", ["printf", "%s\\n", *lines], {})
    service.command = ["sh", "-c", f"{shlex.join(service.command)} >&2"]
    service.start()
    wait_until(lambda: service.exit_code() is not None)
    assert service.last_error() == lines[-1]
    assert capfd.readouterr().err == "a warning\n"
    service.command = ["true"]
    service.start()
    wait_until(lambda: service.exit_code() is not None)
    assert service.last_error() == "it gave no reason"


def test_only_a_second_ctrl_c_kills(tmp_path: Path) -> None:
    supervisor, is_ready = Supervisor(Settings(redis_url="redis://127.0.0.1:1/0")), tmp_path / "ready"
    service = Service("deaf", ["bash", "-c", f"trap '' TERM; touch {is_ready}; sleep {PATIENCE_S}"], {})
    supervisor.services[:] = [service]
    service.start()
    wait_until(is_ready.exists)
    for _ in range(2):
        supervisor.ask_to_stop()
    assert service.process
    with pytest.raises(subprocess.TimeoutExpired):
        service.process.wait(0.1)
    supervisor.ask_to_stop(impatiently=True)
    assert service.process.wait(PATIENCE_S) == -signal.SIGKILL
    service.stop()


def test_starts_are_repeated(caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    supervisor = Supervisor(Settings(redis_url="redis://127.0.0.1:1/0"))
    supervisor.services[:] = [service := Service("a", ["sh", "-c", "echo why >&2"], {})]
    service.start()
    service.command = [str(tmp_path / "missing")]
    with ThreadPoolExecutor(1) as threads:
        watching = threads.submit(supervisor.watch)
        wait_until(lambda: watching.done() or caplog.text.count("cannot be started") > 1)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        service.command = ["sleep", str(PATIENCE_S)]
        wait_until(lambda: watching.done() or "can't start new thread" in caplog.text)
        monkeypatch.undo()
        wait_until(lambda: watching.done() or service.exit_code() is None)
        supervisor.ask_to_stop()
    service.stop()
    watching.result()
    assert caplog.text.count("(why), and is started again") > 1  # the reason is kept


def test_a_stop_ends_the_processes_that_a_process_has_left(tmp_path: Path) -> None:
    note = tmp_path / "child"
    service = Service(
        "parent", ["bash", "-c", f"sleep {PATIENCE_S} & echo $! > {note}.new; mv {note}.new {note}; wait"], {}
    )
    service.start()
    wait_until(note.exists)
    child = psutil.Process(int(note.read_text()))
    service.stop()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_stop_ends_the_wait_for_redis() -> None:
    supervisor = Supervisor(Settings(redis_url="redis://127.0.0.1:1/0"))
    supervisor.redis = Service("redis", ["sleep", str(PATIENCE_S)], {})
    supervisor.ask_to_stop()
    try:
        with pytest.raises(NotReady, match="stopped before it was ready"):
            supervisor.start()
    finally:
        supervisor.stop()


@pytest.mark.wide
def test_a_service_stops_even_if_nobody_reads_its_output(settings: dict[str, Any]) -> None:
    command = [sys.executable, "-m", "shoal", "serve"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, env=environment(**settings), **pipes) as process:
        assert process.stdout
        assert any(line.startswith(b"stop:") for line in process.stdout)
        process.stdout.close()
        process.terminate()
        assert process.wait(PATIENCE_S) in (0, 120)  # 120 is Python's code if its last output cannot be written
    assert running(settings) == []
