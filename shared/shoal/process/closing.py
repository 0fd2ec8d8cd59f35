"""The class of objects that a `with` statement closes at its end."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """An object that a `with` statement closes at its end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> object:
        """Close the object."""
