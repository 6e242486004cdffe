"""Changed vocabularies, compared with bert4keras' recorded pruning and with means by NumPy."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.conversion.change_vocabulary import (
    VocabularyConfig,
    add_words,
    change_vocabulary,
    extend,
    keep_tokens,
    simplify,
)
from roformer_tf.conversion.convert import OutputConfig, Stored, convert_checkpoint
from roformer_tf.errors import InputError
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

GOLDENS = Path(__file__).parents[1] / "fixtures" / "tokenizer"
WORDS, BIAS = "encoder/embeddings/word/embeddings", "mlm/bias"
LAYOUTS = [("tf1", "new.zip"), ("tf1", "new"), ("huggingface", "new"), ("own", "new")]


@pytest.fixture
def opened_with_tokenizer(released):
    """A function that returns an open checkpoint and its tokenizer."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda name: (
            stack.enter_context(OpenedSource(released(name))).checkpoint(),
            RoFormerTokenizer.from_pretrained(released(name)),
        )


# --- keep_tokens -------------------------------------------------------------------------------


@pytest.mark.parametrize(("to", "name"), LAYOUTS)
def test_kept_and_compound_tokens_give_bert4keras_outputs(
    to, name, opened_with_tokenizer, recorded, tmp_path, record_property
):
    arrays = recorded("word_pruned")
    compound = [[i for i in row if i >= 0] for row in arrays["compound_tokens"].tolist()]
    checkpoint, _ = opened_with_tokenizer("word")
    pruned = keep_tokens(checkpoint, arrays["keep_tokens"].tolist(), compound)
    assert pruned.config.vocab_size == 308
    assert (
        convert_checkpoint(Stored(pruned, None, {}), tmp_path / name, OutputConfig(to=to)).value
        == 0
    )
    model = RoFormerForMaskedLM.from_pretrained(tmp_path / name)
    inputs = {key: arrays[key] for key in ("token_ids", "segment_ids")}
    not_padding = inputs["token_ids"] != 0
    for output, got, want, bound in (
        ("hidden", model.encoder(inputs), arrays["hidden_last"], 1e-5),
        ("logits", model(inputs), arrays["mlm_logits"], 2e-5),
    ):
        difference = np.abs(np.asarray(got) - want)[not_padding].max()
        record_property("difference", ("word_pruned", f"{output}, {to}", float(difference), bound))
        assert difference <= bound


def test_other_weights_do_not_change(opened_with_tokenizer):
    checkpoint, _ = opened_with_tokenizer("word_adam")
    changed = keep_tokens(checkpoint, [0, 1, 2])
    assert changed.config == checkpoint.config.replace(vocab_size=3)
    for name in checkpoint.arrays.keys() - {WORDS, BIAS}:
        np.testing.assert_array_equal(changed.arrays[name], checkpoint.arrays[name])


# --- Vocabularies that get smaller -------------------------------------------------------------


def test_a_simplified_vocabulary_is_bert4keras_vocabulary(opened_with_tokenizer):
    """A simplified vocabulary has bert4keras' tokens and [MASK], which we always keep."""
    checkpoint, tokenizer = opened_with_tokenizer("word")
    smaller, kept = simplify(checkpoint, tokenizer)
    assert kept.tokenization == "char"
    assert kept.tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert smaller.config.vocab_size == kept.vocab_size == smaller.arrays[WORDS].shape[0]
    text = "今天天气很好，我们去公园散步。Hello 2021!"
    as_char = RoFormerTokenizer(tokenizer.vocabulary, "char")
    assert kept.tokenize(text) == as_char.tokenize(text)
    old = [tokenizer.vocabulary[token] for token in kept.tokens]
    np.testing.assert_array_equal(smaller.arrays[WORDS], checkpoint.arrays[WORDS][old])


def test_simplify_keeps_the_ids_that_bert4keras_keeps(opened_with_tokenizer):
    with gzip.open(GOLDENS / "word" / "simplified.json.gz", "rt", encoding="utf-8") as file:
        want = json.load(file)[0]["keep_tokens"]
    from tests.support.vocabularies import read_vocabulary

    vocabulary = read_vocabulary(GOLDENS / "word")
    checkpoint, _ = opened_with_tokenizer("word")
    rows = np.arange(len(vocabulary) * 32, dtype="float32").reshape(-1, 32)
    large = with_rows(checkpoint, rows)
    _, kept = simplify(large, RoFormerTokenizer(vocabulary, "word"))
    got = [vocabulary[token] for token in kept.tokens if token != "[MASK]"]
    assert got == want


def with_rows(checkpoint, rows):
    import dataclasses

    from roformer_tf.checkpoints.arrays import LazyArrays

    return dataclasses.replace(
        checkpoint,
        config=checkpoint.config.replace(vocab_size=len(rows)),
        arrays=LazyArrays({WORDS: rows.shape}, {WORDS: rows.dtype}, lambda name: rows),
    )


# --- Vocabularies that get larger --------------------------------------------------------------


@pytest.mark.parametrize("units", ["characters", "words"])
def test_the_units_of_a_tagger_are_kept(units, opened_with_tokenizer):
    checkpoint, tokenizer = opened_with_tokenizer("char")
    tokenizer = tokenizer.replaced(units=units)
    for _, actual in (simplify(checkpoint, tokenizer), extend(checkpoint, tokenizer, ["中a"])):
        assert actual.units == units


@pytest.mark.parametrize("name", ["word", "char", "v2_char"])
def test_a_new_word_is_the_mean_of_its_tokens(name, opened_with_tokenizer):
    checkpoint, tokenizer = opened_with_tokenizer(name)
    words = ["我们天气", "unxyzable", "中a"]
    assert not tokenizer.vocabulary.keys() & set(words)
    larger, actual = extend(checkpoint, tokenizer, words)
    assert actual.tokens[-3:] == words
    for weight in {WORDS, BIAS} & checkpoint.arrays.keys():
        old, new = checkpoint.arrays[weight], larger.arrays[weight]
        np.testing.assert_array_equal(new[: len(old)], old)
        assert len(new) == len(old) + 3
        for number, word in enumerate(words):
            tokens = tokenizer.tokenize(word)
            ids = [tokenizer.vocabulary.get(token, tokenizer.unk_id) for token in tokens]
            want = old[ids].astype(np.float64).mean(0)
            np.testing.assert_allclose(new[len(old) + number], want, atol=1e-7)


def test_new_words_are_normalized_like_text(opened_with_tokenizer):
    checkpoint, tokenizer = opened_with_tokenizer("char")
    _, actual = extend(checkpoint, tokenizer, ["RoFormerX", "roformerx", "的", "ＧＰＴ"])
    assert actual.tokens == [*tokenizer.tokens, "roformerx", "ｇｐｔ"]
    assert actual.tokenize("RoFormerX很好")[0] == "roformerx"


@pytest.mark.parametrize(
    ("name", "words", "unreachable"),
    [("char", "今天\nabcx", "今天"), ("word", "阿里巴巴\n机器学习\n[新词]", "机器学习, [新词]")],
)
def test_unreachable_words_are_reported(
    name, words, unreachable, opened_with_tokenizer, tmp_path, capsys
):
    (tmp_path / "words.txt").write_text(words, encoding="utf-8")
    _, actual = add_words(*opened_with_tokenizer(name), tmp_path / "words.txt")
    assert f": {unreachable}\n" in capsys.readouterr().out
    assert [actual.tokenize(word) == [word] for word in words.split()].count(False) == len(
        unreachable.split(", ")
    )


@pytest.mark.parametrize("word", ["今天 天气", " ", "\u200b", ""])
def test_words_that_cannot_be_tokens_are_refused(word, opened_with_tokenizer):
    with pytest.raises(InputError, match=r"cannot be a token"):
        extend(*opened_with_tokenizer("word"), [word])


def test_embeddings_without_a_token_are_dropped(opened_with_tokenizer):
    checkpoint, tokenizer = opened_with_tokenizer("word")
    smaller = RoFormerTokenizer(dict(list(tokenizer.vocabulary.items())[:2000]), "word")
    larger, actual = extend(checkpoint, smaller, ["abcx"])
    assert actual.vocab_size == larger.config.vocab_size == 2001
    assert larger.arrays[WORDS].shape == (2001, 32)


def test_a_vocabulary_with_gaps_is_refused(opened_with_tokenizer):
    checkpoint, tokenizer = opened_with_tokenizer("word")
    gaps = {token: number for token, number in tokenizer.vocabulary.items() if number != 1000}
    with pytest.raises(InputError, match="not every id has exactly one token"):
        extend(checkpoint, RoFormerTokenizer(gaps, "word"), ["abcx"])


# --- The command -------------------------------------------------------------------------------


@pytest.fixture
def run(released, tmp_path, capsys):
    """A function that changes a vocabulary and returns the target and the printed text."""

    def change(to, name, source="word", **flags):
        if "add" in flags:
            (tmp_path / "add.txt").write_text(flags["add"], encoding="utf-8")
            flags["add"] = tmp_path / "add.txt"
        change_vocabulary(
            VocabularyConfig(
                source=str(released(source)),
                target=tmp_path / name,
                output=OutputConfig(to=to),
                **flags,
            )
        )
        return tmp_path / name, capsys.readouterr().out

    return change


@pytest.mark.parametrize(("to", "name"), LAYOUTS)
def test_words_are_added_on_disk(to, name, run):
    # Notepad writes a byte order mark at the start of a file.
    target, out = run(to, name, add="\ufeff阿里巴巴\n\n的\n机器学习\r\n")
    assert "2 words are new.\n" in out
    assert "jieba does not split text into these words" in out
    assert "tokens: 2,003 before, 2,005 now.\n" in out
    assert "Largest round-trip difference: 0.\n" in out
    tokenizer = RoFormerTokenizer.from_pretrained(target)
    assert tokenizer.tokens[-2:] == ["阿里巴巴", "机器学习"]
    model = RoFormerForMaskedLM.from_pretrained(target)
    ids, segments = tokenizer.encode("阿里巴巴在杭州")
    logits = model({"token_ids": np.array([ids]), "segment_ids": np.array([segments])})
    assert logits.shape == (1, len(ids), 2005)
    assert ids[1] == 2003


@pytest.mark.parametrize("source", ["word", "v2_char", "sim_char"])
def test_simplified_checkpoints_are_char_level_on_disk(source, run):
    target, out = run("tf1", "new.zip", source, simplify=True)
    tokenizer = RoFormerTokenizer.from_pretrained(target)
    assert tokenizer.tokenization == "char"
    with OpenedSource(target) as written:
        assert written.checkpoint().config.vocab_size == tokenizer.vocab_size
    assert f"before, {tokenizer.vocab_size:,} now." in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "give either --simplify or --add FILE"),
        ({"simplify": True, "add": "词"}, "give either"),
        ({"add": " \n\n"}, "is empty: give one word a line"),
    ],
)
def test_wrong_flags_are_refused(flags, message, run, tmp_path):
    with pytest.raises(InputError, match=message):
        run("own", "new", **flags)
    assert not (tmp_path / "new").exists()


def test_files_that_cannot_be_read_are_named(released, tmp_path):
    def change(file):
        change_vocabulary(
            VocabularyConfig(
                source=str(released("word")),
                target=tmp_path / "new",
                output=OutputConfig(to="own"),
                add=file,
            )
        )

    with pytest.raises(InputError, match=r"cannot read .*none\.txt: No such file"):
        change(tmp_path / "none.txt")
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"latin\.txt is not UTF-8 text at byte 0"):
        change(tmp_path / "latin.txt")
