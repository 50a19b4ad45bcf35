"""The models by the names that ``model.kind`` gives them."""

from __future__ import annotations

from trainer.models import causal_lm, custom, image, tabular, text
from trainer.models.built import Built
from trainer.settings import Features, ModelSettings, Techniques
from trainer.shard import Parameters

OURS = {
    "tabular": tabular.build,
    "text": text.build,
    "causal-lm": causal_lm.build,
    "image": image.build,
}
"""Any other kind is a person's own: ``module:function``."""


def build(
    settings: ModelSettings,
    features: Features,
    techniques: Techniques,
    *,
    policy: str,
    seed: int,
    parameters: Parameters | None = None,
) -> Built:
    """Return the model of ``settings.kind``; its first weights depend on `seed` alone.

    Args:
        settings: kind and shape.
        features: the columns that it reads, and the label.
        techniques: recompute, attention and token_loss.
        policy: float32, mixed_float16 or mixed_bfloat16.
        seed: of the weights at the start.
        parameters: where the weights are when no worker holds all of them; None: each holds all.
    Raises: SettingError when a person's own builder gives no model that can be trained.
    """
    make = OURS.get(settings.kind, custom.build)
    return make(settings, features, techniques, policy=policy, seed=seed, parameters=parameters)
