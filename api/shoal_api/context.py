"""What every view needs and no view owns."""

from dataclasses import dataclass
from typing import cast

from flask import Flask, current_app

from shoal.client import Client
from shoal.settings import Settings
from shoal_api.metrics import Metrics

_KEY = "shoal"


@dataclass(frozen=True, slots=True)
class Context:
    """The settings, queue client and metrics of one application."""

    settings: Settings
    client: Client
    metrics: Metrics

    def attach(self, app: Flask) -> None:
        """Makes this the context of `app`."""
        app.extensions[_KEY] = self


def context() -> Context:
    """The context of the application that handles the current request."""
    return cast(Context, current_app.extensions[_KEY])
