"""`dlog help` explains a command or a topic. `dlog completion` prints the completion script of a shell."""

import difflib

import click

from ..framework.options import (
    CliCommand,
    CommandWithSubcommands,
    Settings,
    subcommand_of,
    without_cluster,
)
from ..framework.output import emit, table
from .help_topics import TOPICS

SHELLS = ("bash", "zsh", "fish")


@click.command(
    cls=CliCommand,
    examples="""
    dlog help                     commands and topics
    dlog help positions           show a topic
    dlog help log read            show the help of a command
    """,
)
@click.argument("words", nargs=-1, metavar="[TOPIC | COMMAND…]")
@without_cluster()
def command(settings: Settings, words: tuple[str, ...]) -> None:
    """Show the help of a command or a topic.

    Without an argument, the command lists all commands and topics.
    """
    name = _find_topic(words)
    if name:
        title, text = TOPICS[name]
        if settings.json:
            emit({"topic": name, "title": title, "text": text})
        else:
            click.echo(f"{name}: {title}\n\n{text}", nl=False)
        return
    context = command_context(words)
    if settings.json:
        topics = (
            {}
            if words
            else {"topics": {topic_name: TOPICS[topic_name].title for topic_name in TOPICS}}
        )
        emit({"command": context.command_path, "text": context.get_help(), **topics})
        return
    click.echo(context.get_help())
    if not words:
        click.echo("\nTopics (dlog help TOPIC):")
        table(
            ("topic", "content"),
            [[topic_name, topic.title] for topic_name, topic in TOPICS.items()],
        )


def command_context(words: tuple[str, ...]) -> click.Context:
    """Return the context of the command that these words name. Raises a usage error with suggestions."""
    from ..main import command as dlog

    innermost: click.Command = dlog
    context = click.Context(dlog, info_name="dlog", **dlog.context_settings)
    for depth, word in enumerate(words):
        child = subcommand_of(innermost, context, word)
        if child is None:
            command_names = (
                innermost.list_commands(context) if isinstance(innermost, click.Group) else []
            )
            similar_names = difflib.get_close_matches(
                word, [*command_names, *(TOPICS if depth == 0 else ())]
            )
            suggestion = (
                f"did you mean {' or '.join(similar_names)}?"
                if similar_names
                else 'see "dlog help"'
            )
            expected = "topic or command" if depth == 0 else f"command of {context.command_path}"
            raise click.UsageError(f"no such {expected} {word!r}; {suggestion}")
        if isinstance(innermost, CommandWithSubcommands):
            context = innermost.outer_context(context.info_name, context.parent)
        innermost, context = child, click.Context(child, context, info_name=word)
    return context


def _find_topic(words: tuple[str, ...]) -> str:
    """Return the topic of these words, or "": ``exit codes`` and ``uri`` are ``exit-codes`` and ``uris``."""
    name = "-".join(words).lower()
    return next((candidate for candidate in (name, f"{name}s") if candidate in TOPICS), "")


@click.command(
    cls=CliCommand,
    examples="""
    source <(dlog completion bash)                  for this shell; add it to ~/.bashrc for all
    dlog completion zsh > ~/.zfunc/_dlog            if fpath contains ~/.zfunc
    dlog completion fish > ~/.config/fish/completions/dlog.fish
    """,
)
@click.argument("shell", type=click.Choice(SHELLS))
@without_cluster()
def completion(settings: Settings, shell: str) -> None:
    """Print a script with which a shell completes commands and options of dlog."""
    from click.shell_completion import get_completion_class

    from ..main import command as dlog

    completion_class = get_completion_class(shell)
    assert completion_class is not None, "click knows the shells that are offered"
    click.echo(completion_class(dlog, {}, "dlog", "_DLOG_COMPLETE").source())
