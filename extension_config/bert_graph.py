"""BERT as an ONNX graph, from the weights and the config.json of a Hugging Face checkpoint.

The graph takes input_ids, attention_mask and token_type_ids (int64 [batch, seq]) and gives
last_hidden_state (float [batch, seq, width]).  It uses standard operators only, so any ONNX runtime opens
it: ONNX Runtime's own fused Attention and SkipLayerNormalization were measured on the CPU and are no faster.
"""
from __future__ import annotations

import math
from typing import Any, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17  # the first with LayerNormalization
IR_VERSION = 8  # the oldest that holds opset 17: the file opens in as many runtimes as it can
MASKED = float(np.finfo(np.float32).min)  # added to the score of a padded position, so softmax gives it exactly 0


class _Graph:
    """Collects nodes and constants; every value is named once, after what it is."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output


class _Bert:
    """Writes the layers; `config` gives the sizes, `weights` the tensors by their checkpoint names."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> None:
        self.weights, self.graph = weights, _Graph()
        self.heads = int(config["num_attention_heads"])
        self.width = int(config["hidden_size"])
        self.head_width = self.width // self.heads
        self.layers = int(config["num_hidden_layers"])
        self.eps = float(config["layer_norm_eps"])
        g = self.graph
        self.one = g.constant("one", np.float32(1))
        self.half = g.constant("half", np.float32(0.5))
        self.sqrt2 = g.constant("sqrt2", np.float32(math.sqrt(2)))
        self.scale = g.constant("sqrt_head_width", np.float32(math.sqrt(self.head_width)))
        # In Reshape a 0 keeps the input's extent: batch and sequence stay free.
        self.split = g.constant("split_heads", np.array([0, 0, self.heads, self.head_width], np.int64))
        self.merge = g.constant("merge_heads", np.array([0, 0, self.width], np.int64))

    def build(self) -> str:
        mask = self._mask()
        x = self._embeddings()
        for i in range(self.layers):
            name = f"encoder.layer.{i}"
            x = self._residual(x, self._attention(x, mask, f"{name}.attention"), f"{name}.attention.output.LayerNorm")
            x = self._residual(x, self._feed_forward(x, name), f"{name}.output.LayerNorm")
        return self.graph.add("Identity", [x], "last_hidden_state")

    def _mask(self) -> str:
        """[batch, seq] of 1 and 0 to [batch, 1, 1, seq] of 0 and MASKED, to be added to the attention scores."""
        g = self.graph
        axes = g.constant("mask_axes", np.array([1, 2], np.int64))
        kept = g.add("Cast", [g.add("Unsqueeze", ["attention_mask", axes], "mask_4d")], "mask_float", to=TensorProto.FLOAT)
        return g.add("Mul", [g.add("Sub", [self.one, kept], "mask_padding"), g.constant("masked", np.float32(MASKED))], "mask")

    def _embeddings(self) -> str:
        g, table = self.graph, lambda kind: self._weight(f"embeddings.{kind}_embeddings.weight")
        words = g.add("Gather", [table("word"), "input_ids"], "embeddings.words")
        types = g.add("Gather", [table("token_type"), "token_type_ids"], "embeddings.types")
        # Shape(start, end) gives the length as a vector.  ONNX Runtime rewrites a scalar Gather on the shape followed by
        # Unsqueeze so that the Slice is handed a scalar, and then refuses to run it ("Ends must be a 1-D array").
        length = g.add("Shape", ["input_ids"], "embeddings.length", start=1, end=2)
        start, axis = g.constant("zero", np.array([0], np.int64)), g.constant("axis_0", np.array([0], np.int64))
        positions = g.add("Slice", [table("position"), start, length, axis], "embeddings.positions")
        total = g.add("Add", [g.add("Add", [words, types], "embeddings.word_type"), positions], "embeddings.sum")
        return self._norm(total, "embeddings.LayerNorm")

    def _attention(self, x: str, mask: str, name: str) -> str:
        g = self.graph
        # Keys are laid out [batch, head, head_width, seq] at once, ready for query × key.
        layout = {"query": [0, 2, 1, 3], "key": [0, 2, 3, 1], "value": [0, 2, 1, 3]}
        part = {}
        for kind, perm in layout.items():
            flat = self._linear(x, f"{name}.self.{kind}")
            part[kind] = g.add("Transpose", [g.add("Reshape", [flat, self.split], f"{flat}.heads")], f"{flat}.layout", perm=perm)
        scores = g.add("Div", [g.add("MatMul", [part["query"], part["key"]], f"{name}.dot"), self.scale], f"{name}.scaled")
        share = g.add("Softmax", [g.add("Add", [scores, mask], f"{name}.masked")], f"{name}.softmax", axis=-1)
        mixed = g.add("Transpose", [g.add("MatMul", [share, part["value"]], f"{name}.mix")], f"{name}.back", perm=[0, 2, 1, 3])
        return self._linear(g.add("Reshape", [mixed, self.merge], f"{name}.merged"), f"{name}.output.dense")

    def _feed_forward(self, x: str, name: str) -> str:
        """Wide layer, exact gelu x/2 · (1 + erf(x/√2)), narrow layer."""
        g = self.graph
        wide = self._linear(x, f"{name}.intermediate.dense")
        erf = g.add("Erf", [g.add("Div", [wide, self.sqrt2], f"{wide}.over_sqrt2")], f"{wide}.erf")
        twice = g.add("Mul", [wide, g.add("Add", [erf, self.one], f"{wide}.gate")], f"{wide}.twice")
        return self._linear(g.add("Mul", [twice, self.half], f"{wide}.gelu"), f"{name}.output.dense")

    def _residual(self, x: str, change: str, norm: str) -> str:
        return self._norm(self.graph.add("Add", [change, x], f"{norm}.input"), norm)

    def _linear(self, x: str, name: str) -> str:
        """Checkpoints store [out, in]; MatMul wants [in, out]."""
        weight = self.graph.constant(f"{name}.weight", self.weights[f"{name}.weight"].T)
        product = self.graph.add("MatMul", [x, weight], f"{name}.product")
        return self.graph.add("Add", [product, self._weight(f"{name}.bias")], name)

    def _norm(self, x: str, name: str) -> str:
        inputs = [x, self._weight(f"{name}.weight"), self._weight(f"{name}.bias")]
        return self.graph.add("LayerNormalization", inputs, name, axis=-1, epsilon=self.eps)

    def _weight(self, name: str) -> str:
        return self.graph.constant(name, self.weights[name])


def build(config: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """The model, checked by onnx.  A config that asks for another kind of BERT is refused."""
    for key, supported in {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}.items():
        if config.get(key, supported) != supported:
            raise ValueError(f"config.json has {key} = {config[key]!r}; this graph is written for {supported!r}")
    bert = _Bert(config, weights)
    output = bert.build()
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "seq"])
              for name in ("input_ids", "attention_mask", "token_type_ids")]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", "seq", bert.width])]
    graph = helper.make_graph(bert.graph.nodes, "bert", inputs, outputs, bert.graph.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="lethe")
    onnx.checker.check_model(model, full_check=True)
    return model
