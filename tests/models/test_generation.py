"""Tests of text generation against bert4keras, and of its settings."""

import keras
import numpy as np
import pytest
from keras import ops
from scipy import stats

from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.models.heads import RoFormerForCausalLM, RoFormerForSentenceSimilarity
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from tests.support.random_model import TINY, random_causal_lm, tokenizer_of

CLASSES = {
    "gpt_char": RoFormerForCausalLM,
    "sim_char": RoFormerForSentenceSimilarity,
    "sim_char_ft": RoFormerForSentenceSimilarity,
}
MAX_TOKENS = 12  # maximum number of tokens in the recordings


@pytest.fixture(scope="module", params=CLASSES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def generator(family, released):
    return CLASSES[family].from_pretrained(released(family))


@pytest.fixture(scope="module")
def recording(family, recorded):
    return recorded(f"{family}_written")


@pytest.fixture(scope="module")
def gpt(released):
    """The gpt checkpoint, shared by tests that do not change it."""
    return RoFormerForCausalLM.from_pretrained(released("gpt_char"))


def without_padding(padded):
    """Remove the padding (−1) after each sequence of ids."""
    return [row[row >= 0].tolist() for row in padded]


@pytest.mark.quick_cases("gpt_char-*", "sim_char-*")  # the third family differs only in its weights
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("ended", ["", "_ended"])
def test_generated_ids_equal_bert4keras(generator, recording, ended, beams):
    expected = without_padding(recording[("greedy" if beams == 1 else "beams") + ended])
    stop = (generator.tokenizer.tokens[int(recording["end"])],) if ended else ()
    config = GenerationConfig(max_tokens=MAX_TOKENS, beams=beams, stop=stop)
    generated = generator.generate_ids(without_padding(recording["prompts"]), config)
    sep = generator.tokenizer.sep_id
    if ended:  # bert4keras ends only at that token and treats [SEP] as any other token
        compared = [i for i, ids in enumerate(expected) if sep not in ids]
        assert len(compared) > len(expected) // 2
    else:
        compared = range(len(expected))
    for number in compared:
        (item,) = generated[number]
        ids = [*item.token_ids, *[sep] * (item.ended and not stop)]
        assert ids == expected[number]
        assert item.ended == (
            bool(ids) and ids[-1] in (sep, int(recording["end"]) if stop else sep)
        )


PROMPTS = [[101, 300, 301, 302], [101, 400], [101, *range(500, 520)]]


@pytest.mark.parametrize(
    "settings",
    [{}, {"samples": 3, "top_p": 0.9}, {"beams": 3}, {"beams": 3, "length_penalty": 1.0}],
)
def test_a_prompt_gives_the_same_in_a_batch_and_alone(gpt, settings):
    config = GenerationConfig(max_tokens=10, **settings)
    batched = gpt.generate_ids(PROMPTS, config)
    for prompt, generated in zip(PROMPTS, batched, strict=True):
        (alone,) = gpt.generate_ids([prompt], config)
        assert [item.token_ids for item in alone] == [item.token_ids for item in generated]
        scores = [[item.score for item in each] for each in (alone, generated)]
        np.testing.assert_allclose(*scores, atol=1e-5)


@pytest.mark.slow
def test_sampling_follows_the_distribution_of_the_settings():
    """Compare 4,000 samples after one prompt, with all three cuts, with the model's own logits."""
    keras.utils.set_random_seed(5)
    tokenizer = tokenizer_of()
    model = RoFormerForCausalLM(RoFormerConfig(**TINY, vocab_size=tokenizer.vocab_size))
    model.tokenizer = tokenizer
    prompt = [tokenizer.cls_id, 7, 8]
    cuts = {"temperature": 0.65, "top_k": 9, "top_p": 0.95}
    config = GenerationConfig(samples=4_000, max_tokens=1, **cuts)
    (generated,) = model.generate_ids([prompt], config, rows=4_000)
    counts = np.bincount(
        [(*item.token_ids, tokenizer.sep_id)[0] for item in generated],
        minlength=tokenizer.vocab_size,
    )
    logits = ops.convert_to_numpy(model({"token_ids": np.array([prompt], "int32")}))[0, -1]
    probabilities = np.exp(logits.astype("float64") / 0.65)
    most_likely = np.argsort(-probabilities)[:9]
    probabilities = probabilities[most_likely] / probabilities[most_likely].sum()
    kept_count = int(np.argmax(np.cumsum(probabilities) >= 0.95)) + 1
    assert 2 < kept_count < 9
    assert counts.sum() == counts[most_likely[:kept_count]].sum()
    expected_counts = 4_000 * probabilities[:kept_count] / probabilities[:kept_count].sum()
    assert stats.chisquare(counts[most_likely[:kept_count]], expected_counts).pvalue > 1e-4


def test_a_seed_is_reproducible_and_equal_prompts_get_different_samples(gpt):
    settings = {"max_tokens": 8, "samples": 2, "temperature": 2.0}

    def ids(prompts, seed):
        generated = gpt.generate_ids(prompts, GenerationConfig(seed=seed, **settings))
        return [[item.token_ids for item in each] for each in generated]

    (first,), (again,), (other,) = (ids(PROMPTS[:1], seed) for seed in (1, 1, 2))
    repeated = ids([PROMPTS[0]] * 2, 1)
    assert first == again == repeated[0]
    assert len({*first, *other, *repeated[1]}) == 6


def test_the_score_is_the_mean_log_probability(gpt):
    ((item,),) = gpt.generate_ids(PROMPTS[:1], GenerationConfig(max_tokens=6, temperature=1.5))
    row = np.array([[*PROMPTS[0], *item.token_ids]], "int32")
    logits = ops.convert_to_numpy(gpt({"token_ids": row}))[0].astype("float64")
    probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    start = len(PROMPTS[0])
    output = [probabilities[start - 1 + i, token] for i, token in enumerate(item.token_ids)]
    assert item.score == pytest.approx(np.mean(output), abs=1e-5)


def test_texts_that_end_early_do_not_change_the_rest(gpt):
    """Most of the six texts end early; the rest continue in a smaller batch."""
    prompts = [[101, 300 + i] for i in range(6)]
    configs = [GenerationConfig(max_tokens=max_tokens) for max_tokens in (3, 12, 2, 3, 1, 2)]
    for prompt, config, generated in zip(
        prompts, configs, gpt.generate_ids(prompts, configs), strict=True
    ):
        assert len(generated[0].token_ids) == config.max_tokens
        assert not generated[0].ended
        assert gpt.generate_ids([prompt], config)[0][0].token_ids == generated[0].token_ids


def test_a_text_ends_after_a_stop_string_but_not_before_min_tokens(gpt):
    ((full,),) = gpt.generate_ids(PROMPTS[1:2], GenerationConfig(max_tokens=12))
    tokens = [gpt.tokenizer.tokens[i] for i in full.token_ids]
    index = max(i for i in range(len(tokens)) if tokens[i] not in tokens[:i])
    stop = tokens[index]
    ((ended,),) = gpt.generate_ids(PROMPTS[1:2], GenerationConfig(max_tokens=12, stop=(stop,)))
    assert ended.token_ids == full.token_ids[: index + 1]
    assert ended.ended
    late_config = GenerationConfig(max_tokens=12, stop=(stop,), min_tokens=index + 2)
    ((later,),) = gpt.generate_ids(PROMPTS[1:2], late_config)
    assert len(later.token_ids) > index + 1


def test_a_stop_string_may_be_several_tokens_or_part_of_a_token(gpt, monkeypatch):
    ((full,),) = gpt.generate_ids(PROMPTS[1:2], GenerationConfig(max_tokens=12))
    tokenizer, ids = gpt.tokenizer, full.token_ids
    # "甲乙" becomes a token, and "甲乙" with the previous token another one
    spelled = ["甲乙" if i == ids[6] else x for i, x in enumerate(tokenizer.tokens)]
    monkeypatch.setattr(tokenizer, "tokens", spelled)
    word = tokenizer.decode(ids[5:7])
    monkeypatch.setitem(tokenizer.vocabulary, word, tokenizer.mask_id)
    for stop in (word, "甲"):
        config = GenerationConfig(max_tokens=12, stop=(stop,))
        ((ended,),) = gpt.generate_ids(PROMPTS[1:2], config)
        assert (ended.token_ids, ended.ended) == (ids[:7], True)


def test_stop_may_be_one_text_or_a_list():
    assert GenerationConfig(stop="结束").stop == ("结束",)
    assert GenerationConfig(stop=["结束", "。"]) == GenerationConfig(stop=("结束", "。"))
    with pytest.raises(InputError, match="stop contains an empty text"):
        GenerationConfig(stop="")


@pytest.mark.parametrize("beams", [1, 3])
def test_no_text_ends_before_min_tokens(gpt, beams):
    sep = gpt.tokenizer.sep_id
    bias = ops.convert_to_numpy(gpt.mlm.bias)
    gpt.mlm.bias.assign(np.where(np.arange(len(bias)) == sep, 1e3, bias))
    try:
        ((unrestricted,),) = gpt.generate_ids(PROMPTS[:1], GenerationConfig(beams=beams))
        ((later,),) = gpt.generate_ids(PROMPTS[:1], GenerationConfig(beams=beams, min_tokens=4))
    finally:
        gpt.mlm.bias.assign(bias)
    assert unrestricted.token_ids == ()
    assert unrestricted.ended
    assert len(later.token_ids) == 4
    assert sep not in later.token_ids


def test_a_higher_length_penalty_gives_longer_texts(tmp_path):
    model = random_causal_lm(tmp_path / "model")
    prompts = [[model.tokenizer.cls_id, 5 + i] for i in range(12)]

    def tokens(length_penalty):
        config = GenerationConfig(max_tokens=10, beams=4, length_penalty=length_penalty)
        return sum(len(x.token_ids) for (x,) in model.generate_ids(prompts, config))

    assert tokens(-1.0) < tokens(0.0) < tokens(2.0)


def test_the_repetition_penalty_prevents_repetition(gpt):
    ((plain,),) = gpt.generate_ids(PROMPTS[1:2], GenerationConfig(max_tokens=20))
    config = GenerationConfig(max_tokens=20, repetition_penalty=1e6)
    ((other,),) = gpt.generate_ids(PROMPTS[1:2], config)
    assert len(set(other.token_ids)) == 20 > len(set(plain.token_ids))


def test_each_token_is_streamed_when_it_is_generated(gpt):
    output = {}
    done = []
    generated = gpt.generate_ids(
        PROMPTS,
        GenerationConfig(max_tokens=5, samples=2),
        rows=4,
        on_token=lambda prompt, sample, token: output.setdefault((prompt, sample), []).append(
            token
        ),
        on_done=lambda prompt, texts: done.append((prompt, texts)),
    )
    assert output == {
        (prompt, sample): list(item.token_ids)
        for prompt, each in enumerate(generated)
        for sample, item in enumerate(each)
    }
    assert sorted(prompt for prompt, _ in done) == [0, 1, 2]
    assert all(texts == generated[prompt] for prompt, texts in done)


def test_only_ids_of_the_vocabulary_are_generated():
    """Some logits have no token: after the end of the vocabulary, and at a gap in it."""
    keras.utils.set_random_seed(0)
    tokenizer = tokenizer_of()
    vocabulary = {x: i + (i > 10) for x, i in tokenizer.vocabulary.items()}  # without the id 11
    size = len(vocabulary) + 1
    model = RoFormerForCausalLM(RoFormerConfig(**TINY, vocab_size=size + 30))
    model.tokenizer = RoFormerTokenizer(vocabulary, "char")
    model.mlm.bias.assign([50.0 * (i == 11 or i >= size) for i in range(size + 30)])
    for settings in ({}, {"samples": 4, "temperature": 3.0}, {"beams": 3}):
        generated = model.generate_ids([[1, 6]], GenerationConfig(max_tokens=6, **settings))
        ids = {i for item in generated[0] for i in item.token_ids}
        assert ids <= set(vocabulary.values())


@pytest.mark.parametrize("beams", [1, 2])
def test_a_finished_prompt_is_reported_at_once(gpt, beams):
    output = []
    configs = [GenerationConfig(max_tokens=max_tokens, beams=beams) for max_tokens in (6, 2, 4)]
    generated = gpt.generate_ids(PROMPTS, configs, on_done=lambda *each: output.append(each))
    assert output == [(1, generated[1]), (2, generated[2]), (0, generated[0])]


@pytest.mark.parametrize("beams", [1, 2])
def test_a_cancelled_prompt_ends_and_the_rest_is_unchanged(gpt, beams):
    config = GenerationConfig(max_tokens=9, beams=beams)
    checked = []

    def given_up(prompt):
        checked.append(prompt)
        return prompt == 1 and checked.count(1) == 3

    generated = gpt.generate_ids(PROMPTS, config, given_up=given_up)
    full = gpt.generate_ids(PROMPTS, config)
    assert [len(each[0].token_ids) for each in generated] == [9, 3, 9]
    assert not generated[1][0].ended
    for number in (0, 2):
        assert generated[number][0].token_ids == full[number][0].token_ids


def test_turns_select_the_random_stream_of_a_prompt(gpt):
    config = GenerationConfig(max_tokens=8, temperature=2.0)
    prompts = [PROMPTS[0]] * 3
    by_default = [each[0].token_ids for each in gpt.generate_ids(prompts, config)]
    by_turn = [each[0].token_ids for each in gpt.generate_ids(prompts, config, turns=[2, 0, 0])]
    assert by_turn == [by_default[2], by_default[0], by_default[0]]
    assert len(set(by_default)) == 3


def test_texts_continue_their_prompts(gpt):
    generated = gpt.generate(["今天", "天气"], max_tokens=4, samples=2, seed=3)
    assert [len(each) for each in generated] == [2, 2]
    prompt = gpt.encode_prompt("今天")
    assert prompt == gpt.tokenizer.encode("今天")[0][:-1]
    (ids,) = gpt.generate_ids([prompt], GenerationConfig(max_tokens=4, samples=2, seed=3))
    assert generated[0] == [gpt.tokenizer.decode(item.token_ids) for item in ids]


def test_generation_stops_at_the_maximum_length_of_the_model(gpt):
    max_tokens = gpt.config.max_position_embeddings
    prompt = [101, *range(200, 200 + max_tokens - 4)]
    ((item,),) = gpt.generate_ids([prompt], GenerationConfig(max_tokens=50))
    assert len(prompt) + len(item.token_ids) == max_tokens
    with pytest.raises(InputError, match=f"{max_tokens} tokens"):
        gpt.generate_ids([[101] * max_tokens])


def test_prompts_are_any_collection_of_texts(gpt):
    texts = ["今天", "天气"]
    want = gpt.generate(texts, max_tokens=2)
    assert gpt.generate((text for text in texts), max_tokens=2) == want
    for wrong in ("今天", None, [("今天", "天气")]):
        with pytest.raises(InputError, match="a list of texts is needed"):
            gpt.generate(wrong)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_p": 0.0}, "top_p is 0,"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"beams": 4, "top_k": 3}, "beams"),
        ({"beams": 4, "samples": 2}, "beams"),
        ({"length_penalty": 1.0}, "beams"),
        ({"stop": ("",)}, "stop"),
        ({"seed": -1}, "seed"),
    ],
    ids=str,
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        GenerationConfig(**settings)
