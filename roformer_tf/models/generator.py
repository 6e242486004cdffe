"""The generator of one model: batches of prompts, token by token or with beams."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.models.incremental import IncrementalDecoder
from roformer_tf.models.rows import check_finite, grouped
from roformer_tf.models.strategies import BeamSearch, distribution, draw, penalize_repetition

# Added by bert4keras to probabilities, whose logarithms it sums.
SMALLEST = 1e-12

# Called with each new token: the number of the prompt, of the sample, and the token's id.
OnToken: TypeAlias = Callable[[int, int, int], Any]
# Called with each finished prompt: its number and its continuations.
OnDone: TypeAlias = "Callable[[int, list[Continuation]], Any]"
# Called with the number of a prompt after every token; True ends that prompt.
GivenUp: TypeAlias = Callable[[int], bool]
# The numbers of finished prompts and their continuations.
Finished: TypeAlias = "Iterator[tuple[int, list[Continuation]]]"


@dataclass(frozen=True)
class Prompt:
    """A text to continue."""

    number: int
    ids: list[int]
    config: GenerationConfig
    turn: int
    """Its number among equal prompts."""
    room: int
    """Maximum number of new tokens."""

    def random(self, sample: int) -> np.random.Generator:
        """The random numbers of a sample, which depend on the prompt and not on its batch."""
        # With a fixed byte order, so that a seed draws the same on every machine.
        content = zlib.crc32(np.array(self.ids, "<i4").tobytes())
        return np.random.default_rng([self.config.seed, content, self.turn, sample])


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

    prompt: Prompt
    sample: int
    random: np.random.Generator
    ids: list[int] = field(default_factory=list)
    """New tokens, with the [SEP] that ended it."""
    log_probability: float = 0.0
    done: bool = False
    """Whether no more tokens are generated."""
    ended: bool = False
    """Whether the model ended it."""


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
        self.ends = () if tokenizer is None else (int(tokenizer.sep_id),)
        """Ids of tokens at which the model ends a text: [SEP], if there is a vocabulary."""

    def generate(
        self,
        prompts: Sequence[Prompt],
        rows: int,
        on_token: OnToken,
        on_done: OnDone,
        given_up: GivenUp,
    ) -> list[list[Continuation]]:
        """See `GenerationMixin.generate_ids`."""
        results: list[list[Continuation]] = [[] for _ in prompts]
        with self.lock:
            for batch in _batches(prompts, rows):
                continued = self._search if batch[0].config.beams > 1 else self._sample
                for number, continuations in continued(batch, on_token, given_up):
                    results[number] = continuations
                    on_done(number, continuations)
            self.decoder.end()
        return results

    def _sample(self, batch: Sequence[Prompt], on_token: OnToken, given_up: GivenUp) -> Finished:
        """Greedy or sampled."""
        logits = self._begin(batch)
        rows = [
            _Row(prompt, sample, prompt.random(sample))
            for prompt in batch
            for sample in range(prompt.config.samples)
        ]
        order = [index for index, x in enumerate(batch) for _ in range(x.config.samples)]
        # Each prompt is read once, and its caches are repeated for its samples.
        self.decoder.choose(order)
        running, logits = rows, logits[order]
        while True:
            tokens = self._next_tokens(running, logits)
            for row, token in zip(running, tokens.tolist(), strict=True):
                # A finished text stays in the decoder's batch for a while; its tokens are ignored.
                if row.done:
                    continue
                number = row.prompt.number
                self._append(row, token)
                if token not in self.ends:
                    on_token(number, row.sample, token)
                row.done = row.done or given_up(number)
                own = [x for x in rows if x.prompt is row.prompt] if row.done else []
                if own and all(x.done for x in own):
                    finished = [(tuple(x.ids), x.log_probability, x.ended) for x in own]
                    yield number, [self._continuation(*x) for x in finished]
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
        from scipy.special import log_softmax

        tokens = np.zeros(len(rows), np.int64)
        for config, indices in grouped(rows, lambda row: row.prompt.config).items():
            own = [rows[index] for index in indices]
            texts = [(row.prompt, row.ids) for row in own]
            scores = _adjusted(logits[indices], config, texts, self.ends)
            if config.sampled:
                likely = distribution(scores, config.temperature or 1.0, config.top_k, config.top_p)
                tokens[indices] = draw(likely, np.array([row.random.random() for row in own]))
            else:
                tokens[indices] = scores.argmax(axis=1)
        for index, row in enumerate(rows):
            if not row.done:
                row.log_probability += log_softmax(logits[index].astype(float))[tokens[index]]
        return tokens

    def _append(self, row: _Row, token: int) -> None:
        """Append a token, and determine whether it is the last one."""
        row.ids.append(token)
        if token in self.ends:
            row.ended = True
        elif row.prompt.config.stop and len(row.ids) >= row.prompt.config.min_tokens:
            row.ended = self._stops(row)
        row.done = row.ended or len(row.ids) >= row.prompt.room

    def _stops(self, row: _Row) -> bool:
        """Whether the last token is one of `stop`, or completes one in the text."""
        tokenizer, stops = self.model.tokenizer, row.prompt.config.stop
        if tokenizer.tokens[row.ids[-1]] in stops:  # also one that no text shows, as [unused1]
            return True
        # Compared by count, because an earlier occurrence does not end the text: with `min_tokens`,
        # one may precede the first check.
        before, text = (tokenizer.decode(row.ids[-TAIL:end]) for end in (-1, None))
        return any(text.count(stop) > before.count(stop) for stop in stops)

    def _search(self, batch: Sequence[Prompt], _: OnToken, given_up: GivenUp) -> Finished:
        """Beam search."""
        logits = self._begin(batch)
        searches = [(prompt, self._beams(prompt)) for prompt in batch]
        while True:
            rows, tokens, start = [], [], 0
            for prompt, search in searches:
                stop = start + len(search.running)
                parents, chosen = search.advance(
                    self._beam_scores(logits[start:stop], prompt, search)
                )
                if search.result is None and given_up(prompt.number):
                    search.result = search.running[0]
                if search.result is None:
                    # Parents are numbered within the prompt, the decoder's texts over all prompts.
                    rows += (parents + start).tolist()
                    tokens += chosen.tolist()
                else:
                    yield prompt.number, [self._continuation(*search.result)]
                start = stop
            searches = [each for each in searches if each[1].result is None]
            if not searches:
                break
            self.decoder.choose(rows)
            logits = self._known(self.decoder.append(np.array(tokens)))

    def _beams(self, prompt: Prompt) -> BeamSearch:
        config = prompt.config
        ends = (*self.ends, *(self.model.tokenizer.vocabulary[stop] for stop in config.stop))
        return BeamSearch(config.beams, ends, prompt.room, config.length_penalty)

    def _beam_scores(
        self, logits: npt.NDArray[np.float32], prompt: Prompt, search: BeamSearch
    ) -> npt.NDArray[Any]:
        """Log-probabilities (K, V) of the next tokens of the running beams."""
        from scipy.special import log_softmax, softmax

        texts = [(prompt, beam.token_ids) for beam in search.running]
        logits64 = _adjusted(logits, prompt.config, texts, search.ends).astype(np.float64)
        if prompt.config.length_penalty is None:
            return np.log(softmax(logits64, axis=-1) + SMALLEST)
        return np.asarray(log_softmax(logits64, axis=-1))

    def _begin(self, batch: Sequence[Prompt]) -> npt.NDArray[np.float32]:
        prompts, room = [prompt.ids for prompt in batch], max(prompt.room for prompt in batch)
        return self._known(self.decoder.begin(prompts, room))

    def _known(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Logits (B, V) with −∞ for ids without a token. Raises InputError unless finite."""
        check_finite(logits)
        if len(self.holes):
            logits = logits.copy()
            logits[:, self.holes] = -np.inf
        return logits

    def _continuation(self, ids: tuple[int, ...], total: float, ended: bool) -> Continuation:
        """A finished text; ids: its new tokens, with the last one if it has ended."""
        # Before [SEP] is removed, because its log-probability is in the total.
        score, tokenizer = total / len(ids), self.model.tokenizer
        ids = ids[:-1] if ended and ids[-1] in self.ends else ids
        text = "" if tokenizer is None else str(tokenizer.decode(ids))
        return Continuation(ids, text, score, ended)


# Tokens at the end of a text in which texts of `stop` are searched for.
TAIL = 32


def _batches(prompts: Sequence[Prompt], rows: int) -> Iterator[list[Prompt]]:
    """The prompts of each batch: of similar length, the longest first."""
    batch: list[Prompt] = []
    # Prompts with beams come last: a batch has either beams or none.
    for prompt in sorted(prompts, key=lambda x: (x.config.beams > 1, -len(x.ids))):
        # A prompt takes as many texts of the batch as it has samples or beams.
        width = sum(x.config.width for x in [*batch, prompt])
        if batch and (width > rows or (batch[0].config.beams > 1) != (prompt.config.beams > 1)):
            yield batch
            batch = []
        batch.append(prompt)
    if batch:
        yield batch


def _adjusted(
    logits: npt.NDArray[np.float32],
    config: GenerationConfig,
    texts: Sequence[tuple[Prompt, Sequence[int]]],
    ends: Sequence[int],
) -> npt.NDArray[np.float32]:
    """Logits (B, V) after penalties, without the ids in `ends` where a text is too short.

    texts: the prompt and the new tokens of each text.
    """
    if config.repetition_penalty != 1:
        seen = [[*prompt.ids, *ids] for prompt, ids in texts]
        logits = penalize_repetition(logits, seen, config.repetition_penalty)
    early = np.flatnonzero([len(ids) < config.min_tokens for _, ids in texts])
    if len(early) and len(ends):
        logits = logits.copy()
        logits[early[:, None], list(ends)] = -np.inf
    return logits
