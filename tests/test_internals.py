"""Every private name of other libraries that the package uses behaves as expected."""

import ast
import gc
import inspect
import pkgutil
import re
import textwrap
import weakref
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf import internals
from tests.support.private_names import PRIVATE_NAMES

HOOKS = {reliance.attribute for reliance in PRIVATE_NAMES if reliance.hook}


def check_attention_hook():
    calls = []

    class Recording(keras.layers.MultiHeadAttention):
        def _compute_attention(self, query, key, *arguments, **settings):
            calls.append((query.shape, key.shape, len(arguments), settings.get("use_causal_mask")))
            return super()._compute_attention(query, key, *arguments, **settings)

    layer = Recording(3, 4)
    x, y = np.ones((2, 5, 8), "float32"), np.ones((2, 7, 8), "float32")
    layer(x, y)
    assert calls.pop() == ((2, 5, 3, 4), (2, 7, 3, 4), 4, None), "it gets other arguments"
    layer(x, x, use_causal_mask=True)
    assert not calls.pop()[3], "the hook has to apply the causal mask"


def check_attention_build():
    calls = []

    class Recording(keras.layers.MultiHeadAttention):
        def _build_attention(self, rank):
            calls.append((rank, self.value_dense.built, hasattr(self, "_output_dense")))
            super()._build_attention(rank)

    Recording(3, 4).build((2, 5, 8), (2, 7, 8))
    assert calls == [(4, True, False)], "it is called at another time or with another rank"


def check_all_layers():
    inner = keras.layers.Dense(2)
    outer = keras.Sequential([keras.layers.TimeDistributed(inner)])
    outer.build((None, 3, 4))
    actual = list(internals.all_layers(outer))
    assert outer in actual, "the layer itself is missing"
    assert sum(layer is inner for layer in actual) == 1, "a layer inside another is missing"


def check_output_mask():
    class First(keras.layers.Layer):
        supports_masking = True

        def call(self, x, mask=None):
            first = x[:, :1]
            internals.set_output_mask(keras, first, mask[:, :1])
            return first

    tokens = np.array([[0, 3, 5]])
    output = First()(keras.layers.Embedding(8, 4, mask_zero=True)(tokens))
    assert keras.ops.convert_to_numpy(output._keras_mask).tolist() == [[False]]


def check_call_context():
    from keras.src.backend.common import global_state

    contexts = []

    class Recording(keras.layers.Layer):
        def call(self, x):
            contexts.append(global_state.get_global_attribute("current_call_ctx"))
            return x

    Recording()(np.ones(2, "float32"))
    assert contexts[0] is not None, "the call context is not set during a call"
    assert global_state.get_global_attribute("current_call_ctx") is None, "it is not cleared"


def check_stateless_scope():
    from keras.src.backend.common import stateless_scope

    assert not stateless_scope.in_stateless_scope()
    with keras.StatelessScope():
        assert stateless_scope.in_stateless_scope()


def check_tape():
    import tensorflow as tf
    from tensorflow.python.eager import record

    assert not record.could_possibly_record()
    with tf.GradientTape():
        assert record.could_possibly_record(), "a tape is not detected"
    x = tf.ones(2)
    with tf.autodiff.ForwardAccumulator(x, x):
        assert record.could_possibly_record(), "an accumulator is not detected"
    assert not record.could_possibly_record(), "it stays true"


def check_initializer():
    calls = []

    def initializer(shape, dtype):
        calls.append((tuple(shape), dtype))
        return keras.ops.full(shape, 7.0, dtype)

    with keras.StatelessScope():
        layer = keras.layers.Dense(2)
        layer.build((None, 3))
        internals.set_initializer(layer.kernel, initializer)
    assert calls == [((3, 2), "float32")], "it is not called once with the shape and dtype"
    assert (keras.ops.convert_to_numpy(layer.kernel) == 7).all(), "its value is not used"


def built_optimizer(**settings):
    variables = [keras.Variable(np.ones(shape, "float32"), name=f"w{shape}") for shape in (3, 4, 5)]
    optimizer = keras.optimizers.AdamW(**settings)
    optimizer.build(variables)
    return optimizer, variables


def check_index():
    optimizer, variables = built_optimizer()
    assert [internals.index_of(optimizer, v) for v in variables] == [0, 1, 2], "the indices differ"
    if keras.backend.backend() == "tensorflow":  # it passes its own variables to update_step
        assert internals.index_of(optimizer, variables[1].value) == 1, (
            "TensorFlow's variable is unknown"
        )


def check_trainable_variables():
    optimizer, variables = built_optimizer()
    assert internals.keras_variable(optimizer, variables[2]) is variables[2]


def check_momentums():
    optimizer, variables = built_optimizer()
    optimizer.apply([keras.ops.ones(v.shape) for v in variables])
    first, _ = internals.moments_of(optimizer, variables[1])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(first), [0.1] * 4, rtol=1e-5)


def check_velocities():
    optimizer, variables = built_optimizer(beta_2=0.9)
    optimizer.apply([3 * keras.ops.ones(v.shape) for v in variables])
    _, second = internals.moments_of(optimizer, variables[1])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(second), [0.9] * 4, rtol=1e-5)


def hooked_optimizer(name, result):
    """Run a step of AdamW with high decay and our hook.

    Return the hook's calls and the variable.
    """
    calls = []

    def hook(self, argument):
        calls.append(argument)
        return result

    kind = type("Hooked", (keras.optimizers.AdamW,), {name: hook})
    variable = keras.Variable(np.ones(3, "float32"))
    optimizer = kind(learning_rate=0.5, weight_decay=0.5)
    optimizer.build([variable])
    optimizer.apply([keras.ops.zeros(3)])
    return calls, keras.ops.convert_to_numpy(variable)


def check_use_weight_decay():
    calls, value = hooked_optimizer("_use_weight_decay", False)
    assert len(calls) == 1, "it is not called once"
    assert (value == 1).all(), "its result is ignored"


def check_apply_weight_decay():
    calls, value = hooked_optimizer("_apply_weight_decay", None)
    assert [len(list(x)) for x in calls] == [1], "it does not get the variables"
    assert (value == 1).all(), "weight decay is applied elsewhere as well"


def check_learning_rate():
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, 10, 0.0)
    optimizer = keras.optimizers.AdamW(schedule)
    assert float(internals.schedule_of(optimizer)(5)) == pytest.approx(0.5)


def check_device_scope():
    import tensorflow as tf

    assert internals.device_scope() == "", "it returns a scope although none is open"
    with tf.device("CPU:0"):
        assert internals.device_scope().endswith("CPU:0"), "it does not return the open scope"


def check_gradient_registry():
    import tensorflow as tf

    def traced():
        """Trace a custom gradient that refers to an object; return a weak reference to that."""
        factor = np.array(2.0, "float32")

        @tf.custom_gradient
        def square(x):
            return x * x, lambda upstream: factor * x * upstream

        assert float(tf.function(square)(tf.constant(3.0))) == 9
        return weakref.ref(factor)

    kept = traced()
    with internals.forgetting_gradients():
        forgotten = traced()
    gc.collect()
    assert kept() is not None, "TensorFlow frees gradients itself: `forgetting_gradients` can go"
    assert forgotten() is None, "a gradient is still referred to"


def check_jax_coordinator():
    from jax._src import distributed

    assert hasattr(distributed.global_state, "client"), "the attribute has another name"
    try:
        from jaxlib import _jax as compiled
    except ImportError:  # its name before jaxlib 0.6
        from jaxlib import xla_extension as compiled

    client = compiled.DistributedRuntimeClient
    for method in ("key_value_set", "blocking_key_value_get"):
        assert hasattr(client, method), f"the client has no {method}"


def check_jieba_dictionary():
    import jieba

    assert jieba.add_word.__self__ is jieba.dt, "add_word does not belong to jieba.dt"
    tokenizer, word = jieba.Tokenizer(), "甲乙丙丁"  # not the tokenizer that other tests use
    alone = SimpleNamespace(dt=tokenizer, finalseg=jieba.finalseg)
    assert not internals.jieba_dictionary_changed(alone, 0), (
        "a new tokenizer is initialized at once"
    )
    tokenizer.initialize()
    total = tokenizer.total
    assert not internals.jieba_dictionary_changed(alone, total), (
        "an unchanged dictionary counts as changed"
    )
    tokenizer.add_word(word, 5)
    assert tokenizer.total == total + 5, "an added word is not in the total"
    assert internals.jieba_dictionary_changed(alone, total), "an added word is not detected"
    try:
        tokenizer.del_word(word)
        assert internals.jieba_dictionary_changed(alone, tokenizer.total), (
            "a deleted word is not detected"
        )
    finally:
        jieba.finalseg.Force_Split_Words.discard(word)
    tokenizer.dictionary = "a path"
    assert internals.jieba_dictionary_changed(alone, tokenizer.total), (
        "another dictionary is not detected"
    )


CHECKS = {
    "MultiHeadAttention._compute_attention": check_attention_hook,
    "MultiHeadAttention._build_attention": check_attention_build,
    "Layer._flatten_layers": check_all_layers,
    "keras.src.backend.common.masking.set_keras_mask": check_output_mask,
    "keras.src.backend.common.global_state: current_call_ctx": check_call_context,
    "keras.src.backend.common.stateless_scope.in_stateless_scope": check_stateless_scope,
    "Variable._initializer": check_initializer,
    "Optimizer._get_variable_index": check_index,
    "Optimizer._trainable_variables": check_trainable_variables,
    "Adam._momentums": check_momentums,
    "Adam._velocities": check_velocities,
    "Optimizer._use_weight_decay": check_use_weight_decay,
    "Optimizer._apply_weight_decay": check_apply_weight_decay,
    "Optimizer._learning_rate": check_learning_rate,
    "tensorflow.python.eager.context.context().device_name": check_device_scope,
    "tensorflow.python.eager.record.could_possibly_record": check_tape,
    "tensorflow.python.framework.ops.gradient_registry._registry": check_gradient_registry,
    "jax._src.distributed.global_state.client": check_jax_coordinator,
    "jieba.dt.total": check_jieba_dictionary,
}


def failure_of(reliance):
    """Run the check of a private name. Return a message if it fails, or None."""
    try:
        CHECKS[reliance.name]()
    except Exception as error:
        return (
            f"{reliance.library} {version(reliance.library)} breaks what roformer_tf relies on: "
            f"{reliance.name}: {reliance.holds}. Found: {type(error).__name__}: {error}. Fix "
            f"roformer_tf/internals.py{' and where it is overridden' if reliance.hook else ''}, or "
            f"do without ({reliance.instead})."
        )
    return None


@pytest.mark.parametrize("reliance", PRIVATE_NAMES, ids=lambda reliance: reliance.name)
def test_private_names_behave_as_expected(reliance):
    if not find_spec(reliance.library):
        pytest.skip(f"{reliance.library} is not installed")
    if reliance.library == "tensorflow" and keras.backend.backend() != "tensorflow":
        pytest.skip("needs the TensorFlow backend")
    output = failure_of(reliance)
    assert output is None, output


def test_every_private_name_has_a_check():
    assert [reliance.name for reliance in PRIVATE_NAMES] == list(CHECKS)


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("MultiHeadAttention._compute_attention", keras.layers.MultiHeadAttention),
        ("Layer._flatten_layers", keras.Layer),
        ("Optimizer._get_variable_index", keras.optimizers.Optimizer),
    ],
)
def test_a_removed_name_is_reported_with_library_and_version(name, owner, monkeypatch):
    reliance = next(x for x in PRIVATE_NAMES if x.name == name)
    owner = next(base for base in owner.__mro__ if reliance.attribute in vars(base))
    monkeypatch.delattr(owner, reliance.attribute)
    output = failure_of(reliance)
    assert output.startswith(f"keras {keras.__version__} breaks what roformer_tf relies on: {name}")
    assert "internals.py" in output


def test_a_private_name_with_other_behaviour_is_reported(monkeypatch):
    def call(self, query, value):
        query, key, value = self.query_dense(query), self.key_dense(value), self.value_dense(value)
        return self.output_dense(self._compute_attention(query, key, value=value)[0])

    monkeypatch.setattr(keras.layers.MultiHeadAttention, "call", call)
    output = failure_of(PRIVATE_NAMES[0])
    assert "call passes it the projected query" in output


def keras_classes():
    """Every class of the package with a Keras base class."""
    modules = pkgutil.walk_packages(roformer_tf.__path__, "roformer_tf.")
    for name in sorted(module.name for module in modules):
        if name == "roformer_tf.__main__":
            continue
        for value in vars(import_module(name)).values():
            if inspect.isclass(value) and value.__module__ == name and foreign_bases(value):
                yield value


def foreign_bases(kind):
    """The Keras classes that a class inherits from."""
    return [base for base in kind.__mro__ if base.__module__.split(".")[0] == "keras"]


def private_names(kind):
    """The private names that the source of a class defines or reads from `self` or `cls`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            name = node.name
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls"):
            name = node.attr
        else:
            continue
        if re.match("_[a-z]", name):
            yield name


@pytest.mark.slow
def test_every_override_of_a_private_keras_name_is_listed():
    """A private name of ours that Keras also uses would override Keras' by accident."""
    overridden = {
        (kind.__name__, name)
        for kind in keras_classes()
        for keras_names in [{x for base in foreign_bases(kind) for x in private_names(base)}]
        for name in private_names(kind)
        if name in keras_names
    }
    assert {name for _, name in overridden} - HOOKS == set(), overridden
    assert {name for _, name in overridden} >= HOOKS, "a hook is listed that no class overrides"
