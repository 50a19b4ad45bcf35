"""What hardware is there, and how much memory was used and is free.

TensorFlow's CPU allocator keeps count only when ``TF_CPU_ALLOCATOR_USE_BFC`` is ``true`` before the
first tensor is made; `trainer.worker` sets it. Without it a peak cannot be told, and 0 is returned.
"""

from __future__ import annotations

from pathlib import Path

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
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
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


def _gpu_free_bytes() -> int:
    try:
        import pynvml
    except ImportError:
        return _host_free_bytes()
    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(len(gpus()))]
        return min(int(pynvml.nvmlDeviceGetMemoryInfo(handle).free) for handle in handles)
    finally:
        pynvml.nvmlShutdown()


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
