"""What the commands have in common: arguments, options, groups of them. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Config = Annotated[str, typer.Argument(metavar="CONFIG", help="The configuration file.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a dotted key; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object.")]


def group(said: str) -> typer.Typer:
    """Return an empty group of commands that `pipeline.cli` can take in, with its help."""
    return typer.Typer(
        help=said,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=True,
    )


def load(config: str, sets: list[str] | None = None) -> Any:
    """Return the configuration of a file, `pipeline.config.Config`, with these keys set.

    Raises:
        SettingError: as `pipeline.config.load` does.
    """
    from pipeline import config as configuration

    return configuration.load(config, sets or [])
