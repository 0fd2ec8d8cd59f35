"""The log lines of Shoal's processes, as text or JSON. A line about a job also has the job's id, client and trace."""

import json
import logging
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.contract.traceparent import trace_id
from shoal.process.printable import printable
from shoal.settings import Settings


def configure(settings: Settings, level: str = "") -> None:
    """Log to standard error with the format and level of the settings. `level` replaces the level of the settings."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    logging.basicConfig(level=(level or settings.log_level).upper(), handlers=[handler])


def about(job_id: str | None, client: str = "", traceparent: str | None = None, **facts: Any) -> dict[str, Any]:
    """Return facts about a job for the argument `extra` of a logger's methods. No fact may contain a user's text."""
    values = {"job_id": job_id, "client": client, "trace_id": trace_id(traceparent), **facts}
    return {"about": {name: value for name, value in values.items() if value not in (None, "")}}


def places(error: BaseException) -> str:
    """Return the type and the stack of an error in one line. The message, which could contain a text, is left out."""
    frames = traceback.extract_tb(error.__traceback__)
    found = [f"{'/'.join(Path(at.filename).parts[-2:])}:{at.lineno} {at.name}" for at in reversed(frames)]
    return f"{type(error).__name__} at {' < '.join(found)}" if found else type(error).__name__


class TextFormatter(logging.Formatter):
    """A formatter of lines for people, with facts as `name=value` and indented tracebacks."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of the record, followed by the lines of its traceback."""
        line, *rest = super().format(record).splitlines()
        return "\n".join([line, *(f"    {printable(part)}" for part in rest)])

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of the record without its traceback."""
        facts = "".join(f" {name}={_shown(value)}" for name, value in _facts(record).items())
        return printable(super().formatMessage(record)) + facts


class JsonFormatter(logging.Formatter):
    """A formatter of lines for programs: each line is a JSON object, and contains the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of the record."""
        values: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info:
            values["traceback"] = self.formatException(record.exc_info)
        return json.dumps(values, default=str)


def _facts(record: logging.LogRecord) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(record, "about", {})
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in found.items()}


def _shown(value: object) -> str:
    """Return a value as one word of a line, in quotes if it has spaces, quotes or unprintable characters."""
    text = str(value)
    return text if text.isprintable() and " " not in text and '"' not in text else json.dumps(text)
