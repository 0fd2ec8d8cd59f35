"""The `shoal` command: a group that imports a command's module only when the command is used."""

import errno
from importlib import import_module
from typing import Any, cast

import click
from click.shell_completion import CompletionItem

from shoal import __version__
from shoal.cli.shown.output import echo
from shoal.errors import DiskFull, FileError, MissingExtra, ShoalError
from shoal.process.extra import install_command

_GROUP = "shoal.commands"

#: The extra that installs a library; `all` installs every library that is not named here.
_EXTRAS = {"torch": "export", "sentence_transformers": "export", "pyarrow": "parquet", "rich": "top", "rq": "jobs"}

#: The commands of this package. Those of an extra live in its package and are found by entry point.
_OWN = {
    "bench": "shoal.cli.bench:bench",
    "completion": "shoal.cli.completion:completion",
    "dead": "shoal.cli.dead_letters:dead",
    "embed": "shoal.cli.embed:embed",
    "eval": "shoal.cli.eval:eval_",
    "job": "shoal.cli.long_job:job",
    "rerank": "shoal.cli.rerank:rerank",
    "search": "shoal.cli.search:search",
    "serve": "shoal.cli.serve:serve",
    "status": "shoal.cli.status:status",
    "top": "shoal.cli.top:top",
}

#: The commands in the order of `shoal --help`, by what they are for. Commands that it does not name come last.
_SECTIONS = {
    "Start": ("serve", "status"),
    "Embed and search": ("embed", "search", "rerank"),
    "Indexes of your documents": ("index",),
    "The quality of search": ("eval",),
    "Long jobs, such as a file of a million lines": ("job",),
    "Models": ("model",),
    "Operate a service": ("top", "key", "dead", "bench"),
    "The processes of a service, for a supervisor of your own": ("api", "worker", "jobs"),
    "Others": ("completion",),
}


class _Group(click.Group):
    """A group whose commands are loaded on use, and whose errors are printed as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from importlib.metadata import entry_points  # slow, and seldom needed

        return sorted({*_OWN, *entry_points(group=_GROUP).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if place := _OWN.get(cmd_name):
            module, _, name = place.partition(":")
            return cast(click.Command, getattr(import_module(module), name))
        from importlib.metadata import entry_points

        for entry in entry_points(group=_GROUP, name=cmd_name):
            return cast(click.Command, entry.load())
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rest = tuple(name for name in commands if not any(name in names for names in _SECTIONS.values()))
        width = max(map(len, commands))
        for title, names in (_SECTIONS | {"Others": _SECTIONS["Others"] + rest}).items():
            found = [(name, command) for name in names if (command := commands.get(name))]
            if found:
                with formatter.section(title):
                    limit = formatter.width - width - 6
                    formatter.write_dl(
                        [(name.ljust(width), command.get_short_help_str(limit)) for name, command in found]
                    )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the names of commands without their help, for which each command would be loaded."""
        names = [CompletionItem(name) for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ShoalError, ModuleNotFoundError, OSError) as error:
            echo(_translate(error).line, err=True)
            ctx.exit(1)


def _translate(error: Exception) -> ShoalError:
    """Return the error as a ShoalError; raise that of a closed pipe, on which click ends quietly."""
    if isinstance(error, ShoalError):
        return error
    if isinstance(error, ModuleNotFoundError):
        extra = _EXTRAS.get(error.name or "", "all")
        return MissingExtra(f"this needs {error.name!r}, which is not installed: {install_command(extra)}")
    if not isinstance(error, OSError) or error.errno == errno.EPIPE:
        raise error
    if error.errno in DiskFull.ERRNOS:
        return DiskFull(f"no room to write {error.filename or 'the output'} ({error.strerror}): make some, try again")
    return FileError(f"{error.filename or 'a file'} cannot be used ({error.strerror}): check its name and permissions")


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="shoal")
def main() -> None:
    """Shoal embeds text and searches it by meaning, on a queue that loses nothing.

    Every setting can also be given as SHOAL_<NAME> in the environment.
    """
