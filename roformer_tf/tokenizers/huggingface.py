"""`tokenizer.json` and `tokenizer_config.json` as other programs read them, made without these.

The library `tokenizers` reads `tokenizer.json` alone, transformers both. What a folder's model is
called with cannot always be said there:

vocabulary  units       model   tokenizer.json              transformers
char        -           any     our ids                     our ids
word        -           causal  refuses, with the reason    refuses, with the reason
word        -           other   none: it cannot hold jieba  our ids, by its RoFormerTokenizer
either      characters  tagger  our ids                     our ids
either      words       tagger  refuses, with the reason    refuses, with the reason

"our ids": of a causal language model those that it continues, without the [SEP] that ends a text.
"""

from collections.abc import Mapping
from typing import Any, Literal

from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS, WORD_LIMIT, Tokenization

Units = Literal["characters", "words"]
"""What a tagging model tokenizes one by one: each character, or what white space separates."""


MODEL_INPUT_NAMES = ("input_ids", "token_type_ids", "attention_mask")
"""What a tokenizer of transformers returns. Its default has no `token_type_ids`, so that the second
text of a pair would count as part of the first."""


def tokenizer_config(
    vocabulary: Mapping[str, int],
    tokenization: Tokenization,
    lower_case: bool,
    units: Units | None = None,
    *,
    max_length: int | None = None,
    causal: bool = False,
) -> dict[str, Any]:
    """Content of `tokenizer_config.json`; `tokenization` and `units` are keys of our own.

    max_length: most tokens of a sequence, to which transformers truncates where it is asked to.
    causal: whether the tokens are those of a causal language model.

    Hugging Face's `RoFormerTokenizer` always segments by jieba, which also takes strings of
    Greek or kana apart, and always appends [SEP]. So other folders name the class that does what
    tokenizer.json says.
    """
    by_jieba = tokenization == "word" and units is None and not causal
    config: dict[str, Any] = {
        "tokenizer_class": "RoFormerTokenizer" if by_jieba else "PreTrainedTokenizerFast",
        "model_input_names": list(MODEL_INPUT_NAMES),
        "do_lower_case": lower_case,
        "tokenization": tokenization,
        **{f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS},
    }
    if max_length is not None:
        config["model_max_length"] = max_length
    if units is not None:
        config["units"] = units
    if by_jieba:
        # Given a vocab.txt, RoFormerTokenizer (transformers 5.23) looks jieba's words up in the
        # file's path, and so finds none; from a dictionary it makes what it should.
        config["vocab"] = dict(vocabulary)
    return config


def tokenizer_json(
    vocabulary: Mapping[str, int],
    tokenization: Tokenization,
    lower_case: bool,
    units: Units | None = None,
    *,
    causal: bool = False,
) -> dict[str, Any] | None:
    """Content of `tokenizer.json`; None where the format cannot hold what gives our ids.

    causal: whether the tokens are those of a causal language model, which continues a text: no
    [SEP] is appended.

    None is for word-level vocabularies. Their words lie on jieba's likeliest path through its
    dictionary of 349,046 words, most of which the vocabulary lacks; the format knows such paths
    (Unigram) among the vocabulary's tokens alone, which gave our ids for 162 of 1,000 texts.
    """
    if units == "words":
        return {"version": _WORDS_REFUSED, "added_tokens": [], "model": None}
    if tokenization == "word" and units is None:
        if not causal:
            return None
        return {"version": _JIEBA_REFUSED, "added_tokens": [], "model": None}
    by_character = units == "characters"
    end = [] if causal else [_special("[SEP]", 0)]
    end_of_pair = [] if causal else [_special("[SEP]", 1)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": vocabulary[token],
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token in sorted(SPECIAL_TOKENS, key=vocabulary.__getitem__)
        ],
        "normalizer": _each_character(lower_case) if by_character else _bert(lower_case),
        "pre_tokenizer": _characters(tokenization) if by_character else _PARTS,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_special("[CLS]", 0), _text("A", 0), *end],
            "pair": [
                _special("[CLS]", 0),
                _text("A", 0),
                _special("[SEP]", 0),
                _text("B", 1),
                *end_of_pair,
            ],
            "special_tokens": {
                token: {"id": token, "ids": [vocabulary[token]], "tokens": [token]}
                for token in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": WORD_LIMIT,
            "vocab": dict(vocabulary),
        },
    }


def _special(token: str, segment: int) -> dict[str, Any]:
    """A special token's place in a template."""
    return {"SpecialToken": {"id": token, "type_id": segment}}


def _text(name: str, segment: int) -> dict[str, Any]:
    """A text's place in a template."""
    return {"Sequence": {"id": name, "type_id": segment}}


def _bert(lower_case: bool) -> dict[str, Any]:
    """BERT's normalizer, which spaces Chinese characters apart.

    Its own `clean_text` also drops private-use characters, which BERT and we keep as [UNK]. So
    control characters are dropped by a pattern instead.
    """
    bert = {
        "type": "BertNormalizer",
        "clean_text": False,
        "handle_chinese_chars": True,
        "strip_accents": None,  # where lower-cased, as here
        "lowercase": lower_case,
    }
    dropped = {"type": "Replace", "pattern": {"Regex": _DROPPED}, "content": ""}
    return {"type": "Sequence", "normalizers": [dropped, bert]}


def _each_character(lower_case: bool) -> dict[str, Any] | None:
    """Normalize and leave every character something, for each has a label of its own.

    A mark that stands alone, where accents are stripped, becomes a space: as that is in no
    vocabulary, it is an [UNK], like all characters of which nothing is left.
    """
    if not lower_case:
        return None
    accents = {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False}
    return {
        "type": "Sequence",
        "normalizers": [
            {"type": "Replace", "pattern": {"Regex": r"\p{Mn}"}, "content": " "},
            accents | {"strip_accents": True, "lowercase": True},
        ],
    }


def _characters(tokenization: Tokenization) -> dict[str, Any]:
    """Cut between characters; where jieba does not, the jamo of a Korean one stay together."""
    jamo = r"[\u1100-\u115f][\u1160-\u11a7][\u11a8-\u11ff]?|" if tokenization == "char" else ""
    pattern = {"Regex": jamo + r"[\s\S]"}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


_DROPPED = r"[\p{Cf}\x{fffd}\x{00}-\x{08}\x{0b}\x{0c}\x{0e}-\x{1f}\x{7f}-\x{9f}]"
"""Of a text, as by BERT: format and control characters but tab and line ends, and U+FFFD."""
_PARTS = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "BertPreTokenizer"},
        # The library's table of Chinese characters lacks these of extension E.
        {
            "type": "Split",
            "pattern": {"Regex": r"[\x{2b820}-\x{2b91f}]"},
            "behavior": "Isolated",
            "invert": False,
        },
    ],
}
"""Cut at white space, and around punctuation and Chinese characters."""
_JIEBA_REFUSED = (
    "none, for this causal language model continues jieba's words, and transformers' tokenizer "
    "with jieba always appends [SEP], which ends a text: use `roformer-tf generate`, or give "
    "transformers' `generate` the token ids of `roformer_tf.RoFormerTokenizer` without the last"
)
_WORDS_REFUSED = (
    "none, for this model labels words that are given apart, each by its first token, and no "
    "tokenizer.json tells a pipeline which tokens those are: use `roformer-tf predict` or "
    "`roformer_tf`"
)
"""The library's error quotes the version that it does not know, and so these."""
