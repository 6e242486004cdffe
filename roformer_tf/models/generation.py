"""Text generation: greedy, sampled or by beam search, for many prompts at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.models.compiled import Compiled
from roformer_tf.models.generation_config import ROWS, GenerationConfig
from roformer_tf.models.generator import Continuation, Generator, GivenUp, OnDone, OnToken, Prompt
from roformer_tf.tokenizers.padding import as_pairs
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer


class GenerationMixin:
    """`generate`, for models whose logits at a position score the next token."""

    config: RoFormerConfig
    tokenizer: RoFormerTokenizer | None
    own_tokenizer: RoFormerTokenizer
    compiled_parts: Compiled

    def generate(
        self, texts: Sequence[str], *, rows: int = ROWS, **settings: Any
    ) -> list[list[str]]:
        """Continue texts: for each a list of `samples` texts, without the prompt.

        A causal model continues the text; a UniLM one (sim) paraphrases it.
        `settings` are those of `GenerationConfig`: max_tokens, min_tokens, samples, temperature,
        top_k, top_p, repetition_penalty, beams, length_penalty, stop, seed. Default: greedy.
        rows: number of texts that are generated at the same time.
        Raises InputError for settings out of bounds, for another type than a list of texts, for a
        prompt that is too long, and for a model without a tokenizer or with a bidirectional mask.
        """
        pairs = as_pairs(texts)
        if any(pair is not None for _, pair in pairs):
            raise InputError(f"a list of texts is needed, not {str(texts)[:60]!r}. Give a list.")
        written = self.generate_ids(
            [self.encode_prompt(text) for text, _ in pairs], GenerationConfig(**settings), rows=rows
        )
        return [[text.text for text in each] for each in written]

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a prompt: [CLS], the text and, for UniLM, [SEP]."""
        tokenizer = self.own_tokenizer
        ids, _ = tokenizer.encode(text)
        # A UniLM model continues with the second text, after [SEP]; a causal one with the first.
        return ids if self.config.attention_type == "unilm" else ids[:-1]

    def generate_ids(
        self,
        prompts: Sequence[Sequence[int]],
        config: GenerationConfig | Sequence[GenerationConfig] | None = None,
        *,
        rows: int = ROWS,
        turns: Sequence[int] | None = None,
        on_token: OnToken = lambda *_: None,
        on_done: OnDone = lambda *_: None,
        given_up: GivenUp = lambda _: False,
    ) -> list[list[Continuation]]:
        """Continue prompts of token ids, such as those of `encode_prompt`: a list for each.

        Args:
            prompts: token ids. Prompts of similar length form batches.
            config: one for all prompts, or one for each.
            rows: number of texts that are generated at the same time.
            turns: numbers of equal prompts, so that each samples other texts. Default: counted.
            on_token: called with each token, except in beam search.
            on_done: called with each finished prompt.
            given_up: called with the number of a prompt after every token; True ends that prompt.

        Raises InputError as `generate` does.
        """
        if config is None or isinstance(config, GenerationConfig):
            config = [config or GenerationConfig()] * len(prompts)
        for number, prompt in enumerate(prompts):
            self.check_fits(prompt, f"prompt {number}")
        for each in dict.fromkeys(config):
            self.check_stops(each)
        generator: Generator = self.compiled_parts.kept(self, "generator", lambda: Generator(self))
        limit, every = self.config.max_position_embeddings, (turns or turns_of(prompts))
        requests = [
            Prompt(number, list(ids), settings, turn, min(settings.max_tokens, limit - len(ids)))
            for number, (ids, settings, turn) in enumerate(zip(prompts, config, every, strict=True))
        ]
        return generator.generate(requests, rows, on_token, on_done, given_up)

    def check_stops(self, config: GenerationConfig) -> None:
        """Raise InputError if beams should stop at a text that is not a single token."""
        if config.beams == 1:
            return
        for stop in config.stop:
            if stop not in self.own_tokenizer.vocabulary:
                raise InputError(
                    f"stop is {stop!r}, but beams end at single tokens, and the vocabulary lacks "
                    "it. Omit beams, or stop at another text."
                )

    def check_fits(self, prompt: Sequence[int], name: str) -> None:
        """Raise InputError, with its name, for a prompt without tokens, or one that is too long."""
        limit = self.config.max_position_embeddings
        if not len(prompt):
            raise InputError(f"{name} has no tokens. Give at least [CLS].")
        if len(prompt) >= limit:
            raise InputError(
                f"{name} has {len(prompt):,} tokens, but the model is for texts of up to "
                f"{limit:,}, including the new tokens. Give a shorter one, or a model with a "
                "larger max_position_embeddings."
            )


class TextStream:
    """Converts tokens one by one into parts of the text that no later token changes."""

    def __init__(self, tokenizer: RoFormerTokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._length = 0  # of the text that was returned

    def add(self, token: int) -> str:
        """The new part of the text that is final now; it can be empty."""
        # The next token can change the text of the last one: ##s is appended to a word.
        final = len(self._tokenizer.decode(self._ids))
        self._ids.append(token)
        # Cut where the text without the newest token ends, but never before what was returned.
        text = self._tokenizer.decode(self._ids)[: max(self._length, final)]
        part, self._length = text[self._length :], len(text)
        return part

    def rest(self, whole: str) -> str:
        """The rest of the whole text."""
        return whole[self._length :]


def turns_of(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The number of each among equal prompts: 0 for the first, 1 for the second."""
    seen: Counter[tuple[int, ...]] = Counter()
    turns = []
    for prompt in prompts:
        turns.append(seen[tuple(prompt)])
        seen[tuple(prompt)] += 1
    return turns
