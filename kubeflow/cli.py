"""`headrace kubeflow`: the commands for a cluster. Imports nothing heavy, as `pipeline.cli`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pipeline import display

app = typer.Typer(
    help="The same pipeline on Kubeflow Pipelines.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)

Config = Annotated[str, typer.Argument(metavar="CONFIG", help="The configuration file.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a dotted key; may be repeated."),
]


@app.command("compile")
def compile_(
    config: Config = "pipeline.toml",
    out: Annotated[str, typer.Option(metavar="FILE", help="The package.")] = "package.yaml",
    set_: Sets = None,
) -> int:
    """Write the package that Kubeflow Pipelines runs."""
    loaded = _load(config, set_)
    from kubeflow import compilation, package

    package.write_whole(out, compilation.compile_config(loaded))
    display.show([out, "", f"next: upload it in the KFP dashboard, or: kfp run create -f {out}"])
    return 0


@app.command()
def step(
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="What a task writes.")],
) -> int:
    """Run one node, as a task of the package does."""
    from kubeflow import step as steps

    return steps.main([request])


def _load(config: str, sets: list[str] | None = None) -> Any:
    from pipeline import config as configuration

    return configuration.load(config, sets or [])
