"""MLflow's model registry: a pushed folder becomes a version, and a version a folder.

Beside tracking.py the only file that imports mlflow.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components import served
from trainer.errors import InputError

SCHEME = "models:/"
LOADER = Path(__file__).with_name("served_frame.py")
"""Goes with each model, and loads it."""
ARTIFACT = "model"
PUSHED = "headrace.pushed"
"""Tag of a version: the pushed folder that it was made of."""


def register(client: Any, run_id: str, *, name: str, folder: Path) -> str:
    """Add a pushed model to the registry and return its address, ``models:/name/version``.

    Done twice for the same run and folder, it stays one version.

    Args:
        client: an MlflowClient.
        run_id: the run that trained it; gets the files as its artifact ``model``.
        name: in the registry; made when it is not there.
        folder: of the pushed version.

    Raises:
        MlflowException: when the registry refuses.
    """
    from mlflow.exceptions import MlflowException

    if found := _versions(client, run_id, name, folder):
        return f"{SCHEME}{name}/{found[0].version}"
    with tempfile.TemporaryDirectory(prefix="headrace-registry-") as made:
        package(folder, Path(made) / ARTIFACT)
        client.log_artifacts(run_id, str(Path(made) / ARTIFACT), ARTIFACT)
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    source = f"{client.get_run(run_id).info.artifact_uri}/{ARTIFACT}"
    client.create_model_version(name, source, run_id, tags={PUSHED: str(folder)})
    # A request whose answer was late or lost is sent again, and then there are two of it.
    first, *again = _versions(client, run_id, name, folder)
    for one in again:
        client.delete_model_version(name, one.version)
    return f"{SCHEME}{name}/{first.version}"


def _versions(client: Any, run_id: str, name: str, folder: Path) -> list[Any]:
    """Return the versions made of this run and folder, the first one first."""
    found = client.search_model_versions(f"name = '{name}'")
    mine = [one for one in found if one.run_id == run_id and one.tags.get(PUSHED) == str(folder)]
    return sorted(mine, key=lambda one: int(one.version))


def package(folder: Path, target: Path) -> None:
    """Write a pushed folder as a model that `mlflow.pyfunc.load_model` loads.

    Args:
        folder: of the pushed version.
        target: folder that is made.
    """
    # It warns of its own classes when it is imported.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow.pyfunc

    logging.getLogger("mlflow").setLevel(logging.ERROR)
    described = served.describe(folder)
    versions = [f"{one}=={importlib.metadata.version(one)}"
                for one in ("tensorflow", "keras", "numpy", "pandas")]  # fmt: skip
    mlflow.pyfunc.save_model(
        str(target),
        loader_module=LOADER.stem,
        data_path=str(folder),
        code_paths=[str(LOADER)],
        signature=_signature(folder, described),
        input_example=_example(folder),
        pip_requirements=versions,
        metadata={"headrace.columns": described["columns"], "headrace.label": described["label"]},
    )


def _signature(folder: Path, described: Mapping[str, Any]) -> Any:
    """Return the columns and the answers as MLflow checks them.

    Every column may be missing. Numbers are of any type: pandas has whole numbers as integers
    where none is missing and as floats where one is, and MLflow takes neither for the other.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema

    inputs = [
        ColSpec(_type(one["kind"]), one["column"], required=False) for one in described["columns"]
    ]
    task = described["label"]["task"]
    if task == "causal-lm":
        return ModelSignature(inputs=Schema(inputs))
    outputs = [ColSpec("double" if task == "regression" else "string", "prediction")]
    outputs += [ColSpec("double", f"probability:{one}") for one in _classes(folder)]
    return ModelSignature(inputs=Schema(inputs), outputs=Schema(outputs))


def _type(kind: str) -> Any:
    from mlflow.types.schema import AnyType

    return {"string": "string", "image": "binary"}.get(kind, AnyType())


def _classes(folder: Path) -> list[str]:
    try:
        metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
    except OSError:
        return []
    return metrics.get("classes") or []


def _example(folder: Path) -> Any:
    import pandas as pd

    try:
        rows = json.loads((folder / "input_example.json").read_text("utf-8"))
    except OSError:
        return None
    return pd.DataFrame(rows)


def fetch(address: str, uri: str, into: Path) -> Path:
    """Copy a registered model to this machine and return the folder of its SavedModel.

    Args:
        address: ``models:/name/version``, or ``models:/name@alias``.
        uri: the registry's, which is the tracking store's.
        into: folder that gets it.

    Raises:
        InputError: when the registry has no such version or does not answer.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        mlflow.set_tracking_uri(uri)
        mlflow.set_registry_uri(uri)
        mlflow.artifacts.download_artifacts(artifact_uri=address, dst_path=str(into))
    except (MlflowException, OSError) as error:
        said = str(error).splitlines()[0][:200]
        raise InputError(
            f"the registry does not give it: {said}",
            where=address,
            right="name a version that `headrace ui` shows under Models, as models:/name/version",
        ) from error
    found = sorted(into.rglob("saved_model.pb"))
    if not found:
        right = "name a model that headrace has registered"
        raise InputError("holds no SavedModel", where=address, right=right)
    return found[0].parent
