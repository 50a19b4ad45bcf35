"""Optimizer state in host memory, updated there, on machines with a GPU.

The moments, 8 of the 16 bytes that training holds for each parameter in float32, never come to the
GPU: the gradients are copied to the host (4 bytes a parameter, a step), the moments move there, and
what the weights are to change by is copied back (4 bytes).

Source: Ren et al. 2021, arXiv:2101.06840 (ZeRO-Offload), section 4, without its delayed update.
"""

from __future__ import annotations

from trainer.errors import SettingError

HOST = "CPU:0"


def place(offload: str) -> str:
    """Return the device of the optimizer's state; empty: that of the weights."""
    return HOST if offload == "cpu" else ""


def check(offload: str, *, has_gpu: bool) -> None:
    """Refuse to move state from the host to the host.

    Raises:
        SettingError: when there is no GPU.
    """
    if offload != "none" and not has_gpu:
        raise SettingError(
            "there is nothing to gain: no GPU is there, so the optimizer's state is in host "
            "memory already",
            where="training.offload", holds=f'"{offload}"', right='"none"',
        )  # fmt: skip
