"""BERT's forward pass in plain numpy: slow, short, and sharing nothing with the ONNX graph it judges.

Written from the paper (Devlin et al. 2018; Vaswani et al. 2017 for the attention) and computed one sequence at
a time in double precision, so it has no padding, no mask and no fused operator to get wrong.
"""
from __future__ import annotations

import math
from typing import Any, Mapping, Sequence

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])


def last_hidden_state(config: Mapping[str, Any], weights: Mapping[str, np.ndarray], ids: Sequence[int]) -> np.ndarray:
    """The last layer's states [len(ids), width] of one unpadded sequence of segment 0."""

    def w(name: str) -> np.ndarray:
        return weights[name].astype(np.float64)

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w(f"{name}.weight").T + w(f"{name}.bias")

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + config["layer_norm_eps"])
        return centred / deviation * w(f"{name}.weight") + w(f"{name}.bias")

    def attention(x: np.ndarray, name: str) -> np.ndarray:
        query, key, value = (linear(x, f"{name}.self.{part}") for part in ("query", "key", "value"))
        width = x.shape[1] // config["num_attention_heads"]
        heads = []
        for start in range(0, x.shape[1], width):
            head = slice(start, start + width)
            scores = query[:, head] @ key[:, head].T / math.sqrt(width)
            share = np.exp(scores - scores.max(axis=1, keepdims=True))
            heads.append(share / share.sum(axis=1, keepdims=True) @ value[:, head])
        return linear(np.concatenate(heads, axis=1), f"{name}.output.dense")

    def gelu(x: np.ndarray) -> np.ndarray:
        return x * (1 + _erf(x / math.sqrt(2))) / 2

    table = "embeddings.{}_embeddings.weight".format
    x = w(table("word"))[list(ids)] + w(table("position"))[: len(ids)] + w(table("token_type"))[0]
    x = norm(x, "embeddings.LayerNorm")
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        x = norm(x + attention(x, f"{layer}.attention"), f"{layer}.attention.output.LayerNorm")
        wide = gelu(linear(x, f"{layer}.intermediate.dense"))
        x = norm(x + linear(wide, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    return x
