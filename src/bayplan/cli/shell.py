"""How every command meets the shell: one line and status 2 for bad input, the nearest word."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import click

OUTPUT = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print the answer.",
)


def progress(text: str) -> None:
    """What a long command is at; the answer alone goes to standard output."""
    click.echo(text, file=sys.stderr)


def log_to_stderr(verbose: bool) -> None:
    """For commands that run until they are stopped."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
    )


class BadInput(click.ClickException):
    """What was given cannot be used; the text is one line that says what and why."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class Commands(click.Group):
    """A group that answers a wrong word with the nearest right one, in one line."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with one_line():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with one_line():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            hint = nearest(args[0], self.list_commands(ctx))
            raise click.UsageError(f"No such command '{args[0]}'{hint}", ctx)
        return super().resolve_command(ctx, args)


@contextmanager
def one_line() -> Iterator[None]:
    """Wrong usage without the usage itself, but with where to find it."""
    try:
        yield
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "bayplan"
        text = error.format_message().rstrip(".")
        raise BadInput(f"{text} (see {path} --help)") from None


def nearest(word: str, words: list[str]) -> str:
    close = get_close_matches(word, words, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are: {', '.join(sorted(words))}"
