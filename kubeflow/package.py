"""From tasks to a KFP package: one Python component a node, wired by the kfp SDK.

Python components, since `kfp.local` runs no others: the very package that a cluster gets can be run
on one machine. The body of each calls `kubeflow.task`, which is all that runs in KFP's process.
"""

from __future__ import annotations

import inspect
import linecache
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from kubeflow.placement import Placement
from kubeflow.tasks import DIGEST, KINDS, Extras, Parameter, Task, identifier, spec_text
from trainer.errors import SettingError

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
LINE = 2000
"""Characters of a line of a task's specification."""
DIGEST_SOURCE = '''
def data_digest(data_files: list) -> str:
    """Return the digest of what the data files hold."""
    from kubeflow import data
    return data.digest(data_files)
'''


def package_text(name: str, tasks: Iterable[Task], extras: Extras, placement: Placement) -> str:
    """Return the text of ``package.yaml``; the same text for the same arguments.

    Args:
        name: of the pipeline.
        tasks: each after those that it needs.
        extras: its parameters, and whose content's digest is one.
        placement: where tasks run, and what they ask for.

    Raises:
        SettingError: KFP does not take the name.
    """
    if not NAME.fullmatch(name):
        raise SettingError(
            "is no name that Kubeflow Pipelines takes",
            where="name",
            holds=f'"{name}"',
            right="use a-z, 0-9 and -, and begin with a letter or a digit",
        )
    from kfp import compiler

    built = _pipeline(name, list(tasks), extras, placement)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "package.yaml"
        compiler.Compiler().compile(built, str(path))
        return path.read_text(encoding="utf-8")


def _pipeline(name: str, tasks: list[Task], extras: Extras, placement: Placement) -> Any:
    from kfp import dsl

    components = {one.name: _component(one, extras, placement.image) for one in tasks}
    digest = _made(DIGEST_SOURCE, DIGEST, placement.image) if extras.digest_of else None

    def wire(values: Mapping[str, Any]) -> None:
        values = dict(values)
        if digest is not None:
            read = digest(data_files=values[extras.digest_of])
            # What the files hold now is not to be taken from what they held.
            read.set_caching_options(False)
            placement.place_digest(read)
            values[DIGEST] = read.output
        made: dict[str, Any] = {}
        for one in tasks:
            arguments = {key: made[task].outputs[out] for key, (task, out) in one.inputs.items()}
            arguments |= {key: values[key] for key in one.parameters}
            task = made[one.name] = components[one.name](**arguments)
            task.after(*(made[up] for up in one.after))
            task.set_caching_options(one.is_cached)
            placement.place(task, one)

    source = _signature(identifier(name), extras.parameters) + "    wire(dict(locals()))\n"
    function = _function(source, identifier(name), {"wire": wire})
    pipeline_root = placement.pipeline_root or None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dsl.pipeline(name=name, pipeline_root=pipeline_root)(function)


def _component(task: Task, extras: Extras, image: str) -> Any:
    """Return a task as a component, whose body is text of ours."""
    kinds = {one.name: one.kind for one in extras.parameters} | {DIGEST: "str"}
    arguments = [f"{name}: dsl.Input[dsl.Artifact]" for name in task.inputs]
    arguments += [f"{name}: {_annotation(kinds[name])}" for name in task.parameters]
    arguments += [f"{name}: dsl.Output[dsl.{kind}]" for name, kind in task.outputs.items()]
    inside = "".join(f"    {one},\n" for one in arguments)
    spec = spec_text({**task.spec, "kinds": {name: kinds[name] for name in task.parameters}})
    text = "".join(
        f"        {spec[start : start + LINE]!r}\n" for start in range(0, len(spec), LINE)
    )
    source = (
        f"def {task.name}(\n{inside}):\n"
        f'    """Run the node {task.id}."""\n'
        "    arguments = dict(locals())\n"
        "    from kubeflow import task\n"
        f"    task.run(\n{text}        , arguments)\n"
    )
    return _made(source, task.name, image)


def _annotation(kind: str) -> str:
    return KINDS[kind].__name__


def _made(source: str, name: str, image: str) -> Any:
    from kfp import dsl

    function = _function(source, name, {"dsl": dsl})
    return dsl.component(function, base_image=image, install_kfp_package=False)


def _function(source: str, name: str, given: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function of a source text, whose text kfp then finds again."""
    source = source.lstrip("\n")
    file = f"<headrace {name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = dict(given)
    exec(compile(source, file, "exec", dont_inherit=True), namespace)
    assert inspect.getsource(namespace[name]) == source
    return namespace[name]


def _signature(name: str, parameters: Iterable[Parameter]) -> str:
    """Return the head of the pipeline's function; parameters without a default come first."""
    ordered = sorted(parameters, key=lambda one: one.default is not None)
    inside = "".join(
        f"    {one.name}: {_annotation(one.kind)}"
        + ("" if one.default is None else f" = {one.default!r}")
        + ",\n"
        for one in ordered
    )
    return f"def {name}(\n{inside}):\n"


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a file so that a reader sees all of it or none.

    Raises:
        SettingError: it cannot be written there.
    """
    place = Path(path)
    aside = place.with_name(f".{place.name}.part")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(text, encoding="utf-8")
        aside.replace(place)
    except OSError as error:
        raise SettingError(
            f"cannot be written ({error.strerror})", where=str(path), right="name another --out"
        ) from error
