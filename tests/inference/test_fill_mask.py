"""Tests of `fill-mask`: candidates against full logits, and the models that are refused."""

import json
import re
import shutil

import numpy as np
import pytest

from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.inference.fill_mask import (
    Candidate,
    FillMaskConfig,
    MaskedModel,
    candidates,
    check_fills_masks,
    fill_mask,
    filled,
)
from roformer_tf.inference.opening import open_model
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.heads import (
    RoFormerForCausalLM,
    RoFormerForMaskedLM,
    RoFormerForTokenClassification,
)

pytestmark = pytest.mark.usefixtures("eager_steps")

TEXTS = ["今天[MASK]很好，可以去公园。", "[MASK][MASK]的经济", "北京[MASK]"]


@pytest.fixture(scope="module", params=["word", "char"])
def model(request, released):
    keras = RoFormerForMaskedLM.from_pretrained(released(request.param))
    return MaskedModel(keras, keras.tokenizer)


def reference(masked, text, top):
    """Process a single text in float64; return [(token, probability)] for each mask."""
    model, tokenizer = masked.model, masked.tokenizer
    ids = [tokenizer.cls_id]
    for number, part in enumerate(text.split("[MASK]")):
        ids += [tokenizer.mask_id] * (number > 0) + tokenizer.encode(part)[0][1:-1]
    ids = np.array([[*ids, tokenizer.sep_id]], "int32")
    logits = np.asarray(model({"token_ids": ids}), "float64")[0]  # (T, V)
    plain = [i for i, t in enumerate(tokenizer.tokens) if t and not (t[0] == "[" and t[-1] == "]")]
    result = []
    for position in np.flatnonzero(ids[0] == tokenizer.mask_id):
        probabilities = np.exp(logits[position, plain])
        probabilities /= probabilities.sum()
        best = np.argsort(-probabilities)[:top]
        result.append([(tokenizer.tokens[plain[i]], probabilities[i]) for i in best])
    return result


def test_candidates_are_the_most_likely_tokens_of_each_mask(model):
    """A batch of several texts gives the same as each text alone."""
    for got, text in zip(candidates(model, TEXTS, top=4), TEXTS, strict=True):
        want = reference(model, text, 4)
        assert [[c.token for c in mask] for mask in got] == [[t for t, _ in mask] for mask in want]
        assert np.array([[c.probability for c in mask] for mask in got]) == pytest.approx(
            np.array([[p for _, p in mask] for mask in want]), rel=1e-4
        )


def test_special_tokens_are_not_candidates(model):
    masks = candidates(model, ["今天[MASK]"], top=10**9)
    tokens = [candidate.token for candidate in masks[0][0]]
    ordinary = [t for t in model.tokenizer.tokens if t and not (t[0] == "[" and t[-1] == "]")]
    assert sorted(tokens) == sorted(ordinary)
    assert sum(candidate.probability for candidate in masks[0][0]) == pytest.approx(1)


def test_the_most_likely_token_replaces_the_mask():
    masks = [[Candidate("气", 0.7), Candidate("日", 0.2)], [Candidate("##ing", 0.5)]]
    assert filled("天[MASK]go[MASK]。", masks) == "天［气］go［ing］。"


def test_a_text_without_a_mask_is_refused(model):
    with pytest.raises(InputError, match="no \\[MASK\\] in '今天'"):
        candidates(model, ["北京[MASK]", "今天"])
    with pytest.raises(InputError, match="今天"):
        FillMaskConfig(model="x", text=("今天",))


def test_a_request_for_no_tokens_is_refused():
    with pytest.raises(InputError, match="top is 0"):
        FillMaskConfig(model="x", text=("[MASK]",), top=0)


def test_a_model_without_a_vocabulary_is_refused(released, tmp_path):
    folder = shutil.copytree(released("hf_char"), tmp_path / "model")
    (folder / "vocab.txt").unlink()
    with pytest.raises(InputError, match=r"vocab\.txt"):
        fill_mask(FillMaskConfig(model=str(folder), text=("[MASK]",)))


def test_a_vocabulary_too_large_for_the_model_is_refused(released, tmp_path):
    folder = shutil.copytree(released("hf_char"), tmp_path / "model")
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    with (folder / "vocab.txt").open("a", encoding="utf-8") as file:
        file.write("".join(f"甲{i}\n" for i in range(size)))
    with pytest.raises(InputError, match=rf"its weights have {size:,} embeddings"):
        fill_mask(FillMaskConfig(model=str(folder), text=("[MASK]",)))


def test_the_command_prints_text_and_candidates(released, capsys):
    config = FillMaskConfig(
        model=str(released("char")), text=("今天[MASK]很好。", "[MASK][MASK]"), top=2
    )
    fill_mask(config)
    best = r"(\S+ [\d.]+%) (\S+ [\d.]+%)"
    assert re.fullmatch(
        rf"今天［.+］很好。\n  \[MASK\] {best}\n"
        rf"［.+］［.+］\n  \[MASK\] 1 {best}\n  \[MASK\] 2 {best}\n",
        capsys.readouterr().out,
    )


def convert(folder, source, cls, **overrides):
    """Load a checkpoint by a class and save it; return the folder."""
    cls.from_pretrained(source, **overrides).save_pretrained(folder)
    return folder


REFUSED = {  # part of the message: a function of (folder, released) that returns such a source
    "its attention is causal. Give": lambda folder, released: released("gpt_char"),
    "mlm, and its attention is causal": lambda folder, released: convert(
        folder, released("gpt_char"), RoFormerForCausalLM
    ),
    "its attention is unilm": lambda folder, released: released("sim_char"),
    "it holds encoder, and": lambda folder, released: convert(
        folder, released("char"), RoFormerEncoder
    ),
    "it holds classifier, encoder": lambda folder, released: released("hf_word_seqcls"),
    # its head has no weights of its own, so no weight would be reported as new
    "token_classifier, and": lambda folder, released: convert(
        folder, released("v2_char"), RoFormerForTokenClassification, num_labels=3
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_models_not_trained_to_fill_masks_are_refused(reason, released, tmp_path, capsys):
    source = str(REFUSED[reason](tmp_path / "model", released))
    assert main(["fill-mask", "--model", source, "今天天[MASK]很好"]) == 2
    message = capsys.readouterr()
    assert message.out == ""
    assert f"{source} fills no masks, which needs a language model's head and" in message.err
    assert reason in message.err


def masked_lm(source):
    with open_model(source) as opened:
        check_fills_masks(opened)
        return MaskedModel.of(opened)


def test_the_config_overrides_the_name_and_v2_models_fill_masks(released, unpacked, tmp_path):
    folder = unpacked("char").rename(tmp_path / "roformer-gpt")
    with pytest.raises(InputError, match='its name, with "gpt", is wrong'):
        masked_lm(folder)
    path = folder / "bert_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"attention_type": "bidirectional"}
    path.write_text(json.dumps(config), encoding="utf-8")
    for source in (folder, released("v2_char"), released("word_adam")):
        assert candidates(masked_lm(source), ["天[MASK]"], top=1)
