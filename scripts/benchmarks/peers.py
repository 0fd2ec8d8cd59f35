"""The servers that we are compared with: how to ask any of them, and how to run those that are installed here."""

import hashlib
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
import psutil
from numpy.typing import ArrayLike, NDArray

from shoal.address import find_address
from shoal.errors import BadSetting, ModelMismatch, NotReady
from shoal.settings import Settings
from shoal.supervisor.process import Service
from shoal_workers.model.source import PACKAGED, find_source
from shoal_workers.process import processors

BASELINES = Path(__file__).resolve().parents[1] / "baselines"

#: Where each kind of server takes texts to embed.
PATHS = {"tei": "/embed", "openai": "/v1/embeddings"}

#: Vector length of the model that every peer serves.
DIMENSION = 384

#: Lowest cosine to fp32 at which a server does the same work as we do.
MIN_COSINE = 0.999

READY_WITHIN_S = 180.0


@dataclass(frozen=True)
class Target:
    """A server to send texts to; `kind` is the shape of its requests and answers, one of PATHS.

    `pid` is its process if it runs here, and `model` what it calls its model, which the OpenAI shape wants to be told.
    """

    name: str
    url: str
    kind: str = "tei"
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    model: str = PACKAGED
    pid: int | None = None

    def body(self, texts: Sequence[str]) -> bytes:
        """The request that has the texts embedded."""
        openai = {"input": list(texts), "model": self.model}
        return json.dumps(openai if self.kind == "openai" else {"inputs": list(texts)}).encode()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The server's vectors of the texts, [n, dimension].

        Raises OSError without an answer, or with one that is no success.
        """
        with urlopen(Request(self.url, self.body(texts), dict(self.headers)), timeout=READY_WITHIN_S) as response:
            return self.vectors(json.load(response))

    def vectors(self, answer: Any) -> NDArray[np.float32]:
        """The vectors in an answer, in the order of the texts."""
        if self.kind == "openai":
            answer = [item["embedding"] for item in sorted(answer["data"], key=lambda item: item["index"])]
        return np.asarray(answer, np.float32)

    def processes(self) -> list[int]:
        """Ids of the processes whose processor time and memory count: the server and all that it started."""
        if self.pid is None:
            return []
        return [self.pid, *(process.pid for process in psutil.Process(self.pid).children(recursive=True))]


def target_of(spec: str) -> Target:
    """The server at `tei+http://host:port` or `openai+http://host:port`.

    A path takes the place of the usual one, and what follows `#` is the name of the model: Infinity is at
    `openai+http://host:7997/embeddings#model`. Raises BadSetting.
    """
    url = urlsplit(spec)
    kind, _, scheme = url.scheme.partition("+")
    if kind not in PATHS or scheme not in ("http", "https") or not url.hostname:
        raise BadSetting(f"{spec!r} names no server: write tei+http://host:port or openai+http://host:port")
    path = url.path if url.path.strip("/") else PATHS[kind]
    address = url._replace(scheme=scheme, path=path, fragment="").geturl()
    return Target(spec, address, kind, model=url.fragment or PACKAGED)


def check(target: Target, texts: Sequence[str], reference: ArrayLike) -> float:
    """The lowest cosine between the server's vectors of the texts and the reference's, [n, dimension] in fp32.

    Raises ModelMismatch if it is too low: the server then does other work, and its speed says nothing.
    """
    lowest = float((_unit(target.embed(texts)) * _unit(reference)).sum(axis=1).min())
    if not lowest > MIN_COSINE:
        raise ModelMismatch(
            f"{target.name} has a cosine of {lowest:.5f} to the fp32 vectors where over {MIN_COSINE} is the same work: "
            "let it serve the same model"
        )
    return lowest


def _unit(vectors: ArrayLike) -> NDArray[np.float32]:
    found = np.asarray(vectors, np.float32)
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), np.float32)


@dataclass(frozen=True)
class Peer:
    """A server that is installed and started here; `folder` holds its requirements.

    In `command`, `environment` and `spec`, {model} is the model's folder, {folder} the peer's, {port} the port,
    and {dtype} the fastest number format of the processor.
    """

    name: str
    folder: Path
    command: str
    spec: str
    environment: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def start(self, port: int) -> Iterator[Target]:
        """Runs the server on a port of loopback, yields it once it embeds, and stops it.

        Raises NotReady if it cannot be installed or does not start, and PortInUse.
        """
        find_address("127.0.0.1", port)
        home = self._install()
        server = self._service(home, port)
        try:
            server.start()
            target = replace(target_of(self._filled(self.spec, port)), name=self.name)
            _wait_until_ready(target, server, home / "server.log")
            yield replace(target, pid=server.process.pid if server.process else None)
        finally:
            server.stop()

    def _install(self) -> Path:
        """The peer's virtual environment, made if it is not there or not of these requirements."""
        home = Settings.from_environment().home_folder / "bench" / f"{self.name}-env"
        requirements, stamp = self.folder / "requirements.txt", home / ".installed"
        wanted = hashlib.sha256(sys.version.encode() + requirements.read_bytes()).hexdigest()
        if stamp.exists() and stamp.read_text() == wanted:
            return home
        print(f"· installing {self.name} into {home} (some minutes the first time)", file=sys.stderr)
        pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-qq"]
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
            subprocess.run([*pip, "install", "--requirement", str(requirements)], check=True)
        except subprocess.CalledProcessError as error:
            raise NotReady(f"{self.name} cannot be installed: the lines above say why; see {requirements}") from error
        stamp.write_text(wanted)
        return home

    def _service(self, home: Path, port: int) -> Service:
        """The server's process. A shell sends what it prints to a file and then becomes the server."""
        program, *flags = [self._filled(word, port) for word in shlex.split(self.command)]
        command = ["sh", "-c", 'exec "$@" >"$0" 2>&1', str(home / "server.log"), str(home / "bin" / program), *flags]
        environment = {name: self._filled(text, port) for name, text in self.environment.items()}
        return Service(self.name, command, {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"} | environment)

    def _filled(self, text: str, port: int) -> str:
        dtype = "bfloat16" if processors.has_bf16() else "float32"
        return text.format(model=find_source(PACKAGED), folder=self.folder, port=port, dtype=dtype)


def _wait_until_ready(target: Target, server: Service, log: Path) -> None:
    until = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < until and server.exit_code() is None:
        try:
            found = target.embed(["is it ready?"]).shape
        except OSError:
            time.sleep(0.2)
            continue
        if found == (1, DIMENSION):
            return
        raise ModelMismatch(f"{target.name} answers with an array of {found} where (1, {DIMENSION}) was due")
    lines = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
    raise NotReady("\n".join([f"{target.name} does not start; the end of {log}:", *lines]))


#: The peers by name, each as fast as we could make it without changing it: `docs/performance.md` says what was tried.
PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "baseline",
            BASELINES / "fastapi_server",
            "gunicorn -k uvicorn.workers.UvicornWorker -w 2 -b 127.0.0.1:{port} --timeout 180 --chdir {folder} app:app",
            "tei+http://127.0.0.1:{port}",
            {"MODEL": "{model}"},
        ),
        Peer(
            "infinity",
            BASELINES / "infinity",
            "infinity_emb v2 --model-id {model} --served-model-name all-MiniLM-L6-v2 --host 127.0.0.1 --port {port}"
            " --engine torch --device cpu --dtype {dtype} --bettertransformer --no-compile --log-level warning",
            "openai+http://127.0.0.1:{port}/embeddings#all-MiniLM-L6-v2",
            # A second compute thread only competes with Infinity's own threads for the two processors.
            {"OMP_NUM_THREADS": "1"},
        ),
    )
}
