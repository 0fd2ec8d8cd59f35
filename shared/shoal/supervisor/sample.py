"""The index of sample headlines in the home folder."""

import os
import subprocess
import sys
from dataclasses import replace

from shoal.errors import BadSetting, NotReady
from shoal.index_folder import CURRENT
from shoal.settings import Settings
from shoal.supervisor.pidfile import make_home


def with_sample(settings: Settings) -> Settings:
    """Return settings that name the index of sample headlines, after building it unless it is there.

    Raises BadSetting for a home folder whose path cannot be named as an index, and NotReady if there is no index.
    """
    make_home(settings)
    folder = settings.home_folder / "sample"
    if "," in str(folder):
        raise BadSetting(f"{settings.home_folder} has a comma, which separates indexes: choose another --home")
    if not (folder / CURRENT).exists():
        command = [sys.executable, "-m", "shoal", "index", "build", "--local", "--out", str(folder)]
        if subprocess.run(command, env=os.environ | settings.to_environment()).returncode:
            raise NotReady("the sample headlines were not indexed: see the lines above, or name an index with --index")
    return replace(settings, indexes=f"default={folder}")  # named, as the folder may have an equals sign
