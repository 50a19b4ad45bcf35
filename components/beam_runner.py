"""Where Beam runs the work: in this process, or on workers elsewhere that must reach the files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterable

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, StandardOptions

from trainer.errors import DataFileError, HeadraceError, TrainingError

IN_PROCESS = {"FnApiRunner", "DirectRunner", "BundleBasedDirectRunner"}
UNREACHABLE = "cannot be reached from a worker of the cluster"
FROM_HERE = "use a folder that all machines share under the same path"


def is_local(pipeline: beam.Pipeline) -> bool:
    """Say whether a pipeline's functions run in this very process."""
    name = type(pipeline.runner).__name__
    options = pipeline.options.view_as(StandardOptions).runner or name
    mode = pipeline.options.view_as(DirectOptions).direct_running_mode
    is_direct = options.rsplit(".", 1)[-1] in IN_PROCESS or name in IN_PROCESS
    return is_direct and mode in {None, "in_memory"}


def require_reachable(paths: Iterable[str]) -> None:
    """Refuse a path that is not there, where this worker runs.

    Raises:
        DataFileError: naming it.
    """
    for path in paths:
        if not os.path.exists(path):
            raise DataFileError(UNREACHABLE, where=path, right=FROM_HERE)


@contextlib.contextmanager
def explained() -> Generator[None, None, None]:
    """Turn what a runner says of a failed job into one line of ours.

    Raises:
        DataFileError: a worker cannot reach a file.
        TrainingError: in place of any other error.
        HeadraceError: as it was, where it is one of ours already.
    """
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        lines = [one.strip() for one in str(error).splitlines() if one.strip()]
        told = next((one for one in reversed(lines) if UNREACHABLE in one), "")
        if told:
            where = told.rpartition(f": {UNREACHABLE}")[0].split(": ")[-1]
            raise DataFileError(UNREACHABLE, where=where, right=FROM_HERE) from error
        last = lines[-1] if lines else type(error).__name__
        raise TrainingError(
            f"the job of Beam failed: {last[:300]}",
            where="beam.runner",
            right="look into the log of the cluster; nothing of it was taken for whole",
        ) from error
