"""Tests of the tokenizer against recorded cases of bert4keras, and of properties of any text."""

import gzip
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from roformer_tf.errors import InputError
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer, check_fits
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS
from tests.support.vocabularies import read_vocabulary

GOLDENS = Path(__file__).parents[1] / "fixtures" / "tokenizer"
SETTINGS = {  # recorded cases: tokenization, lower_case
    "word/cases": ("word", True),
    "char/cases_lower": ("char", True),
    "char/cases_cased": ("char", False),
}
TOKENIZERS = {
    name: RoFormerTokenizer(read_vocabulary(GOLDENS / settings[0]), *settings)
    for name, settings in SETTINGS.items()
}
WORD, CHAR, CASED = TOKENIZERS.values()

any_tokenizer = st.sampled_from([WORD, CHAR, CASED])
any_text = st.text(  # with surrogates, and often with characters of special rules
    st.characters(exclude_categories=())
    | st.sampled_from(
        "中国人民日报的 aAÉİΣσ１1.,#'[]\u0301\u302e각が𠀀龜\u200d\0\ufffd\u2028\u3000\ue000😀"
    )
)


@pytest.fixture(params=SETTINGS)
def golden(request):
    """Return a tokenizer and the recorded cases of its bert4keras counterpart."""
    with gzip.open(GOLDENS / f"{request.param}.json.gz", "rt", encoding="utf-8") as file:
        return TOKENIZERS[request.param], json.load(file)


def ids_of(tokenizer, tokens):
    return [tokenizer.vocabulary.get(token, tokenizer.unk_id) for token in tokens]


def test_single_texts_equal_bert4keras(golden):
    tokenizer, cases = golden
    assert len(cases["single"]) == 1170
    for case in cases["single"]:
        text, ids = case["text"], case["ids"]
        assert tokenizer.tokenize(text) == case["tokens"][1:-1]
        assert tokenizer.encode(text) == (ids, [0] * len(ids))
        assert tokenizer.ids_and_words(text)[0] == ids[1:-1]
        assert tokenizer.decode(ids) == case["decode"]


def test_offsets_equal_rematch_in_the_original_text(golden):
    tokenizer, cases = golden
    differing = set()
    for case in cases["single"]:
        text, positions = case["text"], case["rematch"][1:-1]
        # bert4keras counts in the lower-cased text, whose length differs only for "İ".
        origin = [i for i, c in enumerate(text) for _ in (c.lower() if tokenizer.lower_case else c)]
        spans = tokenizer.offsets(text)
        assert spans == [
            (origin[positions[0]], origin[positions[-1]] + 1) for positions in positions
        ]
        if spans != [(positions[0], positions[-1] + 1) for positions in positions]:
            differing.add(text)
    assert bool(differing) == tokenizer.lower_case
    assert all("İ" in text for text in differing)


def test_truncation_from_the_right_equals_bert4keras(golden):
    tokenizer, cases = golden
    checked = 0
    for case in cases["truncate"]:
        if case.get("truncate_from", "right") != "right":
            continue  # our tokenizer does not have this option
        want = ids_of(tokenizer, case["tokens"]) if "tokens" in case else case["ids"]
        if case["maxlen"] < 2:
            with pytest.raises(InputError, match=r"max_length is 1, .* Give 2 or more"):
                tokenizer.encode(case["text"], max_length=case["maxlen"])
        else:
            assert tokenizer.encode(case["text"], max_length=case["maxlen"])[0] == want
            checked += 1
    assert checked == 500


def test_pairs_equal_bert4keras(golden):
    tokenizer, cases = golden
    checked = 0
    for case in cases["pairs"]:
        if case["pattern"] != "S*E*E" or case["truncate_from"] != "right":
            continue  # our tokenizer does not have this option
        arguments = case["first"], case["second"], case["maxlen"]
        if case["maxlen"] is not None and case["maxlen"] < 3:
            with pytest.raises(InputError, match=r"max_length is 2, .* Give 3 or more"):
                tokenizer.encode(*arguments)
        else:
            assert tokenizer.encode(*arguments) == (case["ids"], case["segment_ids"])
            checked += 1
    assert checked > 500


def test_decoding_equals_bert4keras(golden):
    tokenizer, cases = golden
    assert len(cases["decode"]) == 250
    for case in cases["decode"]:
        assert tokenizer.decode(case["ids"]) == case["text"]


def test_special_literals_are_ordinary_text():
    for tokenizer in (WORD, CHAR, CASED):
        ids, _ = tokenizer.encode("[CLS][MASK] [PAD]")
        inside = ids[1:-1]
        assert not {tokenizer.cls_id, tokenizer.mask_id, tokenizer.pad_id} & set(inside)
        assert [ids[0], ids[-1]] == [tokenizer.cls_id, tokenizer.sep_id]


def test_an_unknown_word_is_one_token_with_the_id_of_unk():
    for tokenizer in (WORD, CHAR):
        text = "a" * 200 + " " + "a" * 201 + " \u1200 中"
        assert tokenizer.tokenize(text)[-3:] == ["a" * 201, "\u1200", "中"]
        ids, words = tokenizer.ids_and_words(text)
        assert ids[-3:-1] == [tokenizer.unk_id] * 2
        assert tokenizer.offsets(text)[-3:] == [(201, 402), (403, 404), (405, 406)]
        assert [words[-1] - word for word in words[-3:]] == [2, 1, 0]


def test_a_jieba_word_of_several_tokens_is_one_word():
    vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, "天气", *"守株待兔"])}
    tokenizer = RoFormerTokenizer(vocabulary, "word")
    assert tokenizer.tokenize("天气 守株待兔") == ["天气", "守", "株", "待", "兔"]
    assert tokenizer.word_ids("天气 守株待兔") == [0, 1, 1, 1, 1]
    assert RoFormerTokenizer(vocabulary, "char").word_ids("守株待兔") == [0, 1, 2, 3]


def test_a_control_character_in_a_word_vocabulary_is_a_token():
    vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, "\u200b", "中"])}
    tokenizer = RoFormerTokenizer(vocabulary, "word")
    assert tokenizer.tokenize("中\u200b中") == ["中", "\u200b", "中"]
    assert tokenizer.offsets("中\u200b中") == [(0, 1), (1, 2), (2, 3)]
    assert RoFormerTokenizer(vocabulary, "char").offsets("中\u200b中") == [(0, 1), (2, 3)]


def test_reordered_combining_marks_keep_their_offsets():
    # NFD orders U+1D165 before U+302E; the unknown word is one token of three characters.
    assert CHAR.tokenize("x\u302e\U0001d165") == ["x\U0001d165\u302e"]
    assert CHAR.offsets("x\u302e\U0001d165") == [(0, 3)]


def test_batches_are_padded_with_0_for_any_id_of_the_padding_token():
    vocabulary = {token: i for i, token in enumerate(["甲", *SPECIAL_TOKENS, "乙"])}
    batch = RoFormerTokenizer(vocabulary, "char")(["乙乙", "乙"])
    assert batch["token_ids"].tolist() == [[3, 6, 6, 4], [3, 6, 4, 0]]


@given(any_tokenizer, any_text)
def test_every_token_has_offsets_and_a_word(tokenizer, text):
    tokens, spans, words = (
        tokenizer.tokenize(text),
        tokenizer.offsets(text),
        tokenizer.word_ids(text),
    )
    assert len(tokens) == len(spans) == len(words)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert words == sorted(words)
    assert set(words) == set(range(len(set(words))))
    assert tokenizer.ids(text) == ids_of(tokenizer, tokens)
    assert tokenizer.ids_and_words(text) == (ids_of(tokenizer, tokens), words)


@given(any_tokenizer, st.lists(any_text, max_size=5))
def test_batched_ids_and_words_equal_those_of_single_texts(tokenizer, texts):
    ids, words, bounds = tokenizer.ids_and_words_of(texts)
    assert {array.dtype for array in (ids, words, bounds)} == {np.dtype(np.int32)}
    assert len(bounds) == len(texts) + 1
    assert np.isin(np.diff(words, prepend=-1), [0, 1]).all(), "words count on from text to text"
    for text, start, stop in zip(texts, bounds[:-1], bounds[1:], strict=True):
        want, want_words = tokenizer.tokenize(text), tokenizer.word_ids(text)
        assert ids[start:stop].tolist() == ids_of(tokenizer, want)
        first = words[start] if start < stop else 0
        assert (words[start:stop] - first).tolist() == want_words
    assert (bounds[0], bounds[-1]) == (0, len(ids))


@given(any_tokenizer, any_text, st.none() | any_text, st.none() | st.integers(3, 20))
def test_joining_ids_equals_encoding_texts(tokenizer, text, pair, max_length):
    parts = [tokenizer.ids(text), None if pair is None else tokenizer.ids(pair)]
    copies = [None if part is None else list(part) for part in parts]
    assert tokenizer.join(*parts, max_length) == tokenizer.encode(text, pair, max_length)
    assert parts == copies, "what was given is not changed"


@given(any_tokenizer, st.text(st.characters(codec="utf-8", exclude_categories=["M"])))
def test_a_token_equals_the_text_at_its_offsets(tokenizer, text):
    for token, (start, end) in zip(tokenizer.tokenize(text), tokenizer.offsets(text), strict=True):
        positions = text[start:end]
        assert token.removeprefix("##") in "".join(tokenizer.tokenize(positions)).replace("##", "")


@given(
    any_tokenizer,
    st.lists(any_text | st.tuples(any_text, any_text), max_size=4),
    st.none() | st.integers(3, 20),
)
def test_a_batch_contains_the_padded_encodings(tokenizer, texts, max_length):
    batch = tokenizer(texts, max_length=max_length)
    pairs = [(item, None) if isinstance(item, str) else item for item in texts]
    rows = [tokenizer.encode(*pair, max_length) for pair in pairs]
    longest = max((len(ids) for ids, _ in rows), default=0)
    for name, column in (("token_ids", 0), ("segment_ids", 1)):
        assert batch[name].dtype == np.int32
        assert batch[name].shape == (len(texts), longest)
        want = [row[column] + [0] * (longest - len(row[column])) for row in rows]
        assert batch[name].tolist() == want


def test_pairs_are_sequences_of_two_texts_and_the_second_may_be_none():
    pairs = [("一", "二"), ["一", "二"], np.array(["一", "二"])]
    rows = WORD([*pairs, ("一", None), "一"])
    assert (rows["token_ids"][:3] == rows["token_ids"][0]).all()
    assert (rows["segment_ids"][:3].sum(1) == 2).all()
    assert (rows["token_ids"][3] == rows["token_ids"][4]).all()


@given(
    any_tokenizer,
    st.lists(st.integers(0, 9), max_size=12),
    st.lists(st.integers(0, 9), max_size=12),
    st.integers(3, 30),
)
def test_truncation_removes_tokens_from_the_longer_text(tokenizer, first, second, max_length):
    texts = [
        "".join("零一二三四五六七八九"[digit] + " " for digit in text) for text in (first, second)
    ]
    lengths = [len(first), len(second)]
    while sum(lengths) > max_length - 3:
        lengths[lengths[0] < lengths[1]] -= 1
    _, segments = tokenizer.encode(*texts, max_length=max_length)
    assert [segments.count(0) - 2, segments.count(1) - 1] == lengths


@given(st.data(), any_tokenizer)
def test_decoding_restores_plain_chinese_text(data, tokenizer):
    chinese = sorted(t for t in tokenizer.vocabulary if len(t) == 1 and "\u4e00" <= t <= "\u9fff")
    text = data.draw(st.text(st.sampled_from([*chinese, "，", "。"])))
    assert tokenizer.decode(tokenizer.encode(text)[0]) == text


CHINESE = r"[\u4e00-\u9fff]"
DECODED = {  # generated tokens of a word-level vocabulary: the expected text
    "今天 天气 很 好 。": "今天天气很好。",
    "今天 ， 天气 很 好": "今天，天气很好",
    "deep learning 模型": "deep learning 模型",
    "模型 deep learning": "模型deep learning",
    "学习 un ##aff ##able words": "学习unaffable words",
    "##aff ##able 模型": "affable 模型",
    "《 深度 学习 》 很 好": "《深度学习》很好",
    "gpt 3 . 5 很 好": "gpt 3.5很好",
    "deep , deep ( learning )": "deep, deep(learning)",
    "it ' s deep": "it's deep",
    "今天 [UNK] 天气 [SEP]": "今天天气",
}


@pytest.mark.parametrize("tokens", DECODED)
def test_chinese_words_are_joined_and_latin_words_separated(tokens):
    latin = dict.fromkeys([*SPECIAL_TOKENS, *" ".join(DECODED).split()])
    tokenizer = RoFormerTokenizer({token: i for i, token in enumerate(latin)}, "word")
    assert tokenizer.decode(ids_of(tokenizer, tokens.split())) == DECODED[tokens]


def spaces(text, kind):
    """Return the positions of spaces between two characters of a kind, counted without spaces."""
    actual = re.finditer(rf"(?<={kind}) +(?={kind})", text)
    return {len(text[: match.start()].replace(" ", "")) for match in actual}


@settings(max_examples=50)
@given(st.data(), st.sampled_from([WORD, CHAR]))
def test_decoding_changes_only_spaces_and_keeps_those_between_latin_words(data, tokenizer):
    latin = sorted(token for token in tokenizer.vocabulary if re.fullmatch(r"[a-z0-9]+", token))
    chinese = sorted(token for token in tokenizer.vocabulary if re.fullmatch(CHINESE + "+", token))
    signs = [sign for sign in "，。《》“”,.'()" if sign in tokenizer.vocabulary]
    parts = st.sampled_from(latin) | st.sampled_from(chinese) | st.sampled_from(signs)
    text = "".join(data.draw(st.lists(st.tuples(parts, st.sampled_from(["", " "])).map("".join))))
    ids, _ = tokenizer.encode(text)
    assume(tokenizer.unk_id not in ids)
    decoded = tokenizer.decode(ids)
    assert decoded.replace(" ", "") == text.replace(" ", "")
    assert spaces(decoded, "[a-z0-9]") == spaces(text, "[a-z0-9]")
    assert not spaces(decoded, CHINESE)


@given(st.data(), any_tokenizer)
def test_decoding_puts_no_space_between_chinese_words(data, tokenizer):
    ids = data.draw(st.lists(st.sampled_from(range(tokenizer.vocab_size)), min_size=5))
    assert not spaces(tokenizer.decode(ids), CHINESE)


def test_pickling_excludes_the_cache():
    for tokenizer in (WORD, CHAR, CASED):
        tokenizer.encode("antidisestablishmentarianism 守株待兔")
        copy = pickle.loads(pickle.dumps(tokenizer))
        assert len(copy._ids_of) == 0 < len(tokenizer._ids_of)
        for text in ("我爱 Ünaffable 守株待兔", "[MASK]"):
            assert copy.encode(text) == tokenizer.encode(text)


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr("roformer_tf.tokenizers.tokenizer._CACHE_SIZE", 10)
    tokenizer = RoFormerTokenizer(CHAR.vocabulary, "char")
    text = " ".join(f"x{number}" for number in range(100))
    assert tokenizer.encode(text) == CHAR.encode(text)
    assert len(tokenizer._ids_of) <= 10
    tokenizer.encode("xyz " + "x" * 10_000)
    assert max(map(len, tokenizer._ids_of)) <= 200


def test_a_saved_tokenizer_is_loaded_unchanged(tmp_path):
    for name, tokenizer in TOKENIZERS.items():
        folder = tmp_path / name  # does not exist yet, and is nested
        tokenizer.save_pretrained(folder)
        copy = RoFormerTokenizer.from_pretrained(folder)
        assert copy.vocabulary == tokenizer.vocabulary
        assert (copy.tokenization, copy.lower_case) == (
            tokenizer.tokenization,
            tokenizer.lower_case,
        )


def test_arguments_override_the_folder_and_the_folder_the_guess(tmp_path):
    RoFormerTokenizer(WORD.vocabulary, "char", lower_case=False).save_pretrained(tmp_path)
    load = RoFormerTokenizer.from_pretrained
    assert (load(tmp_path).tokenization, load(tmp_path).lower_case) == ("char", False)
    overridden = load(tmp_path, tokenization="word", lower_case=True)
    assert (overridden.tokenization, overridden.lower_case) == ("word", True)
    guessed = load(tmp_path / "vocab.txt")  # a single file has no settings
    assert (guessed.tokenization, guessed.lower_case) == ("word", True)
    assert load(GOLDENS / "char").tokenization == "char"


def test_a_vocabulary_with_a_repeated_line_is_loaded_but_not_saved(tmp_path):
    source = tmp_path / "vocab.txt"
    source.write_text("\n".join(["甲", *SPECIAL_TOKENS, "甲", "乙"]), encoding="utf-8")
    tokenizer = RoFormerTokenizer.from_pretrained(source)
    assert tokenizer.encode("甲乙")[0][1:-1] == [6, 6]
    assert tokenizer.vocab_size == 7
    assert tokenizer.decode([6]) == "乙"
    with pytest.raises(InputError, match=r"not every id has exactly one token.*repeated"):
        tokenizer.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_vocabulary_with_a_blank_line_is_saved(tmp_path):
    vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, "", "甲"])}
    RoFormerTokenizer(vocabulary, "char").save_pretrained(tmp_path)
    assert read_vocabulary(tmp_path) == vocabulary


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RoFormerTokenizer({"[PAD]": 0}, "word"), r"lacks \[UNK\], \[CLS\]"),
        (lambda: RoFormerTokenizer(WORD.vocabulary, "words"), "must be one of word, char"),
        (lambda: WORD("一句话"), r"a list of texts is needed.* Give \['一句话'\]"),
        (lambda: WORD(None), r"a list of texts is needed, not None. Give \['你好'\]"),
        (lambda: WORD({"text": "一"}), "a list of texts is needed, not {'text'"),
        (lambda: WORD(["一", None]), r"text 1 is None, but .* str, or two"),
        (lambda: WORD([3]), "text 0 is 3, but"),
        (lambda: WORD([float("nan")]), "text 0 is nan, but"),
        (lambda: WORD([{"a": "一", "b": "二"}]), "text 0 is {'a'"),
        (lambda: WORD([("一", "二", "三")]), r"text 0 is \('一', '二', '三'\), but"),
        (lambda: WORD([("一",)]), r"text 0 is \('一',\), but"),
        (lambda: WORD([(None, "一")]), r"text 0 is \(None, '一'\), but"),
        (lambda: WORD([("一", 2)]), r"text 0 is \('一', 2\), but"),
        (lambda: WORD.decode([5918]), "no token has the id 5918: the vocabulary ends at 5917"),
        (lambda: WORD.decode([-1]), "no token has the id -1"),
        (lambda: WORD.decode([[7, 8]]), r"ids of one sequence are needed, not \[\[7, 8\]\]"),
        (lambda: WORD.decode(None), "ids of one sequence are needed, not None"),
        (lambda: WORD.encode("一", max_length=1), "max_length is 1"),
        (
            lambda: WORD(["一", "二"], ["三"]),
            r"max_length is \['三'\], .*Give pairs as a list",
        ),
        (lambda: WORD(["一"], "二"), "max_length is '二', but must be a whole number"),
        (lambda: WORD(["一"], 5.0), "max_length is 5.0, but must be a whole number"),
        (lambda: WORD.encode(["一"]), r"text 0 is \(\['一'\], None\), but"),
    ],
)
def test_bad_input_is_refused_with_a_message(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not valid JSON"), ("[]", "no JSON object"), ("[" * 100_000, "not valid JSON")],
)
def test_broken_tokenizer_config_is_refused(tmp_path, content, message):
    WORD.save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(InputError, match=message):
        RoFormerTokenizer.from_pretrained(tmp_path)


LOWERING = {"type": "BertNormalizer", "lowercase": True, "strip_accents": None}
LOWERING |= {"clean_text": True, "handle_chinese_chars": True}
KEEPING = LOWERING | {"lowercase": False, "strip_accents": False}
BERT = {  # as transformers saves it
    "added_tokens": [{"id": CHAR.vocabulary[x], "content": x} for x in SPECIAL_TOKENS],
    "normalizer": LOWERING,
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
        ],
    },
    "model": {"type": "WordPiece", "vocab": CHAR.vocabulary},
}
BACKEND = {"tokenizer_class": "TokenizersBackend"}
WITHOUT_END = BERT["post_processor"] | {"single": BERT["post_processor"]["single"][:2]}


def write_json(folder, **contents):
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), "utf-8")


@pytest.mark.parametrize(
    ("settings", "normalizer", "lower_case"),
    [
        (None, LOWERING, True),
        (None, KEEPING, True),  # as AutoTokenizer, which takes the class of the model
        ({"tokenizer_class": "BertTokenizer"}, KEEPING, True),
        (BACKEND, KEEPING, False),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, KEEPING, False),
        (BACKEND | {"do_lower_case": True}, KEEPING, False),  # it ignores the setting
        ({"do_lower_case": False, "strip_accents": None}, LOWERING, False),
        ({"do_lower_case": True, "strip_accents": True}, KEEPING, True),
        ({"strip_accents": False}, LOWERING, None),
        ({"do_lower_case": False, "strip_accents": True}, LOWERING, None),
        (BACKEND, LOWERING | {"strip_accents": False}, None),
        (BACKEND, LOWERING | {"handle_chinese_chars": False}, None),
        ({"tokenize_chinese_chars": False}, LOWERING, None),
    ],
)
def test_the_settings_of_other_tokenizers_are_read_or_refused(
    settings, normalizer, lower_case, tmp_path
):
    """`lower_case` None: they are refused."""
    write_json(tmp_path, tokenizer=BERT | {"normalizer": normalizer})
    if settings is not None:
        write_json(tmp_path, tokenizer_config=settings)
    if lower_case is None:
        with pytest.raises(InputError, match=r"strip_accents.*which is not supported"):
            RoFormerTokenizer.from_pretrained(tmp_path)
    else:
        assert RoFormerTokenizer.from_pretrained(tmp_path).lower_case == lower_case


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        (
            {"model": {"type": "BPE", "vocab": {}, "merges": []}},
            "the model BPE instead of WordPiece",
        ),
        ({"normalizer": None}, "the normalizer None instead of BertNormalizer"),
        ({"normalizer": {"type": "Lowercase"}}, "the normalizer Lowercase"),
        ({"normalizer": {"type": "Sequence", "normalizers": [LOWERING]}}, "normalizer Sequence"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "the pre_tokenizer Whitespace"),
        ({"post_processor": None}, "a post_processor that does not give"),
        ({"post_processor": WITHOUT_END}, "a post_processor that does not give"),
        ({"post_processor": {"type": "RobertaProcessing"}}, "a post_processor that does not give"),
        ({"added_tokens": [{"id": 7, "content": "<e1>"}]}, "the added token <e1>"),
    ],
)
@pytest.mark.parametrize("settings", [{}, BACKEND, {"tokenizer_class": "BertTokenizerFast"}])
def test_other_rules_than_those_of_a_bert_are_refused(changes, difference, settings, tmp_path):
    (tmp_path / "vocab.txt").write_text(CHAR.vocabulary_text(), "utf-8")
    write_json(tmp_path, tokenizer=BERT | changes, tokenizer_config=settings)
    with pytest.raises(InputError, match=f"{difference}.*remove tokenizer.json"):
        RoFormerTokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "files",
    [
        {"added_tokens": {"<e1>": 13000}},
        {"special_tokens_map": {"additional_special_tokens": ["<e1>"]}},
        {"special_tokens_map": {"additional_special_tokens": [{"content": "<e1>"}]}},
    ],
)
def test_added_tokens_of_older_folders_are_refused(files, tmp_path):
    CHAR.save_pretrained(tmp_path)
    write_json(tmp_path, **files)
    with pytest.raises(InputError, match="the added token <e1>"):
        RoFormerTokenizer.from_pretrained(tmp_path)


def test_the_template_of_older_berts_is_accepted(tmp_path):
    processor = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    special = {"cls_token": "[CLS]", "mask_token": {"content": "[MASK]"}}
    write_json(tmp_path, tokenizer=BERT | {"post_processor": processor}, special_tokens_map=special)
    assert RoFormerTokenizer.from_pretrained(tmp_path).vocabulary == CHAR.vocabulary


@pytest.mark.parametrize("units", [None, "characters", "words"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokenizer", [WORD, CHAR, CASED])
def test_all_saved_tokenizers_are_read_again(tokenizer, causal, units, tmp_path):
    tokenizer = tokenizer.replaced(units=units)
    tokenizer.save_pretrained(tmp_path, causal=causal)
    assert vars(RoFormerTokenizer.from_pretrained(tmp_path)) == vars(tokenizer)


@pytest.mark.parametrize(
    ("tokenizer_class", "tokenization"),
    [
        (None, "word"),
        ("RoFormerTokenizer", "word"),
        ("BertTokenizerFast", "char"),
        ("TokenizersBackend", "char"),
    ],
)
def test_only_a_tokenizer_of_roformers_segments_by_jieba(tokenizer_class, tokenization, tmp_path):
    (tmp_path / "vocab.txt").write_text(WORD.vocabulary_text(), "utf-8")
    write_json(tmp_path, tokenizer_config={"tokenizer_class": tokenizer_class})
    assert RoFormerTokenizer.from_pretrained(tmp_path).tokenization == tokenization


def test_another_id_of_the_padding_token_is_reported(caplog):
    tokens = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    check_fits(RoFormerTokenizer({x: i for i, x in enumerate(tokens)}, "char"), 5, "model")
    assert "models ignore [UNK], since they take its id, 0, for padding" in caplog.text


@pytest.mark.parametrize("size", [50, 52, 56, 64, 128, 51, 60, 256])
def test_fewer_ids_than_embeddings_are_reported_unless_these_are_padded(size, caplog):
    tokens = [*SPECIAL_TOKENS, *map(chr, range(0x4E00, 0x4E00 + 45))]
    check_fits(RoFormerTokenizer({x: i for i, x in enumerate(tokens)}, "char"), size, "model")
    assert bool(caplog.records) == (size in (51, 60, 256))
