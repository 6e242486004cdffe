import pytest

from benchmarks.peers.operations import EVENT, group_of


@pytest.mark.parametrize(
    ("operation", "group"),
    [
        ("gradient_tape/encoder/layer_0/output/MatMul_1:_MklMatMul", "matrix products"),
        ("encoder/layer_0/attention/output/MatMul:_MklBatchMatMulV2", "products of attention"),
        ("encoder/dropout/stateless_random_uniform:StatelessRandomUniformV2", "random numbers"),
        ("encoder/dropout_12_1/stateless_dropout/GreaterEqual:GreaterEqual", "random numbers"),
        ("adam_w/mul_84:Mul", "optimizer and clipping"),
        ("adam_w/ResourceApplyAdam_83:ResourceApplyAdam", "optimizer and clipping"),
        ("layer_5/softmax_5_1/Softmax:_MklSoftmax", "softmax"),
        ("loss/Sparse:SparseSoftmaxCrossEntropyWithLogits", "cross-entropy"),
        ("dense/BiasAdd/Cast/Cast:Cast", "casts"),
        ("AddN_59/inputs_1:UnsortedSegmentSum", "gather and scatter"),
        ("attention/transpose_3/transpose:_MklTranspose", "transposes, slices, packs"),
        ("intermediate/Exp:Exp", "element-wise and sums"),
        ("ExecutorState::ProcessAsync::Start", "islands compiled by XLA"),
        ("div_no_nan/ReadVariableOp:ReadVariableOp", "the rest"),
    ],
)  # fmt: skip
def test_operations_are_grouped(operation, group):
    assert EVENT.fullmatch(operation)
    assert group_of(operation) == group


@pytest.mark.parametrize("event", ["ExecutorState::Process", "ParallelFor", "Iterator::Root"])
def test_events_that_are_not_graph_operations_are_excluded(event):
    assert not EVENT.fullmatch(event)
