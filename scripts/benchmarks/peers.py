"""The servers that Shoal is compared with: their requests and answers, installation and start."""

import hashlib
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import ArrayLike, NDArray
from stack import HOME, ROOT, free_port, logged, started

from shoal.errors import BadSetting, ModelMismatch, NotReady
from shoal.supervisor.process import Service
from shoal_workers.model.download import PACKAGED, find_source
from shoal_workers.process import processors

#: The path of each kind of server for embedding texts.
PATHS = {"tei": "/embed", "openai": "/v1/embeddings"}

#: Vector length of the model that every peer serves.
DIMENSION = 384

#: Lowest cosine to fp32 of a server that does the same work as Shoal.
MIN_COSINE = 0.999


@dataclass(frozen=True)
class Target:
    """A server to which texts are sent; `kind` is the format of its requests and answers, a key of PATHS.

    `pid` is its process if it runs here, and `model` the name of its model in requests in OpenAI's format.
    """

    name: str
    url: str
    kind: str = "tei"
    model: str = PACKAGED
    pid: int | None = None

    def body(self, texts: Sequence[str]) -> bytes:
        """Return the body of a request to embed the texts."""
        openai = {"input": list(texts), "model": self.model}
        return json.dumps(openai if self.kind == "openai" else {"inputs": list(texts)}).encode()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the server's vectors of the texts, [n, dimension].

        Raises OSError without a successful answer.
        """
        request = Request(self.url, self.body(texts), {"content-type": "application/json"})
        with urlopen(request, timeout=180) as response:
            return self.vectors(json.load(response))

    def vectors(self, answer: Any) -> NDArray[np.float32]:
        """Return the vectors in an answer, in the order of the texts."""
        if self.kind == "openai":
            answer = [item["embedding"] for item in sorted(answer["data"], key=lambda item: item["index"])]
        return np.asarray(answer, np.float32)


def target_of(spec: str) -> Target:
    """Return the server at `tei+http://host:port` or `openai+http://host:port`.

    A path replaces the usual path, and the part after `#` is the name of the model: Infinity is at
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
    """Return the lowest cosine of the server's vectors to the `reference` in fp32, [n, dimension].

    Raises ModelMismatch for a low cosine, because the speed of a server that does other work cannot be compared.
    """
    found, expected = (np.asarray(vectors, np.float32) for vectors in (target.embed(texts), reference))
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    lowest = float(((found * expected).sum(axis=1) / lengths).min())
    if not lowest > MIN_COSINE:
        raise ModelMismatch(
            f"{target.name} has a cosine of {lowest:.5f} to the fp32 vectors, and not over {MIN_COSINE}: "
            "let it serve the same model"
        )
    return lowest


@dataclass(frozen=True)
class Peer:
    """A server that is installed and started here; `folder` has its requirements.

    In `command`, `environment` and `spec`, {model} is the model's folder, {folder} the peer's folder, {port} the port,
    and {dtype} the fastest number format of the processor.
    """

    name: str
    folder: Path
    command: str
    spec: str = "tei+http://127.0.0.1:{port}"
    environment: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def start(self, settings: Mapping[str, str] | None = None) -> Iterator[Target]:
        """Run the server on a port of loopback, yield it once it embeds, and stop it at the end.

        Raises NotReady if it cannot be installed or does not start.
        """
        home, port = self._install(), free_port()
        dtype = "bfloat16" if processors.has_bf16() else "float32"
        words = {"model": find_source(PACKAGED), "folder": self.folder, "port": port, "dtype": dtype}
        program, *flags = [word.format(**words) for word in shlex.split(self.command)]
        environment = {name: text.format(**words) for name, text in self.environment.items()}
        environment |= {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "SHOAL_PORT": str(port)} | dict(settings or {})
        log = home / f"{self.name}.log"
        server = Service(self.name, logged([str(home / "bin" / program), *flags], log), environment)
        target = replace(target_of(self.spec.format(**words)), name=self.name)
        with started([server], log, lambda: target.embed(["is it ready?"]).shape == (1, DIMENSION)):
            yield replace(target, pid=server.process.pid if server.process else None)

    def _install(self) -> Path:
        """Return the peer's virtual environment; make it if it is missing or has other requirements."""
        home = HOME / "bench" / f"{self.folder.name}-env"
        requirements, stamp = self.folder / "requirements.txt", home / ".installed"
        wanted = hashlib.sha256(sys.version.encode() + requirements.read_bytes()).hexdigest()
        if stamp.exists() and stamp.read_text() == wanted:
            return home
        print(f"· installing {self.folder.name} into {home} (some minutes the first time)", file=sys.stderr)
        pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-qq"]
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
            subprocess.run([*pip, "install", "--requirement", str(requirements)], check=True)
        except subprocess.CalledProcessError as error:
            raise NotReady(f"{self.name} cannot be installed: the lines above say why; see {requirements}") from error
        stamp.write_text(wanted)
        return home


_BASELINES = ROOT / "scripts" / "baselines"

#: The peers by name, with their fastest known flags.
PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "baseline",
            _BASELINES / "fastapi_server",
            "gunicorn -k uvicorn.workers.UvicornWorker -w 2 -b 127.0.0.1:{port} --timeout 180 --chdir {folder} app:app",
            environment={"MODEL": "{model}"},
        ),
        Peer(
            "infinity",
            _BASELINES / "infinity",
            "infinity_emb v2 --model-id {model} --served-model-name all-MiniLM-L6-v2 --host 127.0.0.1 --port {port}"
            " --engine torch --device cpu --dtype {dtype} --bettertransformer --no-compile --log-level warning",
            "openai+http://127.0.0.1:{port}/embeddings#all-MiniLM-L6-v2",
            # A second compute thread only competes with Infinity's own threads for the two processors.
            {"OMP_NUM_THREADS": "1"},
        ),
    )
}
