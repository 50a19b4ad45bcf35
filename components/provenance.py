"""Where a run's result comes from: code, package versions, hardware; light, no heavy import."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

_PACKAGES = ("headrace", "tensorflow", "keras", "tfx", "apache-beam", "numpy", "pyarrow")
_GIT_SECONDS = 10


def collect_tags(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Return the tags of a run that is started in `folder`.

    Keys: ``git.commit`` and ``git.dirty`` ("true" when a tracked file differs from the commit;
    both absent where there is no git or no commit), ``version.<package>``, ``version.python``,
    ``hardware.cpu``, ``hardware.cores`` (those that this process may use),
    ``hardware.memory_bytes``, ``hardware.gpus`` ("0" where there is none).
    """
    return {**_git(Path(folder)), **_versions(), **_hardware()}


def _git(folder: Path) -> dict[str, str]:
    commit = _git_says(folder, "rev-parse", "--verify", "--quiet", "HEAD")
    if not commit:
        return {}
    changes = _git_says(folder, "status", "--porcelain", "--untracked-files=no")
    tags = {"git.commit": commit, "mlflow.source.git.commit": commit}
    if changes is not None:
        tags["git.dirty"] = "true" if changes else "false"
    return tags


def _git_says(folder: Path, *command: str) -> str | None:
    # A git hook names its own repository in the first three; looking must not write an index.
    misleading = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"}
    environment = {name: value for name, value in os.environ.items() if name not in misleading}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *command],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
            env={**environment, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _versions() -> dict[str, str]:
    versions = {"version.python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[f"version.{package}"] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _hardware() -> dict[str, str]:
    gpus = _gpus()
    hardware = {
        "hardware.cpu": _cpu_model(),
        "hardware.cores": str(len(os.sched_getaffinity(0))),
        "hardware.memory_bytes": str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "hardware.gpus": str(len(gpus)),
    }
    for index, gpu in enumerate(gpus):
        hardware[f"hardware.gpu.{index}"] = gpu
    return hardware


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _gpus() -> list[str]:
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _gpu(pynvml, index: int) -> str:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    name = pynvml.nvmlDeviceGetName(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total
    return f"{name}, {int(memory)} bytes"
