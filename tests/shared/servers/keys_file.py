"""A file of API keys, and the headers that carry them."""

from pathlib import Path

from shoal_api.access import api_keys


class KeysFile:
    """A file with the keys of a user and of an admin, each as the header that carries it."""

    def __init__(self, path: Path):
        self.path = path
        self.user = self.make("user")
        self.admin = self.make("ops", "admin")

    def make(self, name: str, role: str = "user", rate: str = "") -> dict[str, str]:
        """Add a key to the file, and return the header that carries it."""
        return {"Authorization": f"Bearer {api_keys.add(self.path, name, role, rate)}"}
