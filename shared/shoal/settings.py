"""All settings in one table. Environment variables, flags of commands and the docs are made from this table."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self, get_type_hints

from shoal.contract.excerpt import excerpt
from shoal.contract.keys import NAME, NAME_RULE, Keys
from shoal.contract.model_names import ANY_NAME, is_among
from shoal.errors import BadSetting, Unavailable, Unsupported

#: Port of the Redis that `shoal serve` starts, if it is free. It is not 6379, because another Redis may use that.
EMBEDDED_PORT = 6390

#: The file in the home folder that contains the port of the Redis that `shoal serve` starts.
PORT_FILE = "redis.port"

#: The compatible protocols that the API can speak in addition to its own.
PROTOCOLS = (
    *("openai", "tei", "infinity", "ollama", "cohere", "jina", "voyage", "weaviate", "vllm"),
    *("similar", "predict", "wire_formats"),
)

#: Prefixes of the paths of files that the pages / and /docs load. Clients need no key for these files.
OPEN_PATHS = ("/docs/", "/page/")

#: Longest name of a further pool, in characters. Ids of jobs begin with the name, and have at most 128 characters.
MAX_POOL_CHARS = 100

#: Largest value of a numeric setting without a limit of its own. Redis's scripts count the bytes of 10**9 MB exactly.
MOST = 10**9

#: Longest wait for an answer, in seconds: the longest `timeout_s` of a job.
MAX_WAIT_S = 365 * 86_400

#: The origin of web pages, as browsers send it.
_ORIGIN = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]+)?")

#: The URL of a store of indexes. A web server cannot be a store, because nothing can be written there.
_STORE_URL = re.compile(r"(?!https?:)[a-z][a-z0-9+.-]*://[^?#\s]+")


def _setting(
    default: Any,
    help_text: str,
    least: float | None = None,
    most: int = MOST,
    choices: tuple[str, ...] = (),
) -> Any:
    return field(default=default, metadata={"help": help_text, "least": least, "most": most, "choices": choices})


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. Each comes from `SHOAL_<FIELD>` or the flag with the same name.

    Raises BadSetting for a value that cannot work.
    """

    redis_url: str = _setting("", "Redis to use. None: the Redis that `shoal serve` starts from the home folder.")
    key_prefix: str = _setting("shoal", "Beginning of every Redis key.")
    pool: str = _setting("default", "Name of the pool. A pool is one queue and its workers, which all run one model.")
    redis_port: int = _setting(
        0,
        "Port of the Redis that `shoal serve` starts. 0: the home folder's last port, else "
        f"{EMBEDDED_PORT}, else a free port.",
        0,
        65_535,
    )
    long_jobs_redis_url: str = _setting(
        "", "Redis for long jobs, not a cluster. None: the pool's Redis, unless that is a cluster."
    )
    max_backlog: int = _setting(
        10_000, "Maximum number of unanswered jobs in a lane; more are refused. The workers' settings count.", 1
    )
    max_backlog_texts: int = _setting(100_000, "Maximum number of texts in a lane's jobs, and in one request.", 1)
    max_backlog_mb: int = _setting(256, "Limit of Redis's memory for a lane's unanswered jobs, in MB.", 1)
    max_reply_mb: int = _setting(8, "Largest reply, in MB; token vectors and many hits can be large.", 1, 256)
    max_result_mb: int = _setting(
        256,
        "Limit of Redis's memory for unread results, in MB; a client may use as much as is left free, "
        "and at least a sixty-fourth.",
        1,
    )
    result_ttl_s: int = _setting(3_600, "Time for which a reply is kept to be fetched, in seconds.", 1)

    host: str = _setting("127.0.0.1", "Address that the API listens on. A name stands for all its addresses.")
    port: int = _setting(8080, "Port that the API listens on.", 1, 65_535)
    api_processes: int = _setting(1, "Processes of the API for each address; each uses about one processor at most.", 1)
    request_timeout_s: float = _setting(
        30.0, "Longest time that a request waits for its answer, in seconds.", 0.001, MAX_WAIT_S
    )
    max_request_bytes: int = _setting(32 * 2**20, "Largest HTTP body.", 1)
    max_response_mb: int = _setting(
        96, "Largest vectors of an HTTP response, as 32-bit floats, in MB; JSON takes three times as much.", 1
    )
    max_text_chars: int = _setting(2**20, "Longest text, in characters.", 1)
    receive_timeout_s: float = _setting(
        30.0, "Longest time to receive the headers of a request, and then its body, in seconds.", 0.1, 86_400
    )
    api_keys_file: str = _setting(
        "", "File of the keys that HTTP requests need, as `shoal key new` writes it; none: they need no key."
    )
    allow_anonymous: str = _setting(
        "loopback",
        "Where the API may listen without a file of keys: on this machine's loopback only, or anywhere.",
        choices=("loopback", "anywhere"),
    )
    cors_origins: str = _setting("", "Origins whose web pages may use the API, separated by commas; * is all of them.")
    trusted_proxies: int = _setting(0, "Proxies in front of the API whose `X-Forwarded-For` is believed.", 0)
    protocols: str = _setting(
        ",".join(PROTOCOLS),
        "Compatible protocols that the API speaks besides its own, separated by commas.",
    )
    model_aliases: str = _setting(
        "", "Further names by which requests may ask for the model or the reranker, separated by commas; * is any name."
    )
    pools: str = _setting(
        "",
        "Further pools that the API serves, separated by commas: the `model` of a request, or its path, chooses one.",
    )

    token_ids: str = _setting(
        "refuse",
        "Token ids in place of texts: refuse them, because ids of another tokenizer give wrong vectors; own: accept "
        "ids of the model's own tokenizer.",
        choices=("refuse", "own"),
    )

    model: str = _setting("sentence-transformers/all-MiniLM-L6-v2", "Model: a Hugging Face id or a local folder.")
    reranker: str = _setting(
        "",
        "Cross-encoder or ColBERT that scores texts for a query: ms-marco-minilm, a Hugging Face id or a local folder; "
        "none: no reranking.",
    )
    engine: str = _setting(
        "auto",
        "Engine that runs the model: auto is avx512 where the processor has AVX-512, VNNI and BF16, else avx2 where it "
        "has AVX2, or neon on ARM, if the model and the precision allow, else openvino.",
        choices=("auto", "avx512", "avx2", "neon", "openvino", "torch"),
    )
    precision: str = _setting(
        "auto",
        "Number format: auto is bf16 where the processor and the engine have it; int8 is faster and loses a little "
        "(not with torch).",
        choices=("auto", "bf16", "f32", "int8"),
    )
    threads: int = _setting(
        0, "Compute threads of a worker; 0: its share of the processors, which changes as workers come and go.", 0
    )
    max_batch_tokens: int = _setting(2_048, "Maximum number of tokens in one forward pass.", 1)
    max_batch_texts: int = _setting(64, "Number of texts at which a worker stops taking jobs and computes.", 1)
    max_job_texts: int = _setting(1_024, "Maximum number of texts in one job.", 1)
    stall_timeout_s: float = _setting(
        60.0, "Longest time for one forward pass, in seconds; a worker that hangs for longer ends itself.", 0.1
    )
    cache_mb: int = _setting(64, "Limit of Redis's memory for vectors of texts that may repeat, in MB; 0: no cache.", 0)
    indexes: str = _setting("", "Indexes to serve: a folder, or several as name=folder,name=folder.")

    index_home: str = _setting(
        "",
        "Folder in which long jobs build indexes; each subfolder is served by its name. None: `indexes` in the home "
        "folder.",
    )
    index_store: str = _setting(
        "",
        "URL of a folder in a store, such as s3://bucket/folder, through which workers on other machines get the "
        "indexes of `index_home`. None: workers read `index_home` itself.",
    )
    engine_password: str = _setting(
        "", "Password, or key of the API, of the vector engine that has the indexes which `shoal index push` put there."
    )
    kept_versions: int = _setting(3, "Versions of an index that stay in its folder, the current one included.", 1)

    long_jobs: int = _setting(2, "Long jobs that a runner does at a time; with 0, `shoal serve` starts no runner.", 0)
    roots: str = _setting(
        "",
        "Folders that long jobs may read and write, separated by commas. None: `files` in the home folder.",
    )
    max_upload_mb: int = _setting(4_096, "Largest file that may be uploaded for a long job, in MB.", 1)
    max_uploads_mb: int = _setting(
        16_384, "Space limit for uploaded files, in MB; a client may use at most the space left free.", 1
    )
    max_results_mb: int = _setting(
        65_536,
        "Space limit for results of bulk embeddings submitted over HTTP, in MB; a client's results may take at "
        "most the space that is left free.",
        1,
    )
    max_long_jobs_per_client: int = _setting(
        100, "Maximum number of unfinished long jobs of a client over HTTP; more are refused as overloaded.", 1
    )

    workers: int = _setting(1, "Worker processes that `shoal serve` starts.", 0)
    home: str = _setting("~/.shoal", "Folder for prepared models, the embedded Redis's data, and logs.")
    log_level: str = _setting("info", "Least severe log lines to write.", choices=("debug", "info", "warning", "error"))
    log_format: str = _setting("text", "Form of log lines: words, or a JSON object each.", choices=("text", "json"))
    tracing: str = _setting(
        "off",
        "OpenTelemetry spans of requests and jobs: none, or sent by OTLP to the collector that "
        "OTEL_EXPORTER_OTLP_ENDPOINT names.",
        choices=("off", "otlp"),
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            _check(item.name, getattr(self, item.name), **{k: item.metadata[k] for k in ("least", "most", "choices")})
        for name, values in (("key_prefix", [self.key_prefix]), ("pool", [self.pool]), ("pools", self.pool_names())):
            for value in values:
                if not NAME.fullmatch(value):
                    raise BadSetting(f"{name} is {excerpt(value)}: it takes {NAME_RULE}")
        for name in self.pool_names():
            if len(name) > MAX_POOL_CHARS:
                raise BadSetting(f"pools has a name of {len(name)} characters, {excerpt(name)}: {MAX_POOL_CHARS} fit")
            if is_among(name, set(self.model_alias_names()) - {ANY_NAME}):
                raise BadSetting(f"model_aliases has {excerpt(name)}, the name of a further pool: leave it out")
        self.index_folders()
        self.root_folders()
        self.protocol_names()
        self.origin_names()
        if self.index_store and ("::" in self.index_store or not _STORE_URL.fullmatch(self.index_store)):
            raise BadSetting(  # without the value, which may contain a password
                "index_store is not the URL of a folder in a store: it takes one such as s3://bucket/folder or "
                "file:///srv/shoal, without a query"
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ, **overrides: Any) -> Self:
        """Return settings from variables `SHOAL_<FIELD>`; `overrides` replace their values. Raises BadSetting."""
        values: dict[str, Any] = {}
        for name, kind in get_type_hints(cls).items():
            if text := environment.get(variable(name)):
                values[name] = _parse(name, kind, text)
        return cls(**(values | overrides))

    def to_environment(self) -> dict[str, str]:
        """Return the environment variables that give a child process the same settings."""
        values = {variable(item.name): str(getattr(self, item.name)) for item in fields(self)}
        return values if self.protocols else values | {variable("protocols"): ","}  # "" would mean the default

    @property
    def keys(self) -> Keys:
        """The Redis keys of the pool."""
        return Keys(self.key_prefix, self.pool)

    @property
    def home_folder(self) -> Path:
        """`home` as an absolute path."""
        return _absolute("home", self.home)

    @property
    def redis_address(self) -> str:
        """`redis_url`, or the URL of the Redis that `shoal serve` has started from the home folder.

        Raises Unavailable if no Redis was started from the home folder, unless that is the default folder.
        """
        if self.redis_url:
            return self.redis_url
        port = self.redis_port or self.last_redis_port
        if not port and self.home_folder != DEFAULTS.home_folder:
            raise Unavailable(
                f"no service was started from the home folder {self.home_folder}: start one (./scripts/run --home "
                f"{self.home}), or name its Redis (--redis-url)"
            )
        return f"redis://127.0.0.1:{port or EMBEDDED_PORT}/0"

    @property
    def long_jobs_redis_address(self) -> str:
        """`long_jobs_redis_url`, or by default the URL of the pool's Redis. Raises Unsupported for a cluster."""
        if not self.can_keep_long_jobs:
            raise Unsupported(
                "long jobs need a Redis that is no cluster: name one by SHOAL_LONG_JOBS_REDIS_URL, for the API, the "
                "runner and the commands, and by `long_jobs_redis_url` of a client"
            )
        return self.long_jobs_redis_url or self.redis_address

    @property
    def can_keep_long_jobs(self) -> bool:
        """True if the Redis for long jobs is not a cluster: RQ does not work on clusters."""
        return "+cluster://" not in (self.long_jobs_redis_url or self.redis_url)

    @property
    def last_redis_port(self) -> int:
        """The port that `shoal serve` last used for its Redis, from a file in the home folder; 0 if there is none."""
        path = self.home_folder / PORT_FILE
        try:
            return int(path.read_text())
        except (FileNotFoundError, NotADirectoryError):
            return 0
        except ValueError:
            raise BadSetting(f"{path} has no port of a Redis: delete it, and start the service again") from None

    @property
    def index_home_folder(self) -> Path:
        """`index_home` as an absolute path."""
        return _absolute("index_home", self.index_home) if self.index_home else self.home_folder / "indexes"

    @property
    def index_copies_folder(self) -> Path:
        """The folder with this machine's copies of the indexes in `index_store`."""
        return self.home_folder / "index-copies"

    @property
    def served_folder(self) -> Path:
        """The folder in which workers find indexes: with a store, the folder of copies."""
        return self.index_copies_folder if self.index_store else self.index_home_folder

    @property
    def files_folder(self) -> Path:
        """The first folder of `roots`. It contains uploads, and relative paths begin there."""
        return self.root_folders()[0]

    def root_folders(self) -> list[Path]:
        """Return the absolute paths of the folders in `roots`. The default is `files` in the home folder."""
        parts = _parts(self.roots)
        if urls := [part for part in parts if "://" in part]:
            raise BadSetting(f"roots has {excerpt(urls[0])}: it takes folders, because a long job reads no URL")
        return [_absolute("roots", part) for part in parts] or [self.home_folder / "files"]

    def index_folders(self) -> dict[str, Path]:
        """Return the absolute folder of each index in `indexes` by its name, or by `default` if it has no name."""
        folders: dict[str, Path] = {}
        for part in _parts(self.indexes):
            name, equals, folder = part.partition("=")
            name, folder = (name, folder) if equals else ("default", part)
            if not name or not folder or name in folders:
                raise BadSetting(
                    f"indexes has {excerpt(part)}: write one folder, or name=folder,name=folder with distinct names"
                )
            folders[name] = _absolute("indexes", folder)
        return folders

    def protocol_names(self) -> list[str]:
        """Return the names in `protocols`."""
        names = _parts(self.protocols)
        for name in names:
            if name not in PROTOCOLS or names.count(name) > 1:
                raise BadSetting(f"protocols has {excerpt(name)}: it takes {', '.join(PROTOCOLS)}, each at most once")
        return names

    def pool_names(self) -> list[str]:
        """Return the names in `pools`, without repeats and without the name of `pool`."""
        return [name for name in dict.fromkeys(_parts(self.pools)) if name != self.pool]

    def origin_names(self) -> list[str]:
        """Return the origins in `cors_origins`."""
        names = _parts(self.cors_origins)
        for name in names:
            if name != "*" and not _ORIGIN.fullmatch(name):
                raise BadSetting(f"cors_origins has {excerpt(name)}: write https://host or https://host:port, or *")
        return names

    def model_alias_names(self) -> list[str]:
        """Return the names in `model_aliases`."""
        return _parts(self.model_aliases)


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"SHOAL_{name.upper()}"


def _parts(text: str) -> list[str]:
    """Return the values between the commas of a setting."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _absolute(name: str, folder: str) -> Path:
    try:
        return Path(folder).expanduser().absolute()
    except RuntimeError as error:
        raise BadSetting(f"{name} has {excerpt(folder)}, of an unknown user: write the path, or set HOME") from error


def _parse(name: str, kind: type, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        words = "a whole number" if kind is int else "a number"
        raise BadSetting(f"{variable(name)} is {excerpt(text)}: it takes {words}") from None


def _check(name: str, value: Any, least: float | None, most: int, choices: tuple[str, ...]) -> None:
    if least is not None and not least <= value <= most:
        raise BadSetting(f"{name} is {excerpt(value)}: it takes a number from {least:g} to {most:,}")
    if choices and value not in choices:
        raise BadSetting(f"{name} is {excerpt(value)}: it takes one of {', '.join(choices)}")


#: The default of each setting.
DEFAULTS = Settings()
