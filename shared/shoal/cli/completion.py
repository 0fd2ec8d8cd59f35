"""The command `shoal completion`."""

import click
from click.shell_completion import get_completion_class

#: Loads zsh's completion if nothing else has. It follows the first line of the script, `#compdef`, which zsh reads in a
#: file of `fpath`.
ZSH_START = "\n(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }\n"


@click.command(short_help="Let a shell complete commands with the Tab key.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what lets a shell complete commands and options with the Tab key.

    For bash, add this line to ~/.bashrc; for zsh, the same with zsh to ~/.zshrc:

        eval "$(shoal completion bash)"

    For fish: shoal completion fish > ~/.config/fish/completions/shoal.fish
    """
    kind = get_completion_class(shell)
    assert kind
    source = kind(ctx.find_root().command, {}, "shoal", "_SHOAL_COMPLETE").source()
    click.echo(source.replace("\n", ZSH_START, 1) if shell == "zsh" else source)
