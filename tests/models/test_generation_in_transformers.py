"""Tests that transformers' `generate` gives the same text with our exported models.

They need the extra [hf]. Prompts are ids: [CLS] and a text, without the final [SEP].
"""

from itertools import chain

import numpy as np
import pytest

from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.cli import main
from roformer_tf.models.generation import GenerationConfig
from roformer_tf.models.heads import RoFormerForCausalLM
from tests.support.random_model import random_causal_lm

pytestmark = pytest.mark.hf

PROMPTS, MAX_TOKENS = 20, 16


@pytest.fixture(scope="module", params=["gpt_char", "random"])
def exported(request, released, transformers, tmp_path_factory):
    """Our model of a checkpoint, and the same model exported and loaded by transformers.

    The released gpt model, recognized only by its name, and a model with random weights.
    """
    folder = tmp_path_factory.mktemp(request.param)
    source = folder / "own"
    if request.param == "gpt_char":
        source = released("gpt_char")
    else:
        random_causal_lm(source, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    target = folder / "huggingface"
    assert main(["checkpoints", "convert", str(source), str(target), "--to", "huggingface"]) == 0
    assert transformers.AutoConfig.from_pretrained(target).architectures == ["RoFormerForCausalLM"]
    theirs, report = transformers.RoFormerForCausalLM.from_pretrained(
        target, output_loading_info=True
    )
    assert not any(report.values()), report
    return RoFormerForCausalLM.from_pretrained(source), theirs.eval()


@pytest.fixture(scope="module")
def prompts(exported):
    """Twenty prompts of 1 to 12 ids: [CLS] and ordinary tokens."""
    tokenizer = exported[0].tokenizer
    special = [tokenizer.vocabulary[token] for token in tokenizer.tokens if token[0] == "["]
    plain = np.setdiff1d(np.arange(tokenizer.vocab_size), special)
    rng = np.random.default_rng(5)
    return [
        [tokenizer.cls_id, *rng.choice(plain, rng.integers(0, 12)).tolist()] for _ in range(PROMPTS)
    ]


def greedy(model, prompts):
    """Return the most probable ids after each prompt, up to [SEP], without a cache of keys."""
    sequences = np.zeros((len(prompts), max(map(len, prompts)) + MAX_TOKENS), "int32")
    ends = np.array([len(prompt) for prompt in prompts])
    for sequence, prompt in zip(sequences, prompts, strict=True):
        sequence[: len(prompt)] = prompt
    indices = np.arange(len(prompts))
    for _ in range(MAX_TOKENS):
        logits = np.asarray(model({"token_ids": sequences}))[indices, ends - 1]
        sequences[indices, ends] = logits.argmax(-1)
        ends += 1
    eos = model.tokenizer.sep_id
    generated_ids = [
        sequence[len(prompt) :][:MAX_TOKENS].tolist()
        for sequence, prompt in zip(sequences, prompts, strict=True)
    ]
    return [ids[: ids.index(eos) + 1] if eos in ids else ids for ids in generated_ids]


def generated(model, torch, prompt, **settings):
    """Return the ids that transformers generates after one prompt."""
    arguments = torch.tensor([prompt])
    ids = model.generate(
        arguments,
        attention_mask=torch.ones_like(arguments),
        max_new_tokens=MAX_TOKENS,
        do_sample=False,
        **settings,
    )
    return ids[0, len(prompt) :].tolist()


def test_the_exported_config_is_a_decoder_with_special_tokens(exported):
    ours, theirs = exported
    assert theirs.config.is_decoder
    generation = theirs.generation_config
    assert generation.bos_token_id == ours.tokenizer.vocabulary["[CLS]"]
    assert generation.eos_token_id == ours.tokenizer.vocabulary["[SEP]"]
    assert generation.pad_token_id == ours.tokenizer.vocabulary["[PAD]"]


def test_logits_are_equal_at_every_position(exported, prompts, torch):
    ours, theirs = exported
    tokens = list(chain.from_iterable(prompts))  # one long text
    with torch.no_grad():
        actual = theirs(torch.tensor([tokens])).logits.numpy()
    want = np.asarray(ours({"token_ids": np.array([tokens], "int32")}))
    np.testing.assert_allclose(actual, want, rtol=0, atol=5e-5)
    changed = [*tokens[:-1], tokens[-1] + 1]  # tokens before it do not attend to it
    with torch.no_grad():
        rest = theirs(torch.tensor([changed])).logits.numpy()
    np.testing.assert_allclose(rest[:, :-1], actual[:, :-1], rtol=0, atol=1e-6)


def test_transformers_generates_our_most_probable_ids(exported, prompts, torch):
    ours, theirs = exported
    want = greedy(ours, prompts)
    assert [generated(theirs, torch, prompt) for prompt in prompts] == want
    assert any(len(ids) == MAX_TOKENS for ids in want)
    if ours.tokenizer.vocab_size < 100:  # then [SEP] is sometimes the most likely
        assert any(ids[-1] == ours.tokenizer.sep_id for ids in want)


@pytest.mark.parametrize(
    ("our_settings", "their_settings"),
    [
        ({}, {}),
        ({"beams": 4, "length_penalty": 0.0}, {"num_beams": 4, "length_penalty": 0.0}),
        ({"beams": 4, "length_penalty": 1.0}, {"num_beams": 4, "length_penalty": 1.0}),
    ],
    ids=["greedy", "beams", "beams by length"],
)
def test_both_generate_the_same_ids(our_settings, their_settings, exported, prompts, torch):
    ours, theirs = exported
    config = GenerationConfig(max_tokens=MAX_TOKENS, **our_settings)
    actual = [list(item.token_ids) for (item,) in ours.generate_ids(prompts, config)]
    eos = ours.tokenizer.sep_id
    want = [generated(theirs, torch, prompt, **their_settings) for prompt in prompts]
    assert actual == [[i for i in ids if i != eos] for ids in want]


@pytest.mark.parametrize("exported", ["gpt_char"], indirect=True)
def test_transformers_generates_the_ids_recorded_from_bert4keras(exported, recorded, torch):
    ids = recorded("gpt_char")["greedy_ids"][0].tolist()
    generated_ids = generated(exported[1], torch, ids[:6])
    assert generated_ids[: len(ids) - 6] == ids[6:]


def test_a_causal_model_saved_by_transformers_is_loaded_as_causal(transformers, torch, tmp_path):
    """Its config.json has only `is_decoder`, none of our keys."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 16, "embedding_size": 16, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "intermediate_size": 24, "initializer_range": 0.5}
    theirs = transformers.RoFormerForCausalLM(
        transformers.RoFormerConfig(**sizes, is_decoder=True)
    ).eval()
    theirs.save_pretrained(tmp_path)
    with OpenedSource(tmp_path) as source:
        assert source.checkpoint().attention_type == "causal"
    ids = np.random.default_rng(0).integers(1, 40, (2, 9)).astype("int32")
    with torch.no_grad():
        want = theirs(torch.tensor(ids, dtype=torch.long)).logits.numpy()
    actual = np.asarray(RoFormerForCausalLM.from_pretrained(tmp_path)({"token_ids": ids}))
    np.testing.assert_allclose(actual, want, rtol=0, atol=2e-5)
