"""A file of API keys, and headers with these keys."""

from pathlib import Path

from shoal_api.access import api_keys


class KeysFile:
    """A file with keys of a user and an admin, and a header with each key."""

    def __init__(self, path: Path):
        self.path = path
        self.user = self.make("user")
        self.admin = self.make("ops", "admin")

    def make(self, name: str, role: str = "user", rate: str = "") -> dict[str, str]:
        """Add a key to the file, and return a header with the key."""
        return {"Authorization": f"Bearer {api_keys.add(self.path, name, role, rate)}"}
