"""Shell completion: prints click's script for a shell; evaluating it is the shell's start file's business."""

from typing import Final

import click
from click.shell_completion import get_completion_class

SHELLS: Final = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(governor completion bash)"   in ~/.bashrc
    zsh:   eval "$(governor completion zsh)"    in ~/.zshrc
    fish:  governor completion fish | source    in ~/.config/fish/config.fish
    """
    root = ctx.find_root()
    script = get_completion_class(shell)
    assert script is not None  # noqa: S101 - SHELLS names only shells that click knows
    program = root.info_name or ""
    click.echo(script(root.command, {}, program, f"_{program.upper()}_COMPLETE").source())
