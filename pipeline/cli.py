"""`headrace`: the commands. Each body parses, calls one function and prints.

Nothing heavy is imported before a command needs it, so that ``headrace --help`` answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline import display, schema_cli
from pipeline.options import Config, Json, Sets, load
from trainer.errors import HeadraceError, InputError

EXAMPLES = ("digits", "flights", "flights-best", "penguins", "stdlib-lm", "stdlib-packages")
ALL = "all"
RUN_FIELDS = ("pipeline", "run_id", "seconds", "nodes", "examples", "anomalies", "metrics",
              "baseline", "training", "mlflow", "report", "model")  # fmt: skip
"""Fields of the run's JSON object beside status and error."""

app = typer.Typer(
    name="headrace",
    help="A TFX training workflow that refuses bad data and keeps to a memory budget.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)

app.add_typer(schema_cli.app, name="schema")


@app.command()
def example(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"{', '.join(EXAMPLES)}.")],
    out: Annotated[str, typer.Option(metavar="DIR", help="The folder; NAME when left out.")] = "",
) -> int:
    """Write a folder that is ready to run.

    It holds real data from an installed package and a commented pipeline.toml.
    """
    import importlib

    _require(name in EXAMPLES, "no such example", name, f"take one of {', '.join(EXAMPLES)}")
    module = importlib.import_module(f"pipeline.examples.{name.replace('-', '_')}")
    paths = module.write(Path(out or name))
    display.show([*map(str, paths), "", f"next: headrace run {paths[-1]}"])
    return 0


@app.command()
def init(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A file, a folder or a glob.")],
    label: Annotated[str, typer.Option(metavar="COLUMN", help="The column to predict.")] = "",
    out: Annotated[str, typer.Option(metavar="FILE", help="What is written.")] = "pipeline.toml",
) -> int:
    """Look at your own files and write a commented pipeline.toml that runs as it is.

    Asks what it cannot know when it sits at a terminal, and never when it does not.
    """
    from pipeline import wizard

    asks = sys.stdin.isatty() and sys.stdout.isatty()
    display.show(wizard.write(data, label, Path(out), _ask if asks else None))
    return 0


def _ask(question: str, default: str) -> str:
    return str(typer.prompt(question, default=default, err=True))


@app.command()
def check(
    config: Config = "pipeline.toml",
    set_: Sets = None,
    as_json: Json = False,
) -> int:
    """Say what would go wrong, and run nothing."""
    from pipeline import lines, preflight

    result = preflight.result(load(config, set_))
    text = lines.findings(result["findings"], result["environment"])
    display.show_result(result, text, as_json=as_json, hang=lines.FINDING_HANG)
    return InputError.exit_code if result["error"] else 0


@app.command()
def run(
    config: Config = "pipeline.toml",
    set_: Sets = None,
    no_cache: Annotated[
        list[str] | None,
        typer.Option("--no-cache", metavar="[NODE]", help="Run every node, or NODE, again."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Run the pipeline on this machine."""
    loaded = load(config, set_)
    from pipeline import runner

    forced = _nodes(no_cache or [])
    with display.screen(as_json=as_json) as screen:
        result = runner.run(loaded, no_cache=forced, on_event=screen.on_event)
        screen.finish(result)
    return int(result["exit_code"])


@app.command()
def plan(
    config: Config = "pipeline.toml",
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Such as 8GiB; the configuration's when left out.")
    ] = "",
    is_measured: Annotated[
        bool, typer.Option("--measure", help="Train some steps with each lever, and show both.")
    ] = False,
    steps: Annotated[
        int, typer.Option(metavar="N", min=2, help="Steps of each lever that is measured.")
    ] = 20,
    set_: Sets = None,
    as_json: Json = False,
) -> int:
    """Predict the peak memory of training, and name the cheapest settings that fit.

    The data is read and checked as by run, or taken from its cache; no step is trained, unless
    the levers are to be measured.
    """
    limit = [f"training.memory_limit={memory}"] if memory else []
    loaded = load(config, [*(set_ or []), *limit])
    from pipeline import plan as planning

    with display.screen(as_json=as_json) as screen:
        result = planning.plan(
            loaded, on_event=screen.on_event, measured_steps=steps if is_measured else 0
        )
    code = int(result.pop("exit_code"))
    display.show_result(result, planning.lines_of(result), as_json=as_json)
    if result["error"] and not as_json:
        display.show_error(result["error"])
    return code


@app.command()
def predict(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A pushed model's folder, or models:/NAME/VERSION."),
    ],
    data: Annotated[str, typer.Argument(metavar="DATA", help="A file, a folder or a glob.")],
    out: Annotated[str, typer.Option(metavar="FILE", help="A .csv or .parquet that is written.")],
    keep_errors: Annotated[
        bool, typer.Option("--keep-errors", help="Keep rows that cannot be read, with an error.")
    ] = False,
    config: Annotated[
        str, typer.Option(metavar="CONFIG", help="Whose registry models:/NAME/VERSION is in.")
    ] = "pipeline.toml",
) -> int:
    """Run an exported model over files and write one prediction a row, in their order."""
    from pipeline import prediction

    uri = ""
    if model.startswith("models:/"):
        uri = os.environ.get("MLFLOW_TRACKING_URI", "") or load(config).tracking_uri
    display.show(
        prediction.predict(model, data, Path(out), keep_errors=keep_errors, registry_uri=uri)
    )
    return 0


@app.command()
def report(
    config: Config = "pipeline.toml",
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> int:
    """Print where the latest data report is."""
    path = load(config).folder / "report.html"
    _require(path.is_file(), "there is no report yet", str(path), f"first: headrace run {config}")
    display.show([str(path)])
    if open_:
        import webbrowser

        started = webbrowser.open(path.as_uri())
        _require(started, "no browser could be started", str(path), "open it in one yourself")
    return 0


@app.command()
def runs(config: Config = "pipeline.toml", as_json: Json = False) -> int:
    """List this pipeline's runs, best first.

    Says what differed between them, and where MLflow compares them.
    """
    from pipeline import history

    result = history.runs(load(config))
    display.show_result(result, history.run_lines(result), as_json=as_json)
    return 0


@app.command("runs diff")
def runs_diff(
    run_a: Annotated[str, typer.Argument(metavar="RUN", help="A run's number or MLflow id.")],
    run_b: Annotated[str, typer.Argument(metavar="RUN", help="The run to compare it with.")],
    config: Config = "pipeline.toml",
    as_json: Json = False,
) -> int:
    """Say why the second run is not the first.

    Data, schema, settings, code, package versions, hardware, memory plan and metrics.
    """
    from pipeline import history

    result = history.diff(load(config), run_a, run_b)
    display.show_result(result, history.diff_lines(result), as_json=as_json)
    return 0


@app.command()
def ui(
    config: Config = "pipeline.toml",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to serve on.")] = 5000,
) -> int:
    """Serve the MLflow UI until Ctrl-C."""
    from pipeline import ui as server

    server.serve(load(config), port, say=display.show)
    return 0


def main() -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: list[str]) -> int:
    """Run a command; whatever goes wrong becomes one message and the contract's exit code."""
    try:
        _add_rooms_above(arguments)
        command = typer.main.get_command(app)
        with command.make_context("headrace", _joined(arguments)) as context:
            return int(command.invoke(context) or 0)
    except typer.Exit as leave:
        return leave.exit_code
    except HeadraceError as error:
        return _failed(arguments, str(error), error.exit_code)
    except typer.TyperException as error:
        return _failed(arguments, _usage(error), InputError.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        # A second Ctrl-C must not cut the first one's message short.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return _failed(arguments, "interrupted", 130)
    except BrokenPipeError:
        # Who read our output has gone, as in `headrace runs | head`: nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # ruff: ignore[blind-except] - one line here, the rest in a log
        return _failed(arguments, _unexpected(error), 4)


def _add_rooms_above(arguments: list[str]) -> None:
    """Add the commands of rooms that stand on this one, which it may not import by name.

    They are entry points of this distribution; the commands above need none of them.
    """
    own = {one.name or getattr(one.callback, "__name__", "") for one in app.registered_commands}
    groups = {one.name for one in app.registered_groups}
    if (arguments and arguments[0] in own | {"schema"}) or groups - {"schema"}:
        return
    import importlib.metadata

    found = importlib.metadata.distribution("headrace").entry_points
    for point in found.select(group="headrace.commands"):
        app.add_typer(point.load(), name=point.name)


def _require(holds: bool, what: str, where: str, right: str) -> None:
    """Refuse what a person asked for.

    Raises:
        InputError: when `holds` is false.
    """
    if not holds:
        raise InputError(what, where=where, right=right)


def _joined(arguments: list[str]) -> list[str]:
    """Give the parser what it knows: ``runs diff`` as one word, ``--no-cache`` with a value."""
    if not arguments:
        return ["--help"]
    if arguments[:2] == ["runs", "diff"]:
        return ["runs diff", *arguments[2:]]
    if arguments[0] != "run":
        return arguments
    joined: list[str] = []
    rest = list(arguments)
    while rest:
        one = rest.pop(0)
        if one == "--no-cache":
            named = bool(rest) and not rest[0].startswith("-") and not _is_config(rest[0])
            one += f"={rest.pop(0) if named else ALL}"
        joined.append(one)
    return joined


def _is_config(argument: str) -> bool:
    """Say whether the word after ``--no-cache`` is the configuration and not a node."""
    return "." in argument or os.sep in argument or Path(argument).exists()


def _nodes(names: list[str]) -> frozenset[str]:
    """Return the nodes that ``--no-cache`` names.

    Raises:
        InputError: there is no such node.
    """
    if not names:
        return frozenset()
    from pipeline import config_file, definition

    known = [node.id for node in definition.NODES]
    for name in names:
        if name not in {*known, ALL}:
            near = config_file.nearest(name, known)
            right = f"the nearest is {near}" if near else f"the nodes are {', '.join(known)}"
            raise InputError("no such node", where=f"--no-cache {name}", right=right)
    return frozenset(known if ALL in names else names)


def _failed(arguments: list[str], message: str, code: int) -> int:
    """Say what went wrong: one line on standard error, and with ``--json`` one object."""
    if "--json" in arguments:
        status = {3: "rejected", 130: "interrupted"}.get(code, "failed")
        fields: dict[str, Any] = dict.fromkeys(RUN_FIELDS) if arguments[0] == "run" else {}
        if fields:
            fields |= {"seconds": 0.0, "nodes": [], "anomalies": []}
        display.show_json({"status": status, **fields, "error": message})
    display.show_error(message)
    return code


def _usage(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "headrace"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    return f"{command}: {message.rstrip('.')}; see: {command} --help"


def _unexpected(error: Exception) -> str:
    """Write the traceback to a file; return one line that says what happened and where it is."""
    said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    try:
        descriptor, path = tempfile.mkstemp(prefix="headrace-", suffix=".log")
        with os.fdopen(descriptor, "w", errors="backslashreplace") as file:
            traceback.print_exception(error, file=file)
    except OSError as why:
        return f"this is a fault of headrace: {said}; its log could not be written: {why.strerror}"
    return f"this is a fault of headrace: {said}; the whole of it is in {path}"


if __name__ == "__main__":
    main()
