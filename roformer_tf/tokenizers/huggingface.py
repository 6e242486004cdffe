"""`tokenizer.json` and `tokenizer_config.json` as transformers reads them, made without it."""

from collections.abc import Mapping
from typing import Any

from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS, WORD_LIMIT, Tokenization


def tokenizer_config(tokenization: Tokenization, lower_case: bool) -> dict[str, Any]:
    """Content of `tokenizer_config.json`; `tokenization` is our own key, which others skip.

    Hugging Face's `RoFormerTokenizer` always segments by jieba, which also takes strings of
    Greek or kana apart. So char-level folders name the class that does what tokenizer.json says.
    """
    by_word = tokenization == "word"
    return {
        "tokenizer_class": "RoFormerTokenizer" if by_word else "PreTrainedTokenizerFast",
        "do_lower_case": lower_case,
        "tokenization": tokenization,
        **{f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS},
    }


def tokenizer_json(
    vocabulary: Mapping[str, int], tokenization: Tokenization, lower_case: bool
) -> dict[str, Any]:
    """Content of `tokenizer.json`.

    Word-level, the pre-tokenizer is a stand-in: `RoFormerTokenizer` puts its jieba, which no
    file can hold, in its place, just as it does with folders that it saved itself.
    """
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
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": tokenization == "char",
            "strip_accents": None,  # where lower-cased, as here
            "lowercase": lower_case,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_special("[CLS]", 0), _text("A", 0), _special("[SEP]", 0)],
            "pair": [
                _special("[CLS]", 0),
                _text("A", 0),
                _special("[SEP]", 0),
                _text("B", 1),
                _special("[SEP]", 1),
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
