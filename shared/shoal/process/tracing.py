"""The start of tracing. OpenTelemetry is loaded only if the settings ask for spans."""

from typing import TYPE_CHECKING

from shoal.errors import MissingExtra
from shoal.process.extra import install_command
from shoal.settings import Settings

if TYPE_CHECKING:
    from shoal.process.spans import Tracer


def load(settings: Settings) -> "type[Tracer] | None":
    """Return the class `Tracer`, or None if the settings ask for no spans. Raises MissingExtra."""
    if settings.tracing == "off":
        return None
    try:
        from shoal.process.spans import Tracer
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"tracing is {settings.tracing}, which needs OpenTelemetry: {install_command('tracing')}"
        ) from error
    return Tracer


def open_tracer(settings: Settings, process: str) -> "Tracer | None":
    """Return the tracer of a process, or None if the settings ask for no spans. Raises MissingExtra."""
    tracer = load(settings)
    return tracer.open(process) if tracer else None
