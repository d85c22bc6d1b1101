"""`dlog help` explains a command or a topic; `dlog completion` makes a shell complete both."""

import difflib

import click

from ..framework.options import CliCommand, Settings, without_cluster
from ..framework.output import emit, table
from .help_topics import TOPICS

SHELLS = ("bash", "zsh", "fish")


@click.command(
    cls=CliCommand,
    examples="""
    dlog help                     commands and topics
    dlog help positions           a topic
    dlog help log read            a command
    """,
)
@click.argument("words", nargs=-1, metavar="[TOPIC | COMMAND…]")
@without_cluster()
def command(settings: Settings, words: tuple[str, ...]) -> None:
    """Help on a topic, or of a command; without either what there is."""
    name = _topic(words)
    if name:
        title, text = TOPICS[name]
        if settings.json:
            emit({"topic": name, "title": title, "text": text})
        else:
            click.echo(f"{name}: {title}\n\n{text}", nl=False)
        return
    context = of_command(words)
    if settings.json:
        topics = {} if words else {"topics": {one: TOPICS[one].title for one in TOPICS}}
        emit({"command": context.command_path, "text": context.get_help(), **topics})
        return
    click.echo(context.get_help())
    if not words:
        click.echo("\nTopics (dlog help TOPIC):")
        table(("topic", "what"), [[one, topic.title] for one, topic in TOPICS.items()])


def of_command(words: tuple[str, ...]) -> click.Context:
    """As if the command of these words had been called. Raises a usage error: what may have been meant."""
    from ..main import command as dlog

    found: click.Command = dlog
    context = click.Context(dlog, info_name="dlog", **dlog.context_settings)
    for at, word in enumerate(words):
        child = found.get_command(context, word) if isinstance(found, click.Group) else None
        if child is None:
            known = found.list_commands(context) if isinstance(found, click.Group) else []
            near = difflib.get_close_matches(word, [*known, *(TOPICS if at == 0 else ())])
            meant = f"did you mean {' or '.join(near)}?" if near else '"dlog help" has them all'
            where = "topic or command" if at == 0 else f"command of {context.command_path}"
            raise click.UsageError(f"no such {where} {word!r}; {meant}")
        found, context = child, click.Context(child, context, info_name=word)
    return context


def _topic(words: tuple[str, ...]) -> str:
    """``exit codes`` and ``uri`` are ``exit-codes`` and ``uris``; "": none is meant."""
    name = "-".join(words).lower()
    return next((one for one in (name, f"{name}s") if one in TOPICS), "")


@click.command(
    cls=CliCommand,
    examples="""
    source <(dlog completion bash)                  in this shell; a line of ~/.bashrc for all
    dlog completion zsh > ~/.zfunc/_dlog            where fpath has ~/.zfunc
    dlog completion fish > ~/.config/fish/completions/dlog.fish
    """,
)
@click.argument("shell", type=click.Choice(SHELLS))
@without_cluster()
def completion(settings: Settings, shell: str) -> None:
    """Print the script with which a shell completes the commands and options of dlog."""
    from click.shell_completion import get_completion_class

    from ..main import command as dlog

    found = get_completion_class(shell)
    assert found is not None, "click knows the shells that are offered"
    click.echo(found(dlog, {}, "dlog", "_DLOG_COMPLETE").source())
