"""A table beside onnxruntime and treelite: the same tree, the same observations, one decision a call, from Python.

    scripts/python-test.sh                                  # builds the wheel into target/python-test/site
    pip install --target DIR onnx onnxruntime treelite      # where these are not installed
    PYTHONPATH=target/python-test/site:DIR python3 experiments/table_speed.py TABLE.kvt

All three must decide alike on every observation. Times include what a call from Python costs; what a decision costs in a node
is measured by `cargo bench -p kvtide-runtime`.
"""
import pathlib
import random
import struct
import sys
import time

import numpy
import onnxruntime
import treelite
from onnx import TensorProto, helper
from treelite.model_builder import Metadata, ModelBuilder, PostProcessorFunc, TreeAnnotation

from kvtide import Observation, Table

CALLS = 4096
SIZES = {"watermark": 12, "victim": 5, "preemption": 3, "admission": 3}


def nodes_of(data):
    """The nodes of a file, as runtime/FORMAT.md lays them out: (feature, threshold, left) or (choices,)."""
    features, (count,) = data[11], struct.unpack_from("<I", data, 32)
    nodes = []
    for index in range(count):
        raw = data[40 + 8 * (features + index):][:8]
        if raw[1]:
            nodes.append((tuple(raw[4:]),))
        else:
            feature, _, left, threshold = struct.unpack("<BBHf", raw)
            nodes.append((feature, threshold, left))
    return features, nodes


def code(choices):
    """Choices as one number, so that a leaf has one value."""
    number = 0
    for choice, size in zip(choices, SIZES.values()):
        number = number * size + choice
    return float(number)


def onnx_of(features, nodes):
    split = [len(node) > 1 for node in nodes]
    attributes = dict(
        nodes_treeids=[0] * len(nodes),
        nodes_nodeids=list(range(len(nodes))),
        nodes_featureids=[node[0] if inner else 0 for node, inner in zip(nodes, split)],
        nodes_values=[node[1] if inner else 0.0 for node, inner in zip(nodes, split)],
        nodes_modes=["BRANCH_LEQ" if inner else "LEAF" for inner in split],
        nodes_truenodeids=[node[2] if inner else 0 for node, inner in zip(nodes, split)],
        nodes_falsenodeids=[node[2] + 1 if inner else 0 for node, inner in zip(nodes, split)],
        nodes_missing_value_tracks_true=[1] * len(nodes),
        target_treeids=[0] * split.count(False),
        target_nodeids=[index for index, inner in enumerate(split) if not inner],
        target_ids=[0] * split.count(False),
        target_weights=[code(node[0]) for node, inner in zip(nodes, split) if not inner],
        n_targets=1,
    )
    tree = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph([tree], "table", [tensor("x", TensorProto.FLOAT, [None, features])],
                              [tensor("y", TensorProto.FLOAT, [None, 1])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def treelite_of(features, nodes):
    builder = ModelBuilder(
        threshold_type="float32",
        leaf_output_type="float32",
        metadata=Metadata(num_feature=features, task_type="kRegressor", average_tree_output=False, num_target=1,
                          num_class=[1], leaf_vector_shape=(1, 1)),
        tree_annotation=TreeAnnotation(num_tree=1, target_id=[0], class_id=[0]),
        postprocessor=PostProcessorFunc(name="identity"),
        base_scores=[0.0],
    )
    builder.start_tree()
    for index, node in enumerate(nodes):
        builder.start_node(index)
        if len(node) == 1:
            builder.leaf(code(node[0]))
        else:
            feature, threshold, left = node
            builder.numerical_test(feature_id=feature, threshold=threshold, default_left=True, opname="<=",
                                   left_child_key=left, right_child_key=left + 1)
        builder.end_node()
    builder.end_tree()
    return builder.commit()


def timed(name, decide, inputs):
    for one in inputs[:200]:
        decide(one)
    taken = []
    for one in inputs:
        start = time.perf_counter_ns()
        decide(one)
        taken.append(time.perf_counter_ns() - start)
    taken.sort()
    p50, p99 = taken[len(taken) // 2] / 1000, taken[len(taken) * 99 // 100] / 1000
    print(f"{name:12} p50 {p50:8.2f} us   p99 {p99:8.2f} us")
    return p50


def main():
    data = pathlib.Path(sys.argv[1]).read_bytes()
    table = Table.from_bytes(data)
    features, nodes = nodes_of(data)
    stream = random.Random(1)
    ranges = list(table.ranges.values())
    rows = [[stream.uniform(low, high) for low, high in ranges] for _ in range(CALLS)]
    observations = [Observation(row) for row in rows]
    arrays = [numpy.array([list(observation)], dtype=numpy.float32) for observation in observations]
    session, model = onnx_of(features, nodes), treelite_of(features, nodes)
    of_onnx = lambda array: session.run(None, {"x": array})[0]
    of_treelite = lambda array: treelite.gtil.predict(model, array, nthread=1)

    choices = {head: names for head, names in zip(SIZES, [
        [0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.18, 0.25, 0.35, 0.5, 1.0],
        ["newest", "fewest-blocks", "most-blocks", "least-progress", "most-slack"],
        ["swap", "recompute", "cheaper"], ["fcfs", "on-time-first", "shortest-on-time-first"],
    ])}
    for observation, array in zip(observations, arrays):
        controls = table.decide(observation, swap=True)
        # Heads outside the profile are in the leaf, but the node's own.
        said = [choices[head].index(getattr(controls, head)) for head in SIZES]
        for name, number in [("onnxruntime", of_onnx(array)), ("treelite", of_treelite(array))]:
            number, other = int(numpy.ravel(number)[0]), []
            for size in reversed(SIZES.values()):
                number, choice = divmod(number, size)
                other.insert(0, choice)
            heads = [head for head in table.heads]
            wrong = [head for head, ours, theirs in zip(SIZES, said, other) if head in heads and ours != theirs]
            assert not wrong, f"{name} decides {wrong} otherwise: {said}, {other}"
    print(f"{len(nodes)} nodes, {table.leaves} leaves, {len(data)} bytes; {CALLS} observations, all decided alike")
    ours = timed("kvtide", lambda observation: table.decide(observation, swap=True), observations)
    for name, decide in [("onnxruntime", of_onnx), ("treelite", of_treelite)]:
        print(f"{'':12} {timed(name, decide, arrays) / ours:.1f} times as long")


main()
