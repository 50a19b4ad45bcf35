"""`headrace schema`: the commands for the schema. Imports nothing heavy, as `pipeline.cli`."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline import display
from pipeline.options import Config, Sets, group, load

app = group("The schema that the data must keep to: show, freeze, update, diff.")


@app.command()
def show(config: Config = "pipeline.toml", set_: Sets = None) -> int:
    """Show the schema in force, in words, and who changed it when and why."""
    loaded = load(config, set_)
    from pipeline import schema_files

    display.show(schema_files.show(loaded))
    return 0


@app.command()
def freeze(
    config: Config = "pipeline.toml",
    bounds: Annotated[
        bool, typer.Option("--bounds", help="Hold numbers between train's least and greatest.")
    ] = False,
    min_domain_mass: Annotated[
        float, typer.Option(min=0, max=1, help="Share of a text's values that must be known.")
    ] = 1.0,
    max_missing: Annotated[
        float, typer.Option(min=0, max=1, help="Most rows without a value; 1: not looked at.")
    ] = 1.0,
    replace: Annotated[
        bool, typer.Option("--replace", help="Write the file anew if it is there.")
    ] = False,
    set_: Sets = None,
) -> int:
    """Write the schema of the newest data to the file that the configuration names.

    Without one, to schemas/NAME.pbtxt beside the configuration.
    """
    loaded = load(config, set_)
    from components.schema_freeze import Extras
    from pipeline import schema_files

    extras = Extras(bounds, min_domain_mass, None if max_missing == 1 else max_missing)
    display.show(schema_files.freeze(loaded, extras, replace=replace))
    return 0


@app.command()
def update(
    config: Config = "pipeline.toml",
    accept: Annotated[
        list[str] | None,
        typer.Option(metavar="FEATURE:KIND", help="An anomaly of the last run; may be repeated."),
    ] = None,
    reason: Annotated[str, typer.Option(metavar="WHY", help="Why these data are right.")] = "",
    by: Annotated[str, typer.Option(metavar="WHO", help="Who says so; else this user.")] = "",
    set_: Sets = None,
) -> int:
    """Accept anomalies of the last run: changes the file, and records who, when and why."""
    loaded = load(config, set_)
    from pipeline import schema_files

    display.show(schema_files.update(loaded, accept or [], reason=reason, who=by))
    return 0


@app.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="FILE", help="A .pbtxt file.")],
    after: Annotated[str, typer.Argument(metavar="FILE", help="Another one.")],
) -> int:
    """Say in words in what the second schema file differs from the first."""
    from pipeline import schema_files

    display.show(schema_files.diff(before, after))
    return 0
