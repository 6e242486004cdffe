"""The generator of one model: batches of prompts, token by token or with beams."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from roformer_tf.models.beam_search import BeamSearch, Written
from roformer_tf.models.incremental import IncrementalDecoder
from roformer_tf.models.rows import check_finite
from roformer_tf.models.sampling import distribution, draw, penalize_repetition

if TYPE_CHECKING:
    from roformer_tf.models.generation_config import GenerationConfig

# Added by bert4keras to probabilities, whose logarithms it sums.
SMALLEST = 1e-12

# Called with each new token: the number of the prompt, of the sample, and the token's id.
OnToken: TypeAlias = Callable[[int, int, int], None]
# Called with each finished prompt: its number and its continuations.
OnDone: TypeAlias = "Callable[[int, list[Continuation]], None]"


@dataclass(frozen=True)
class Continuation:
    """A continuation of a prompt."""

    token_ids: tuple[int, ...]
    """Without the [SEP] that ended it, but with a token of `stop` that did."""
    text: str
    score: float
    """Mean log-probability in nats, without penalties, of all new tokens and the [SEP]."""
    ended: bool
    """Whether the model ended the text, before `max_tokens`."""


@dataclass
class _Row:
    """A text that is being generated."""

    prompt: int
    """Number of its prompt."""
    sample: int
    config: GenerationConfig
    before: list[int]
    """Tokens of the prompt."""
    room: int
    """Maximum number of new tokens."""
    random: np.random.Generator
    ids: list[int]
    """New tokens."""
    log_probability: float = 0.0
    count: int = 0
    done: bool = False
    """Whether no more tokens are generated."""
    ended: bool = False
    """Whether the model ended it."""


@dataclass(frozen=True)
class Callbacks:
    """The callbacks of `generate_ids`."""

    on_token: OnToken | None
    on_done: OnDone | None
    given_up: Callable[[int], bool]


class Generator:
    """Generates with one model, for one caller at a time."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.decoder = IncrementalDecoder(model)
        self.lock = Lock()
        tokenizer, size = model.tokenizer, model.config.vocab_size
        tokens = [] if tokenizer is None else list(tokenizer.tokens[:size])
        known = np.array([x is not None for x in tokens] + [not tokens] * (size - len(tokens)))
        self.holes = np.flatnonzero(~known)
        """Ids without a token: a vocabulary may have fewer tokens than embeddings, or gaps."""

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        configs: Sequence[GenerationConfig],
        rows: int,
        turns: Sequence[int],
        callbacks: Callbacks,
    ) -> list[list[Continuation]]:
        """See `GenerationMixin.generate_ids`."""
        results: list[list[Continuation]] = [[] for _ in prompts]

        def finish(number: int, continuations: list[Continuation]) -> None:
            results[number] = continuations
            if callbacks.on_done is not None:
                callbacks.on_done(number, continuations)

        with self.lock:
            for chosen in _batches(prompts, configs, rows):
                if configs[chosen[0]].beams > 1:
                    self._search(prompts, configs, chosen, callbacks, finish)
                else:
                    self._sample(prompts, configs, chosen, turns, callbacks, finish)
            self.decoder.end()
        return results

    def _sample(
        self,
        prompts: Sequence[Sequence[int]],
        configs: Sequence[GenerationConfig],
        chosen: Sequence[int],
        turns: Sequence[int],
        callbacks: Callbacks,
        finish: OnDone,
    ) -> None:
        """Greedy or sampled."""
        logits = self._begin([prompts[i] for i in chosen], [configs[i] for i in chosen])
        rows: list[_Row] = []
        for number in chosen:
            prompt, config = list(prompts[number]), configs[number]
            # The random numbers depend on the prompt, not on its batch: see `turns`.
            key = [config.seed, zlib.crc32(np.array(prompt, "<i4").tobytes()), turns[number]]
            for sample in range(config.samples):
                random = np.random.default_rng([*key, sample])
                room = self._room(prompt, config)
                rows.append(_Row(number, sample, config, prompt, room, random, []))
        texts: dict[int, list[_Row]] = {}
        for row in rows:
            texts.setdefault(row.prompt, []).append(row)
        indices = {number: index for index, number in enumerate(chosen)}
        order = [indices[row.prompt] for row in rows]
        # Each prompt is read once, and its caches are repeated for its samples.
        self.decoder.choose(order)
        running, logits = rows, logits[order]
        while True:
            tokens = self._next_tokens(running, logits)
            for row, token in zip(running, tokens.tolist(), strict=True):
                if row.done:
                    continue
                self._put(row, token)
                if callbacks.on_token is not None and not (row.ended and token == self._sep):
                    callbacks.on_token(row.prompt, row.sample, token)
                row.done = row.done or callbacks.given_up(row.prompt)
                if row.done and all(other.done for other in texts[row.prompt]):
                    own = texts[row.prompt]
                    finish(row.prompt, [self._continuation(x) for x in own])
            live = [index for index, row in enumerate(running) if not row.done]
            if not live:
                break
            # To drop texts copies the caches, so finished ones are kept until they are half.
            if 2 * len(live) <= len(running):
                self.decoder.choose(live)
                running, tokens = [running[index] for index in live], tokens[live]
            logits = self._known(self.decoder.append(tokens))

    def _next_tokens(
        self, rows: Sequence[_Row], logits: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.int64]:
        """The next token of each text (B,); texts with the same config are processed together."""
        tokens = np.zeros(len(rows), np.int64)
        by_config: dict[GenerationConfig, list[int]] = {}
        for index, row in enumerate(rows):
            by_config.setdefault(row.config, []).append(index)
        for config, indices in by_config.items():
            scores = logits[indices]
            own = [rows[index] for index in indices]
            if config.repetition_penalty != 1:
                seen = _padded([row.before + row.ids for row in own])
                scores = penalize_repetition(scores, seen, config.repetition_penalty)
            if self._sep is not None and config.min_tokens:
                early = [len(row.ids) < config.min_tokens for row in own]
                scores = scores.copy()
                scores[early, self._sep] = -np.inf
            if config.sampled:
                likely = distribution(scores, config.temperature or 1.0, config.top_k, config.top_p)
                tokens[indices] = draw(likely, np.array([row.random.random() for row in own]))
            else:
                tokens[indices] = scores.argmax(axis=1)
        for index, row in enumerate(rows):
            if not row.done:
                row.log_probability += _log_probability(logits[index], int(tokens[index]))
                row.count += 1
        return tokens

    def _put(self, row: _Row, token: int) -> None:
        """Append a token, and determine whether it is the last one."""
        if token == self._sep:
            row.done = row.ended = True
            return
        row.ids.append(token)
        if row.config.stop and len(row.ids) >= row.config.min_tokens:
            row.ended = self._stops(row)
        row.done = row.ended or len(row.ids) >= row.room

    def _stops(self, row: _Row) -> bool:
        """Whether the text ends in one of `stop`: a token, or several characters."""
        known = self.model.tokenizer.vocabulary
        if row.ids[-1] in {known[stop] for stop in row.config.stop if stop in known}:
            return True
        texts = tuple(stop for stop in row.config.stop if stop not in known)
        return bool(texts) and self.model.tokenizer.decode(row.ids[-TAIL:]).endswith(texts)

    def _search(
        self,
        prompts: Sequence[Sequence[int]],
        configs: Sequence[GenerationConfig],
        chosen: Sequence[int],
        callbacks: Callbacks,
        finish: OnDone,
    ) -> None:
        """Beam search."""
        logits = self._begin([prompts[i] for i in chosen], [configs[i] for i in chosen])
        searches = {i: self._beams(prompts[i], configs[i]) for i in chosen}
        while True:
            rows, tokens, start = [], [], 0
            for number, search in searches.items():
                if search.answer is not None:
                    continue
                stop = start + len(search.running)
                parents, written = search.advance(
                    self._beam_scores(logits[start:stop], prompts[number], configs[number], search)
                )
                if search.answer is None and callbacks.given_up(number):
                    search.answer = search.running[0]
                if search.answer is None:
                    rows += (parents + start).tolist()
                    tokens += written.tolist()
                else:
                    finish(number, [self._beam_continuation(search.answer)])
                start = stop
            if not rows:
                break
            self.decoder.choose(rows)
            logits = self._known(self.decoder.append(np.array(tokens)))

    def _beams(self, prompt: Sequence[int], config: GenerationConfig) -> BeamSearch:
        room = self._room(prompt, config)
        return BeamSearch(config.beams, self._ends(config), room, config.length_penalty)

    def _beam_scores(
        self,
        logits: npt.NDArray[np.float32],
        prompt: Sequence[int],
        config: GenerationConfig,
        search: BeamSearch,
    ) -> npt.NDArray[Any]:
        """Log-probabilities (K, V) of the next tokens of the running beams."""
        from scipy.special import log_softmax, softmax

        written = [list(beam.token_ids) for beam in search.running]
        if config.repetition_penalty != 1:
            seen = _padded([[*prompt, *ids] for ids in written])
            logits = penalize_repetition(logits, seen, config.repetition_penalty)
        if len(written[0]) < config.min_tokens:
            logits = logits.copy()
            logits[:, list(search.ends)] = -np.inf
        logits64 = logits.astype(np.float64)
        if config.length_penalty is None:
            return np.log(softmax(logits64, axis=-1) + SMALLEST)
        return np.asarray(log_softmax(logits64, axis=-1))

    def _begin(
        self, prompts: Sequence[Sequence[int]], configs: Sequence[GenerationConfig]
    ) -> npt.NDArray[np.float32]:
        room = max(self._room(*each) for each in zip(prompts, configs, strict=True))
        return self._known(self.decoder.begin(prompts, room))

    def _known(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Logits (B, V) with −∞ for ids without a token. Raises InputError unless finite."""
        check_finite(logits)
        if len(self.holes):
            logits = logits.copy()
            logits[:, self.holes] = -np.inf
        return logits

    def _room(self, prompt: Sequence[int], config: GenerationConfig) -> int:
        """Maximum number of new tokens after a prompt."""
        return min(config.max_tokens, self.model.config.max_position_embeddings - len(prompt))

    def _ends(self, config: GenerationConfig) -> tuple[int, ...]:
        """Ids of the tokens that end a beam."""
        own = [] if self._sep is None else [self._sep]
        return (*own, *(self.model.tokenizer.vocabulary[stop] for stop in config.stop))

    @property
    def _sep(self) -> int | None:
        tokenizer = self.model.tokenizer
        return None if tokenizer is None else int(tokenizer.sep_id)

    def _continuation(self, row: _Row) -> Continuation:
        score = row.log_probability / max(row.count, 1)
        return Continuation(tuple(row.ids), self._text(row.ids), score, row.ended)

    def _beam_continuation(self, best: Written) -> Continuation:
        """The continuation of the best beam."""
        ids, total, ended = best
        score = total / max(len(ids), 1)
        ids = ids[:-1] if ended and ids[-1] == self._sep else ids
        return Continuation(ids, self._text(ids), score, ended)

    def _text(self, ids: Sequence[int]) -> str:
        tokenizer = self.model.tokenizer
        return "" if tokenizer is None else str(tokenizer.decode(ids))


# Tokens at the end of a text in which texts of `stop` are searched for.
TAIL = 32


def _batches(
    prompts: Sequence[Sequence[int]], configs: Sequence[GenerationConfig], rows: int
) -> Iterator[list[int]]:
    """Numbers of the prompts of each batch: of similar length, the longest first."""
    order = sorted(range(len(prompts)), key=lambda i: (configs[i].beams > 1, -len(prompts[i])))
    batch: list[int] = []
    width = 0
    for number in order:
        config = configs[number]
        own = max(config.samples, config.beams)
        other_kind = batch and (configs[batch[0]].beams > 1) != (config.beams > 1)
        if batch and (width + own > rows or other_kind):
            yield batch
            batch, width = [], 0
        batch.append(number)
        width += own
    if batch:
        yield batch


def _padded(rows: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    """Rows of ids, shorter ones padded with −1."""
    seen = np.full((len(rows), max(map(len, rows))), -1, np.int64)
    for number, row in enumerate(rows):
        seen[number, : len(row)] = row
    return seen


def _log_probability(logits: npt.NDArray[np.float32], token: int) -> float:
    """The log-probability of one token by logits (V,), in nats."""
    highest = logits.max()
    return float(logits[token] - highest - np.log(np.exp(logits - highest).sum(dtype=np.float64)))
