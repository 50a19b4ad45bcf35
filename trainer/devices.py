"""What hardware is there, and how much memory was used and is free.

TensorFlow's CPU allocator keeps count only when ``TF_CPU_ALLOCATOR_USE_BFC`` is ``true`` before the
first tensor is made; `trainer.worker` sets it. Without it a peak cannot be told, and 0 is returned.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

CGROUP = Path("/sys/fs/cgroup")


def gpus() -> list[str]:
    """Return the names of the GPUs that TensorFlow sees, such as ``GPU:0``."""
    return [device.name.split("physical_device:")[-1]
            for device in tf.config.list_physical_devices("GPU")]  # fmt: skip


def compute_devices() -> list[str]:
    """Return the devices that train: every GPU, or the one CPU."""
    return gpus() or ["CPU:0"]


def reset_peak() -> None:
    """Forget the peak of TensorFlow's allocators, so that the next one is of what follows."""
    for device in compute_devices():
        try:
            tf.config.experimental.reset_memory_stats(device)
        except ValueError:
            return


def peak_bytes() -> int:
    """Return the largest peak of TensorFlow's own allocator on one device; 0 when not counted."""
    return max(_memory_info(device)["peak"] for device in compute_devices())


def current_bytes() -> int:
    """Return the bytes that TensorFlow's allocator holds on the fullest device; 0: not counted."""
    return max(_memory_info(device)["current"] for device in compute_devices())


def _memory_info(device: str) -> dict[str, int]:
    try:
        return tf.config.experimental.get_memory_info(device)
    except ValueError:
        return {"current": 0, "peak": 0}


def process_peak_bytes() -> int:
    """Return the greatest resident memory of this process so far (VmHWM of proc(5))."""
    return _process_status("VmHWM")


def process_bytes() -> int:
    """Return the resident memory of this process now (VmRSS of proc(5))."""
    return _process_status("VmRSS")


def _process_status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def free_bytes() -> int:
    """Return the memory that training may still take on its fullest device.

    On a CPU the smaller of the machine's ``MemAvailable`` and what the control group leaves; on
    GPUs what the driver says, where the ``pynvml`` module can ask it, else the machine's.
    """
    if gpus():
        return min(_gpu_free_bytes(), _host_free_bytes())
    return _host_free_bytes()


@dataclass(frozen=True)
class GpuReading:
    """What the driver says of one GPU: its name, and what `trainer.monitoring` shows."""

    name: str
    utilization_ratio: float
    memory_used_bytes: int
    memory_total_bytes: int


def gpu_readings() -> list[GpuReading]:
    """Return what the driver says of this process's GPUs; empty: there is none, or no driver."""
    names = [one.name.split("physical_device:")[-1] for one in tf.config.get_visible_devices("GPU")]
    if not names:
        return []
    found = []
    with _driver() as pynvml:
        for place in driver_places(names, os.environ) if pynvml else ():
            try:
                handle = _handle(pynvml, place)
                memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
                share = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            except pynvml.NVMLError:  # of a part of a GPU (MIG) the driver tells no utilisation
                continue
            found.append(GpuReading(place, share, int(memory.used), int(memory.total)))
    return found


def driver_places(names: list[str], environ: Mapping[str, str]) -> list[str]:
    """Return the driver's numbers, or UUIDs, of GPUs that TensorFlow calls ``GPU:0`` and so on.

    ``CUDA_VISIBLE_DEVICES`` chooses some and gives them new numbers; the driver's NVML does not
    read it. Both count alike where the GPUs are of one kind.
    """
    chosen = [one.strip() for one in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    numbers = [int(one.rpartition(":")[2]) for one in names]
    if chosen == [""]:
        return [str(one) for one in numbers]
    return [chosen[one] for one in numbers if one < len(chosen)]


def _handle(pynvml: Any, place: str) -> Any:
    if place.isdecimal():
        return pynvml.nvmlDeviceGetHandleByIndex(int(place))
    return pynvml.nvmlDeviceGetHandleByUUID(place)


@contextmanager
def _driver() -> Generator[Any, None, None]:
    """Give what asks the driver, for as long as it is needed.

    Yields:
        The `pynvml` module, ready to be asked; None where it or the driver is missing.
    """
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _gpu_free_bytes() -> int:
    with _driver() as pynvml:
        if pynvml is None:
            return _host_free_bytes()
        places = driver_places(gpus(), os.environ)
        handles = [_handle(pynvml, place) for place in places]
        return min(int(pynvml.nvmlDeviceGetMemoryInfo(handle).free) for handle in handles)


def _host_free_bytes() -> int:
    available = 0
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    limit = _number(CGROUP / "memory.max")
    used = _number(CGROUP / "memory.current") or 0
    return available if limit is None else max(0, min(available, limit - used))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no control group, or "max": no limit
        return None
