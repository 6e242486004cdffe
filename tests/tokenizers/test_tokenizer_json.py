"""Tests that transformers and tokenizers load saved tokenizers."""

import gzip
import json
import pickle
from pathlib import Path

import pytest

from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from tests.support.vocabularies import read_vocabulary

GOLDENS = Path(__file__).parents[1] / "fixtures" / "tokenizer"


def sentences():
    with gzip.open(GOLDENS / "word" / "cases.json.gz", "rt", encoding="utf-8") as file:
        return [case["text"] for case in json.load(file)["single"] if case["kind"] == "real"]


def save_tokenizer(folder, tokenization, lower_case, units=None):
    vocabulary = read_vocabulary(GOLDENS / tokenization)
    tokenizer = RoFormerTokenizer(vocabulary, tokenization, lower_case, units)
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "roformer"}')  # our model folders have one
    return tokenizer


@pytest.mark.hf
@pytest.mark.parametrize(
    ("tokenization", "lower_case"), [("word", True), ("char", True), ("char", False)]
)
def test_transformers_gives_equal_ids(tmp_path, tokenization, lower_case, transformers):
    ours = save_tokenizer(tmp_path, tokenization, lower_case)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    differing = [text for text in sentences() if theirs(text)["input_ids"] != ours.encode(text)[0]]
    assert differing == []
    for name in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(theirs, f"{name}_token_id") == getattr(ours, f"{name}_id")
    pair = theirs("今天", "天气 Good")
    assert (pair["input_ids"], pair["token_type_ids"]) == ours.encode("今天", "天气 Good")
    theirs.save_pretrained(tmp_path / "again")  # as a user does after training in transformers
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert again(sentences()[:20])["input_ids"] == theirs(sentences()[:20])["input_ids"]


@pytest.mark.hf
@pytest.mark.parametrize("name", ["RoFormerTokenizer", "RoFormerTokenizerFast"])
def test_the_roformer_classes_of_transformers_give_equal_word_ids(name, tmp_path, transformers):
    ours = save_tokenizer(tmp_path, "word", True)
    theirs = getattr(transformers, name).from_pretrained(tmp_path)
    assert theirs(sentences())["input_ids"] == [ours.encode(text)[0] for text in sentences()]


UNUSUAL = "İÉ각 e\u0301 \u0301ab\tc\u200b😀👨\u200d👩 2023年Ｈello Σς\n"


@pytest.mark.hf
@pytest.mark.parametrize("lower_case", [True, False])
@pytest.mark.parametrize("tokenization", ["word", "char"])
def test_character_units_have_equal_ids(tokenization, lower_case, tmp_path, transformers):
    from tokenizers import Tokenizer

    ours = save_tokenizer(tmp_path, tokenization, lower_case, units="characters")
    alone = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [*sentences(), UNUSUAL]:
        units = [number for unit in text for number in ours.ids(unit) or [ours.unk_id]]
        want = [ours.cls_id, *units, ours.sep_id]
        assert alone.encode(text).ids == want, text
        assert auto(text)["input_ids"] == want, text


@pytest.mark.hf
def test_word_units_are_refused_with_the_reason(tmp_path, transformers):
    from tokenizers import Tokenizer

    save_tokenizer(tmp_path, "char", True, units="words")
    for load, source in (
        (Tokenizer.from_file, str(tmp_path / "tokenizer.json")),
        (transformers.AutoTokenizer.from_pretrained, tmp_path),
    ):
        with pytest.raises(Exception, match="labels separate words"):
            load(source)


def test_the_file_of_a_previous_model_is_removed(tmp_path):
    save_tokenizer(tmp_path, "char", True)
    assert (tmp_path / "tokenizer.json").exists()
    save_tokenizer(tmp_path, "word", True)
    assert not (tmp_path / "tokenizer.json").exists()


def test_units_are_saved_and_pickled(tmp_path):
    for units in ("characters", "words", None):
        ours = save_tokenizer(tmp_path, "word", True, units)
        assert RoFormerTokenizer.from_pretrained(tmp_path).units == units
        assert pickle.loads(pickle.dumps(ours)).units == units
        assert ours.replaced(units=None).units is None


def test_files_contain_the_vocabulary_and_the_special_ids(tmp_path):
    ours = save_tokenizer(tmp_path, "char", False)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    assert content["model"]["vocab"] == ours.vocabulary
    added = {token["content"]: token["id"] for token in content["added_tokens"]}
    assert added == {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
    assert content["normalizer"]["normalizers"][-1]["lowercase"] is False


@pytest.mark.parametrize("tokenization", ["word", "char"])
@pytest.mark.parametrize("units", [None, "characters"])
def test_the_config_has_the_model_inputs_and_the_maximum_length(tokenization, units, tmp_path):
    ours = save_tokenizer(tmp_path, tokenization, True, units)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["model_input_names"] == ["input_ids", "token_type_ids", "attention_mask"]
    assert "model_max_length" not in config  # a tokenizer without a model has no maximum length
    ours.save_pretrained(tmp_path, max_length=96)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["model_max_length"] == 96


def last_template_entries(folder):
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return [list(content["post_processor"][name][-1]) for name in ("single", "pair")]


def test_prompts_of_a_causal_model_have_no_sep(tmp_path):
    ours = save_tokenizer(tmp_path, "char", True)
    assert last_template_entries(tmp_path) == [["SpecialToken"], ["SpecialToken"]]
    ours.save_pretrained(tmp_path, causal=True)
    assert last_template_entries(tmp_path) == [["Sequence"], ["Sequence"]]


def test_a_word_level_causal_model_is_saved_so_that_loading_fails_with_the_reason(tmp_path):
    save_tokenizer(tmp_path, "word", True).save_pretrained(tmp_path, causal=True)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert "always appends [SEP]" in content["version"]
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"


@pytest.mark.hf
def test_transformers_shows_the_reason(tmp_path, transformers):
    save_tokenizer(tmp_path, "word", True).save_pretrained(tmp_path, causal=True)
    with pytest.raises(Exception, match=r"always appends \[SEP\]"):
        transformers.AutoTokenizer.from_pretrained(tmp_path)


UNUSUAL_CHARACTERS = [  # BERT's cleaning keeps private-use and removes control characters
    "价格\ue5e5元",
    "\ue000私",
    "\uf8ff",
    "a\ue123b \U000f0000\U0010fffd 北京\U00100000",
    "今\u200b天\x00\x1f\x7f\x85很\xad好\ufeff\ufffd\tx\r\ny\u2028z\u3000",
    "\U0002b820\U0002b900x\U0002ceb0",
    "",
    " \n",
]


@pytest.mark.hf
@pytest.mark.parametrize("units", [None, "characters"])
@pytest.mark.parametrize("lower_case", [True, False])
def test_unusual_characters_have_equal_ids(units, lower_case, tmp_path, transformers):
    from tokenizers import Tokenizer

    ours = save_tokenizer(tmp_path, "char", lower_case, units)
    alone = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in UNUSUAL_CHARACTERS:
        parts = list(text) if units else [text]
        ids = [number for part in parts for number in ours.ids(part) or [ours.unk_id] * bool(units)]
        want = [ours.cls_id, *ids, ours.sep_id]
        assert alone.encode(text).ids == want, text
        assert auto(text)["input_ids"] == want, text
