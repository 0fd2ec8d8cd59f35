"""Fixtures of all tests: a private Redis, a tiny model, and workers with both."""

import contextlib
import fcntl
import gc
import importlib
import itertools
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, settings
from queues import ALIVE_S, Queue
from tcp_proxy import Proxy
from threadpoolctl import threadpool_limits

from shoal import Client
from shoal.broker.embedded import find_server
from shoal.contract.keys import Keys
from shoal.errors import MissingExtra
from shoal.records.source import Source
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.reranker import Reranker
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.document_encoder import LocalEncoder
from shoal_workers.index.index import Index
from shoal_workers.loop.worker import Worker
from shoal_workers.model.model import prepared_folder

TESTS = Path(__file__).parent
ROOT = TESTS.parent

# Test modules import each other by module name alone. All names differ.
sys.path += [str(folder) for folder in sorted(TESTS.rglob("*")) if any(folder.glob("test_*.py"))]

#: Words that the tiny model knows. The tests' index has every pair of them.
WORDS = ("storm", "europe", "climate", "change", "rain", "market", "falls", "rises")

#: Files with slow tests, the slowest file last.
SLOW_FILES = (
    "test_redis_restart",
    "test_index_copies",
    "test_api_security",
    "test_api_server",
    "test_stop",
    "test_runner",
    "test_encoder",
    "test_chaos",
    "test_supervisor",
    "test_watch",
    "test_own_graph",
    "test_fuzz_openapi",
)

#: Seed of the order of the tests and of `random`. --randomly-seed names another seed.
SEED = 20_261_121

#: Ports on which tests listen, below the system's ports for outgoing connections, and the size of a block of ports.
ALL_PORTS, PORTS_A_BLOCK = range(10_000, 32_000), 1_000

#: Longest wait for an event, in seconds. Only a hang takes longer, even on a busy machine. Tests compare no durations.
#: `scripts/mutants` sets a shorter wait, because most of its waits end without the event.
PATIENCE_S = float(os.environ.get("TEST_PATIENCE_S", 300.0))

# Tests have only the settings that they name, and not the settings of the shell.
for _name in [name for name in os.environ if name.startswith("SHOAL_") or name.lower().endswith("_proxy")]:
    if _name != "SHOAL_FUZZ":
        del os.environ[_name]

# Several test processes share few cores, so their further threads would mostly wait for each other. These variables
# are for libraries that are loaded later, and for child processes.
for _name in ("RAYON_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[_name] = os.environ.get(_name) or "1"
threadpool_limits(int(os.environ["OPENBLAS_NUM_THREADS"]), "blas")  # numpy has read these variables already
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A shell starts background commands with SIGINT ignored, and the processes of the tests would inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The cases of a property share its fixtures, and a busy machine is no fault of the code. `scripts/test-all` tries 100
# cases, as hypothesis does by default.
_always = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
settings.register_profile("wide", _always, derandomize=True, database=None)
settings.register_profile("suite", settings.get_profile("wide"), max_examples=25)
settings.register_profile("explore", _always)
settings.load_profile("suite")


#: An import of a package that may be missing: torch, sentence_transformers or the client of an engine.
_OPTIONAL = re.compile(r"^ *(import|from) (torch|sentence_transformers|psycopg|lancedb|qdrant_client)\b", re.MULTILINE)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give pytest-randomly a fixed seed, unless the command line names one."""
    if config.getoption("randomly_seed", "") == "default":
        config.option.randomly_seed = SEED


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slow files, so that no process runs one alone at the end."""
    sizes = Counter(item.path.stem for item in items)
    sizes.update({name: 1_000_000 + n for n, name in enumerate(SLOW_FILES)})
    items.sort(key=lambda item: -sizes[item.path.stem])


def pytest_collection_finish() -> None:
    """Import all modules that need no optional package.

    Hypothesis draws some values from the constants of the loaded modules. They must not depend on the tests that ran
    before. All modules stay loaded, so the garbage collector need not look at them again.
    """
    for folder in ("shared", "api", "workers"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.stem != "__main__" and not _OPTIONAL.search(path.read_text()):
                parts = path.relative_to(ROOT / folder).with_suffix("").parts
                importlib.import_module(".".join(parts).removesuffix(".__init__"))
    gc.collect()
    gc.freeze()


def redis_program() -> str:
    """Return the path of the tests' Redis server: TEST_REDIS_SERVER, or the server that `shoal serve` starts.

    Raises MissingExtra.
    """
    return os.environ.get("TEST_REDIS_SERVER") or find_server()


@cache
def own_ports() -> tuple[socket.socket, Iterator[int]]:
    """Return a socket that reserves a block of ports for this process, and an endless iterator over the block's ports.

    The socket listens on the first port of the block for as long as the process lives. So no two test processes on a
    machine use the same block.
    """
    for first in ALL_PORTS[::PORTS_A_BLOCK]:
        with contextlib.suppress(OSError):
            guard = socket.create_server(("127.0.0.1", first))
            return guard, itertools.cycle(range(first + 1, first + PORTS_A_BLOCK))
    pytest.exit(f"a program listens on each of the ports {list(ALL_PORTS[::PORTS_A_BLOCK])}: tests need one of them")


def free_port() -> int:
    """Return a port on loopback that nothing listens on."""
    _, ports = own_ports()
    for port in itertools.islice(ports, PORTS_A_BLOCK):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    pytest.fail("no port is free")


class RedisServer:
    """A private redis-server, which can be stopped and started again with its data.

    Connections to `url` wait up to `PATIENCE_S` for an answer. Connections to `plain_url` have the usual time limits.
    """

    def __init__(self, folder: Path, program: str = "", **options: object):
        self.program = program
        self.options = options
        self.port = free_port()
        self.folder = folder
        self.plain_url = f"redis://127.0.0.1:{self.port}/0"
        self.url = f"{self.plain_url}?socket_timeout={PATIENCE_S}&socket_connect_timeout={PATIENCE_S}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self.launch()
        with redis.Redis.from_url(self.url) as connection:
            wait_until(lambda: _answers(connection))

    def launch(self) -> None:
        """Start the server."""
        options: dict[str, object] = {"port": self.port, "bind": "127.0.0.1", "dir": self.folder}
        options |= {"save": "", "appendonly": "yes"}
        options |= {"hz": 100}  # blocked commands end within 10 ms of their time, not 100 ms
        options |= {name.replace("_", "-"): value for name, value in self.options.items()}
        flags = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        self._process = subprocess.Popen([self.program or redis_program(), *flags], stdout=subprocess.DEVNULL)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop the server; its data stays on disk."""
        self.send(number)
        if self._process:
            self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send the server a signal."""
        if self._process:
            self._process.send_signal(number)


def _answers(connection: "redis.Redis") -> bool:
    try:
        return bool(connection.ping())
    except redis.RedisError:
        return False


def wait_until(is_true: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Poll until the condition holds; fail the test if it does not hold within the time.

    Polls are counted, not seconds, so a pause of the whole test process does not shorten the wait.
    """
    pause, tries = threading.Event(), int(within_s / 0.02)
    for _ in range(tries):
        if is_true():
            return
        pause.wait(0.02)
    pytest.fail(f"not true within {within_s} s: {is_true}")


@pytest.fixture(scope="session", autouse=True)
def own_block() -> Iterator[None]:
    """This process's block of ports."""
    guard, _ = own_ports()
    yield
    guard.close()


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A private home folder of the run. The user's home folder is neither read nor written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("user")))
        yield


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One Redis for all tests of this process. Each test has its own keys."""
    try:
        redis_program()
    except MissingExtra as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    server = RedisServer(tmp_path_factory.mktemp("redis"), appendonly="no")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_redis(redis_server: RedisServer, tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis that the test may stop."""
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def proxy(own_redis: RedisServer) -> Iterator[Proxy]:
    """A proxy in front of the test's own Redis."""
    with Proxy(own_redis.port) as proxy:
        yield proxy


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of the tests' Redis."""
    return redis_server.url


@pytest.fixture
def keys(redis_url: str) -> Iterator[Keys]:
    """Keys of the test alone. Fail a test that leaves a key without the expiry of docs/architecture.md."""
    keys = Keys(prefix="test", pool=secrets.token_hex(4))
    yield keys
    with redis.Redis.from_url(redis_url, decode_responses=True) as connection:
        found = list(connection.scan_iter(f"{keys.root}:*"))
        of_queue = (keys.lane(""), keys.held(""), keys.holders, keys.suspects, keys.limits, keys.scripts, keys.unread)
        lasting = (*of_queue, keys.changes(""), keys.dead, keys.changed)
        unanswered = {name for name in found if connection.type(name) == "hash" and connection.hexists(name, "lane")}
        lasts = [name for name in found if not name.startswith(lasting) and name not in unanswered]
        immortal = [name for name in lasts if connection.ttl(name) == -1]
        if found:
            connection.delete(*found)
    assert not immortal, f"keys without an expiry: {immortal}"


@pytest.fixture
def queue(redis_url: str, keys: Keys) -> Iterator[Queue]:
    """The queue of the test's own pool."""
    queue = Queue.connect(redis_url, keys)
    yield queue
    queue.close()


@pytest.fixture
def own_queue(own_redis: RedisServer) -> Iterator[Queue]:
    """The queue in a Redis that the test may stop."""
    queue = Queue.connect(own_redis.url, Keys())
    yield queue
    queue.close()


@pytest.fixture
def client(redis_url: str, keys: Keys) -> Iterator[Client]:
    """A client of the test's own pool."""
    with Client(redis_url, key_prefix=keys.prefix, pool=keys.pool, timeout_s=PATIENCE_S) as client:
        client.pool.alive_s = ALIVE_S
        yield client


@pytest.fixture(autouse=True)
def no_leftover_threads() -> Iterator[None]:
    """Fail a test that leaves a thread of Shoal's running."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and "shoal" in _home(thread)]
    for thread in left:
        thread.join(PATIENCE_S)
    assert not [thread for thread in left if thread.is_alive()]


@pytest.fixture(autouse=True)
def no_leftover_files() -> Iterator[None]:
    """Fail a test that leaves files or sockets open, except in fixtures that later tests also use."""
    before = _open_files()
    yield
    if _open_files() - before:
        gc.collect()
    with contextlib.suppress(pytest.fail.Exception):  # a thread closes its files a moment after it was told to end
        wait_until(lambda: not _open_files() - before, within_s=10)
    left = _open_files() - before
    assert not left


def _open_files() -> set[str]:
    """Return the number and target of each open file, if the system has /proc."""
    folder, found = "/proc/self/fd", set()
    with contextlib.suppress(FileNotFoundError):
        for number in os.listdir(folder):
            with contextlib.suppress(OSError):
                found.add(f"{number} {os.readlink(f'{folder}/{number}')}")
    return found


def _home(thread: threading.Thread) -> str:
    target = getattr(thread, "_target", None)
    return getattr(target, "__module__", "") or ""


@pytest.fixture(scope="session")
def torch_reference() -> None:
    """Skip a test that compares with torch if the `export` extra is not installed."""
    if not find_spec("torch") or not find_spec("sentence_transformers"):
        pytest.skip("needs torch and sentence-transformers: pip install 'shoal[export]'")


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Sentence Transformers model with random weights.

    One process makes it for all processes of the run, and prepares it for serving in a neighbouring folder.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "tiny"
    with (folder.parent / "tiny.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            command = [sys.executable, "-W", "ignore", str(TESTS / "shared/models/tiny_model.py"), str(folder)]
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return folder / "model"


@pytest.fixture(scope="session")
def home(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This process's own home folder, in which the tiny models are prepared for serving."""
    home = tmp_path_factory.mktemp("home")
    for name in ("model", "reranker"):
        shutil.copytree(tiny_source.parent / "prepared" / name, prepared_folder(home, str(tiny_source.with_name(name))))
    return home


@pytest.fixture(scope="session")
def tiny_model(tiny_source: Path, home: Path) -> Path:
    """The prepared tiny model."""
    return prepared_folder(home, str(tiny_source))


@pytest.fixture
def own_source(tiny_source: Path, tmp_path: Path) -> Path:
    """The test's own copy of the tiny model, which it may change."""
    return Path(shutil.copytree(tiny_source, tmp_path / "model"))


@pytest.fixture
def own_model(tiny_model: Path, tmp_path: Path) -> Path:
    """The test's own copy of the prepared tiny model, without measured ranges."""
    return Path(shutil.copytree(tiny_model, tmp_path / "prepared", ignore=shutil.ignore_patterns("cache")))


@pytest.fixture(scope="session")
def encoder(tiny_model: Path) -> Encoder:
    """The tiny model, opened in f32."""
    return Encoder.open(tiny_model, "openvino", "f32", 1)


@pytest.fixture(scope="session")
def encoder_of_two_threads(tiny_model: Path) -> Encoder:
    """The tiny model on two threads, so that batches run aside."""
    encoder = Encoder.open(tiny_model, "openvino", "f32", 2)
    encoder.engine.start_aside([])  # this opens files that later tests use too
    return encoder


@pytest.fixture(scope="session")
def reranker_source(tiny_source: Path) -> Path:
    """A tiny cross-encoder with random weights, prepared for serving in the same home."""
    return tiny_source.with_name("reranker")


@pytest.fixture(scope="session")
def reranker(reranker_source: Path, home: Path) -> Reranker:
    """The tiny cross-encoder, opened in f32."""
    return Reranker.open(prepared_folder(home, str(reranker_source)), "openvino", "f32", 1)


@pytest.fixture(scope="session")
def reranker_of_two_threads(reranker_source: Path, home: Path) -> Reranker:
    """The tiny cross-encoder on two threads."""
    reranker = Reranker.open(prepared_folder(home, str(reranker_source)), "openvino", "f32", 2)
    reranker.engine.start_aside([])
    return reranker


@pytest.fixture(scope="session")
def index_folder(tmp_path_factory: pytest.TempPathFactory, encoder: Encoder) -> Path:
    """An index of all pairs of `WORDS`. Tests only read it."""
    folder = tmp_path_factory.mktemp("index")
    pairs = [f"{first} {second}" for first in WORDS for second in WORDS]
    (folder / "pairs.csv").write_text("id,text\n" + "".join(f"{n},{pair}\n" for n, pair in enumerate(pairs)))
    build(Source(folder / "pairs.csv"), folder / "pairs", LocalEncoder(encoder))
    return folder / "pairs"


@pytest.fixture(scope="session")
def index(index_folder: Path) -> Index:
    """The index of the `WORDS`, opened."""
    return Index.open(index_folder)


@pytest.fixture
def worker(queue: Queue, encoder: Encoder, index: Index) -> Worker:
    """A worker of the test's own pool. The test calls `step`."""
    worker = Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096))
    worker.pool.alive_s = ALIVE_S
    return worker


@pytest.fixture
def serving(worker: Worker) -> Iterator[Worker]:
    """The same worker, announced to the pool and stepped by a thread."""
    worker.pool.announce(worker.id, {"state": "ready"})
    with running(worker):
        yield worker


def run_reference(script: str, *arguments: Path | str) -> None:
    """Run a script of tests/shared/models, which makes models and their outputs with torch."""
    command = [sys.executable, "-W", "ignore", str(TESTS / "shared/models" / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def running(worker: Worker) -> contextlib.AbstractContextManager[None]:
    """Step a worker in a thread."""
    return repeating(lambda: worker.step(block_s=0.02))


@contextlib.contextmanager
def repeating(*steps: Callable[[], object], pause_s: float = 0.0) -> Iterator[None]:
    """Call each function again and again, in a thread of its own, until the end of the `with`."""
    stopped = threading.Event()

    def repeat(step: Callable[[], object]) -> None:
        while not stopped.wait(pause_s):
            step()

    threads = [threading.Thread(target=repeat, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
