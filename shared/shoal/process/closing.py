"""Objects that are closed at the end of a `with`."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """An object that a `with` closes at its end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close what is open."""
