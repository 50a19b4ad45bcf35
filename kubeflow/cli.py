"""`headrace kubeflow`: the commands for a cluster. Imports nothing heavy, as `pipeline.cli`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pipeline import display
from pipeline.options import Config, Json, Sets, group, load

app = group("The same pipeline on Kubeflow Pipelines.")


@app.command("compile")
def compile_(
    config: Config = "pipeline.toml",
    out: Annotated[str, typer.Option(metavar="FILE", help="The package.")] = "package.yaml",
    set_: Sets = None,
) -> int:
    """Write the package that Kubeflow Pipelines runs."""
    loaded = load(config, set_)
    from kubeflow import compilation, package

    package.write_whole(out, compilation.compile_config(loaded))
    display.show([out, "", f"next: upload it in the KFP dashboard, or: kfp run create -f {out}"])
    return 0


@app.command()
def submit(
    config: Config = "pipeline.toml",
    host: Annotated[
        str, typer.Option(metavar="URL", help="The server; KF_PIPELINES_ENDPOINT when left out.")
    ] = "",
    token_file: Annotated[
        str,
        typer.Option(metavar="FILE", help="Holds a token; else HEADRACE_KFP_TOKEN is taken."),
    ] = "",
    experiment: Annotated[
        str, typer.Option(metavar="NAME", help="The pipeline's name when left out.")
    ] = "",
    run_name: Annotated[
        str, typer.Option(metavar="NAME", help="The pipeline's name and the time when left out.")
    ] = "",
    param: Annotated[
        list[str] | None,
        typer.Option("--param", metavar="NAME=VALUE", help="A run's parameter; may be repeated."),
    ] = None,
    package: Annotated[
        str, typer.Option(metavar="FILE", help="A package that was compiled; else it is now.")
    ] = "",
    service_account: Annotated[
        str, typer.Option(metavar="NAME", help="What the pods run as.")
    ] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Follow the run to its end.")] = False,
    set_: Sets = None,
    as_json: Json = False,
) -> int:
    """Run the package on a cluster."""
    loaded = load(config, set_)
    import tempfile
    import time
    from pathlib import Path

    from kubeflow import connection, submission

    # First, since it takes a second and compiling half a minute.
    server = connection.connect(host, token_file=token_file, namespace=loaded.kubeflow.namespace)
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        held = submission.read(Path(package or _compiled(loaded, f"{folder}/package.yaml")))
        asked = submission.Asked(
            experiment=experiment or held.name,
            run_name=run_name or f"{held.name} {time.strftime('%Y-%m-%d %H:%M:%S')}",
            values=submission.named(submission.parameters(param or [], held), run_name, held),
            service_account=service_account,
        )
        created = submission.create(server, held, asked)
    if not wait:
        display.show_result(created, [created["url"]], as_json=as_json)
        return 0
    if not as_json:
        display.show([created["url"]])
    with display.screen(as_json=as_json) as screen:
        result = submission.wait(server, held, created, on_event=screen.on_event)
        screen.finish(result)
    return int(result["exit_code"])


@app.command()
def manifests(
    config: Config = "pipeline.toml",
    out: Annotated[str, typer.Option(metavar="DIR", help="The folder.")] = "manifests",
    set_: Sets = None,
) -> int:
    """Write what the cluster needs beside the package."""
    loaded = load(config, set_)
    from pathlib import Path

    from kubeflow import manifests as files

    folder = Path(out)
    files.check_folder(folder)
    written = files.write(loaded, folder)
    overlay = folder / "overlays" / files.overlay(loaded)
    notes = [f"note: {one}" for one in files.notes(loaded)]
    display.show([*map(str, written), "", *notes, f"next: kubectl apply -k {overlay}"])
    return 0


def _compiled(loaded: Any, out: str) -> str:
    from kubeflow import compilation, package

    package.write_whole(out, compilation.compile_config(loaded))
    return out


@app.command()
def step(
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="What a task writes.")],
) -> int:
    """Run one node, as a task of the package does."""
    from kubeflow import step as steps

    return steps.main([request])
