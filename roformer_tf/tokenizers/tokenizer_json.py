"""`tokenizer.json` and `tokenizer_config.json` for other programs, written without their libraries.

The library `tokenizers` reads only `tokenizer.json`, transformers reads both files. The formats
cannot express every tokenizer:

vocabulary  units       model   tokenizer.json              transformers
char        -           any     our ids                     our ids
word        -           causal  an error with the reason    an error with the reason
word        -           other   none: it has no jieba       our ids, by its RoFormerTokenizer
either      characters  tagger  our ids                     our ids
either      words       tagger  an error with the reason    an error with the reason

"our ids" of a causal language model are those of a prompt, without the [SEP] that ends a text.
"""

from typing import Any, Literal

from roformer_tf.tokenizers.vocabulary import SEGMENTS, SPECIAL_TOKENS, WORD_LIMIT, Tokenization

Units = Literal["characters", "words"]
"""What a tagging model tokenizes separately: each character, or each word between white space."""

MODEL_INPUT_NAMES = ("input_ids", SEGMENTS, "attention_mask")
"""Inputs that a tokenizer of transformers returns. Its default lacks `token_type_ids`, so that the
second text of a pair would count as part of the first."""


def tokenizer_config(
    tokenizer: Any, *, max_length: int | None = None, causal: bool = False
) -> dict[str, Any]:
    """Content of `tokenizer_config.json`; `tokenization` and `units` are our own keys.

    tokenizer: a RoFormerTokenizer, whose module imports this one.
    max_length: maximum tokens of a sequence, to which transformers can truncate.
    causal: whether it belongs to a causal language model.

    transformers' `RoFormerTokenizer` always segments by jieba, which also splits words in Greek or
    kana, and always appends [SEP]. All other folders name the class that follows tokenizer.json.
    """
    units = tokenizer.units
    by_jieba = tokenizer.tokenization == "word" and units is None and not causal
    config: dict[str, Any] = {
        "tokenizer_class": "RoFormerTokenizer" if by_jieba else "PreTrainedTokenizerFast",
        "model_input_names": [x for x in MODEL_INPUT_NAMES if tokenizer.segments or x != SEGMENTS],
        "do_lower_case": tokenizer.lower_case,
        "tokenization": tokenizer.tokenization,
        **{f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS},
    }
    if max_length is not None:
        config["model_max_length"] = max_length
    if units is not None:
        config["units"] = units
    if by_jieba:
        # With a vocab.txt, RoFormerTokenizer (transformers 5.23) looks up jieba's words in the
        # path of the file, by mistake, and none matches. With a dictionary it works.
        config["vocab"] = dict(tokenizer.vocabulary)
    return config


def tokenizer_json(tokenizer: Any, *, causal: bool = False) -> dict[str, Any] | None:
    """Content of `tokenizer.json`; None if the format cannot express the tokenizer.

    tokenizer: a RoFormerTokenizer.
    causal: whether it belongs to a causal language model, whose prompts have no [SEP] at the end.

    None is for word-level vocabularies. jieba searches the most probable path through its
    dictionary of 349,046 words, most of which are not in the vocabulary. The format has such paths
    (Unigram) for the tokens of the vocabulary only: they gave our ids for 162 of 1,000 texts.
    """
    vocabulary, tokenization = tokenizer.vocabulary, tokenizer.tokenization
    lower_case, units = tokenizer.lower_case, tokenizer.units
    if units == "words":
        return {"version": _WORDS_REFUSED, "added_tokens": [], "model": None}
    if tokenization == "word" and units is None:
        if not causal:
            return None
        return {"version": _JIEBA_REFUSED, "added_tokens": [], "model": None}
    # From here on, the tokenizer is char-level, or tokenizes single characters: neither has jieba.
    by_character = units == "characters"
    first = [_special("[CLS]", 0), _text("A", 0)]
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
            "single": [*first, *end],
            "pair": [*first, _special("[SEP]", 0), _text("B", 1), *end_of_pair],
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
    """A special token in a template."""
    return {"SpecialToken": {"id": token, "type_id": segment}}


def _text(name: str, segment: int) -> dict[str, Any]:
    """A text in a template."""
    return {"Sequence": {"id": name, "type_id": segment}}


def _bert(lower_case: bool) -> dict[str, Any]:
    """BERT's normalizer, which puts spaces around Chinese characters.

    Its `clean_text` would also drop private-use characters, which are [UNK] in BERT and here. So
    control characters are dropped by a pattern instead.
    """
    bert = {
        "type": "BertNormalizer",
        "clean_text": False,
        "handle_chinese_chars": True,
        "strip_accents": None,  # as BERT does: only if the text is lower-cased
        "lowercase": lower_case,
    }
    dropped = {"type": "Replace", "pattern": {"Regex": _DROPPED}, "content": ""}
    return {"type": "Sequence", "normalizers": [dropped, bert]}


def _each_character(lower_case: bool) -> dict[str, Any] | None:
    """Normalize so that something remains of every character, because each has a label.

    A combining mark, of which nothing would remain, becomes a space. No vocabulary has a space, so
    it is [UNK], like all characters that are removed.
    """
    if not lower_case:
        return None
    marks = {"type": "Replace", "pattern": {"Regex": r"\p{Mn}"}, "content": " "}
    accents = {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False}
    accents |= {"strip_accents": True, "lowercase": True}
    return {"type": "Sequence", "normalizers": [marks, accents]}


def _characters(tokenization: Tokenization) -> dict[str, Any]:
    """Split between characters; without jieba, the jamo of a Korean syllable stay together."""
    jamo = r"[\u1100-\u115f][\u1160-\u11a7][\u11a8-\u11ff]?|" if tokenization == "char" else ""
    return _isolated(jamo + r"[\s\S]")


def _isolated(pattern: str) -> dict[str, Any]:
    """Split before and after each match of a pattern."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


_DROPPED = r"[\p{Cf}\x{fffd}\x{00}-\x{08}\x{0b}\x{0c}\x{0e}-\x{1f}\x{7f}-\x{9f}]"
"""Characters that BERT drops: U+FFFD, and format and control characters except tab and newline."""
# The library's table of Chinese characters lacks this part of extension E.
_EXTENSION_E = _isolated(r"[\x{2b820}-\x{2b91f}]")
_PARTS = {"type": "Sequence", "pretokenizers": [{"type": "BertPreTokenizer"}, _EXTENSION_E]}
"""Split at white space, and around punctuation and Chinese characters."""

# The library's error message quotes a version that it does not know: these are shown to the user.
_JIEBA_REFUSED = (
    "none, because this causal language model continues jieba's words, and transformers' tokenizer "
    "with jieba always appends [SEP], which ends a text: use `roformer-tf generate`, or give "
    "transformers' `generate` the token ids of `roformer_tf.RoFormerTokenizer` without the last"
)
_WORDS_REFUSED = (
    "none, because this model labels separate words by their first tokens, and a tokenizer.json "
    "cannot mark these tokens: use `roformer-tf predict` or `roformer_tf`"
)
