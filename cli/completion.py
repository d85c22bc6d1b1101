"""`dlog completion`: what a shell reads, so that Tab completes commands and options."""

import click

from .options import Command, Settings, without_cluster

SHELLS = ("bash", "zsh", "fish")


@click.command(
    cls=Command,
    examples="""
    source <(dlog completion bash)                  in this shell; a line of ~/.bashrc for all
    dlog completion zsh > ~/.zfunc/_dlog            where fpath has ~/.zfunc
    dlog completion fish > ~/.config/fish/completions/dlog.fish
    """,
)
@click.argument("shell", type=click.Choice(SHELLS))
@without_cluster()
def command(settings: Settings, shell: str) -> None:
    """Print the script with which a shell completes the commands and options of dlog."""
    from click.shell_completion import get_completion_class

    from .main import command as dlog

    found = get_completion_class(shell)
    assert found is not None, "click knows the shells that are offered"
    click.echo(found(dlog, {}, "dlog", "_DLOG_COMPLETE").source())
