"""The `shoal` command: a group of commands that imports the module of a command only when it is used."""

import errno
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import click
from click.shell_completion import CompletionItem

from shoal import __version__
from shoal.cli.output import echo
from shoal.errors import DiskFull, FileError, InvalidText, MissingExtra, ShoalError
from shoal.process.extra import install_command

#: The group of entry points for the commands of other packages.
_GROUP = "shoal.commands"

#: For each library, the extra that installs it. The extra `all` installs every other library.
_EXTRAS = {"torch": "export", "sentence_transformers": "export", "pyarrow": "parquet", "rq": "jobs"}

#: The module of each command of this package, and the command's name in the module.
_OWN = {
    "dead": "shoal.cli.dead_letters:dead",
    "embed": "shoal.cli.embed:embed",
    "eval": "shoal.cli.eval:eval_",
    "job": "shoal.cli.long_job:job",
    "rerank": "shoal.cli.search:rerank",
    "search": "shoal.cli.search:search",
    "serve": "shoal.cli.serve:serve",
    "status": "shoal.cli.status:status",
}


class _Group(click.Group):
    """A group that loads a command when it is used, and prints its error as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from importlib.metadata import entry_points  # imported late, because it is slow and seldom needed

        return sorted({*_OWN, *entry_points(group=_GROUP).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if place := _OWN.get(cmd_name):
            module, _, name = place.partition(":")
            return cast(click.Command, getattr(import_module(module), name))
        from importlib.metadata import entry_points

        for entry in entry_points(group=_GROUP, name=cmd_name):
            return cast(click.Command, entry.load())
        return None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the names of commands without their help texts, which would load every command."""
        names = [CompletionItem(name) for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            if getattr(sys, name) is None:  # the parent process has closed the stream
                setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
        try:
            return super().invoke(ctx)
        except ShoalError as error:
            shown: ShoalError = error
        except ModuleNotFoundError as error:
            extra = _EXTRAS.get(error.name or "", "all")
            shown = MissingExtra(f"this needs {error.name!r}, which is not installed: {install_command(extra)}")
        except UnicodeDecodeError as error:
            shown = InvalidText(f"the input is not {error.encoding.upper()} ({error.reason}): convert it")
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # click ends the command without a message
            place, why = error.filename, error.strerror
            if error.errno in DiskFull.ERRNOS:
                shown = DiskFull(f"no room to write {place or 'the output'} ({why}): make some, try again")
            else:
                shown = FileError(f"{place or 'a file'} cannot be used ({why}): check its name and permissions")
        echo(shown.line, err=True)
        ctx.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="shoal")
def main() -> None:
    """Shoal embeds text and searches it by meaning, on a queue that loses nothing.

    Every setting can also be given as SHOAL_<NAME> in the environment.
    """
