"""Command-line flags for settings."""

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

import click

from shoal.settings import Settings, variable

#: The settings of every command that uses Redis. If no URL is given, the home folder says where Redis runs.
REDIS_SETTINGS = ("redis_url", "redis_port", "key_prefix", "pool", "home")

#: The settings of every command that opens a model.
MODEL_SETTINGS = ("model", "engine", "precision", "threads", "home")


def settings_options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds a flag for each named setting, and calls the command with `settings`."""
    names = tuple(dict.fromkeys(names))
    table = {item.name: item for item in fields(Settings)}
    types = get_type_hints(Settings)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            given = {name: value for name in names if (value := kwargs.pop(name)) is not None}
            return command(*args, settings=Settings.from_environment(**given), **kwargs)

        for name in reversed(names):
            item = table[name]
            type_ = click.Choice(item.metadata["choices"]) if item.metadata["choices"] else types[name]
            text = f"{item.metadata['help']} [{variable(name)}; default: {item.default!s}]"
            wrapper = click.option(f"--{name.replace('_', '-')}", name, type=type_, default=None, help=text)(wrapper)
        return wrapper

    return decorate
