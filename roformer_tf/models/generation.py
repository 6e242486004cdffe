"""Text generation: greedy, sampled or by beam search, for many prompts at once."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import Queue
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from roformer_tf.errors import InputError
from roformer_tf.models.beam_search import BeamSearch, Written
from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.models.incremental import IncrementalDecoder
from roformer_tf.models.rows import check_finite
from roformer_tf.models.sampling import (
    distribution,
    draw,
    penalize_repetition,
)

if TYPE_CHECKING:
    from roformer_tf.config import RoFormerConfig
    from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

# Texts that are generated at the same time.
ROWS = 64
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


class GenerationMixin:
    """`generate`, for models whose logits at a position score the next token."""

    config: RoFormerConfig
    tokenizer: RoFormerTokenizer | None
    own_tokenizer: RoFormerTokenizer
    _generator: _Generator | None = None

    def generate(
        self, texts: Sequence[str], *, rows: int = ROWS, **settings: Any
    ) -> list[list[str]]:
        """Continue texts: for each a list of `samples` texts, without the prompt.

        A causal model continues the text; a UniLM one (sim) paraphrases it.
        `settings` are those of `GenerationConfig`: max_tokens, min_tokens, samples, temperature,
        top_k, top_p, repetition_penalty, beams, length_penalty, stop, seed. Greedy unless one of
        them says otherwise. rows: texts that are generated at the same time.
        Raises InputError for settings out of bounds, for another type than a list of texts, for a
        prompt that is too long, and for a model without a tokenizer or with a bidirectional mask.
        """
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise InputError(f"a list of texts is needed, not {str(texts)[:60]!r}. Give a list.")
        written = self.generate_ids(
            [self.encode_prompt(text) for text in texts], GenerationConfig(**settings), rows=rows
        )
        return [[text.text for text in each] for each in written]

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a prompt: [CLS], the text and, for UniLM, [SEP]."""
        tokenizer = self.own_tokenizer
        ids, _ = tokenizer.encode(text)
        return ids if self.config.attention_type == "unilm" else ids[:-1]

    def generate_ids(
        self,
        prompts: Sequence[Sequence[int]],
        config: GenerationConfig | Sequence[GenerationConfig] | None = None,
        *,
        rows: int = ROWS,
        turns: Sequence[int] | None = None,
        on_token: OnToken | None = None,
        on_done: OnDone | None = None,
        given_up: Callable[[int], bool] | None = None,
    ) -> list[list[Continuation]]:
        """Continue rows of token ids, such as `encode_prompt` makes: a list for each.

        One config for all, by default `GenerationConfig()`, or one each. `turns`: the numbers of
        equal prompts, so that each samples other texts; counted by default. `on_token` is called
        with each token, but not in beam search; `on_done` with each finished prompt. `given_up` is
        called with a prompt's number after every token; True ends that prompt alone. Prompts of
        similar length form batches.
        Raises InputError as `generate` does.
        """
        if config is None or isinstance(config, GenerationConfig):
            config = [config or GenerationConfig()] * len(prompts)
        for number, prompt in enumerate(prompts):
            self._check_fits(number, prompt)
        for each in dict.fromkeys(config):
            self.check_stops(each)
        if self._generator is None:
            self._generator = _Generator(self)
        callbacks = _Callbacks(on_token, on_done, given_up or (lambda _: False))
        return self._generator.write(prompts, config, rows, turns or turns_of(prompts), callbacks)

    def check_stops(self, config: GenerationConfig) -> None:
        """Raise InputError where beams would stop at a text that is not a single token."""
        if config.beams == 1 or not config.stop:
            return
        for stop in config.stop:
            if stop not in self.own_tokenizer.vocabulary:
                raise InputError(
                    f"stop is {stop!r}, but beams end at single tokens, and the vocabulary lacks "
                    "it. Omit beams, or stop at another text."
                )

    def _check_fits(self, number: int, prompt: Sequence[int]) -> None:
        most = self.config.max_position_embeddings
        if not len(prompt):
            raise InputError(f"prompt {number} has no tokens. Give at least [CLS].")
        if len(prompt) >= most:
            raise InputError(
                f"prompt {number} has {len(prompt):,} tokens, but the model was made for texts of "
                f"{most:,}, with the new tokens. Give a shorter one, or a model with a larger "
                "max_position_embeddings."
            )


@dataclass
class _Row:
    """A text that is being generated."""

    prompt: int
    sample: int
    config: GenerationConfig
    before: list[int]
    room: int
    random: np.random.Generator
    ids: list[int]
    log_probability: float = 0.0
    count: int = 0
    done: bool = False
    ended: bool = False


@dataclass(frozen=True)
class _Callbacks:
    """The callbacks of `generate_ids`."""

    on_token: OnToken | None
    on_done: OnDone | None
    given_up: Callable[[int], bool]


class _Generator:
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
        callbacks: _Callbacks,
    ) -> list[list[Continuation]]:
        """See `GenerationMixin.generate_ids`."""
        answers: list[list[Continuation]] = [[] for _ in prompts]

        def finish(number: int, written: list[Continuation]) -> None:
            answers[number] = written
            if callbacks.on_done is not None:
                callbacks.on_done(number, written)

        with self.lock:
            for chosen in _batches(prompts, configs, rows):
                if configs[chosen[0]].beams > 1:
                    self._search(prompts, configs, chosen, callbacks, finish)
                else:
                    self._sample(prompts, configs, chosen, turns, callbacks, finish)
            self.decoder.end()
        return answers

    def _sample(
        self,
        prompts: Sequence[Sequence[int]],
        configs: Sequence[GenerationConfig],
        chosen: Sequence[int],
        turns: Sequence[int],
        callbacks: _Callbacks,
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
        places = {number: place for place, number in enumerate(chosen)}
        order = [places[row.prompt] for row in rows]
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
            live = [place for place, row in enumerate(running) if not row.done]
            if not live:
                break
            if 2 * len(live) <= len(running):  # to drop texts takes time
                self.decoder.choose(live)
                running, tokens = [running[place] for place in live], tokens[live]
            logits = self._known(self.decoder.append(tokens))

    def _next_tokens(
        self, rows: Sequence[_Row], logits: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.int64]:
        """The next token of each text (B,); texts with one config are processed together."""
        tokens = np.zeros(len(rows), np.int64)
        together: dict[GenerationConfig, list[int]] = {}
        for place, row in enumerate(rows):
            together.setdefault(row.config, []).append(place)
        for config, places in together.items():
            scores = logits[places]
            own = [rows[place] for place in places]
            if config.repetition_penalty != 1:
                seen = _padded([row.before + row.ids for row in own])
                scores = penalize_repetition(scores, seen, config.repetition_penalty)
            if self._sep is not None and config.min_tokens:
                early = [len(row.ids) < config.min_tokens for row in own]
                scores = scores.copy()
                scores[early, self._sep] = -np.inf
            if config.sampled:
                likely = distribution(scores, config.temperature or 1.0, config.top_k, config.top_p)
                tokens[places] = draw(likely, np.array([row.random.random() for row in own]))
            else:
                tokens[places] = scores.argmax(axis=1)
        for place, row in enumerate(rows):
            if not row.done:
                row.log_probability += _log_probability(logits[place], int(tokens[place]))
                row.count += 1
        return tokens

    def _put(self, row: _Row, token: int) -> None:
        """Append a token, and decide whether it is the last one."""
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
        others = tuple(stop for stop in row.config.stop if stop not in known)
        return bool(others) and self.model.tokenizer.decode(row.ids[-TAIL:]).endswith(others)

    def _search(
        self,
        prompts: Sequence[Sequence[int]],
        configs: Sequence[GenerationConfig],
        chosen: Sequence[int],
        callbacks: _Callbacks,
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
                    finish(number, [self._found(search.answer)])
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

    def _found(self, best: Written) -> Continuation:
        """The continuation of the best beam."""
        ids, total, ended = best
        score = total / max(len(ids), 1)
        ids = ids[:-1] if ended and ids[-1] == self._sep else ids
        return Continuation(ids, self._text(ids), score, ended)

    def _text(self, ids: Sequence[int]) -> str:
        tokenizer = self.model.tokenizer
        return "" if tokenizer is None else str(tokenizer.decode(ids))


class TextPieces:
    """Tokens, one by one → parts of their text, which no later token changes."""

    def __init__(self, tokenizer: RoFormerTokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._given = 0

    def add(self, token: int) -> str:
        """The text that is certain now, which may be empty."""
        # The next token may change the text of the last one, as ##s does of a word.
        certain = len(self._tokenizer.decode(self._ids))
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)[: max(self._given, certain)]
        piece, self._given = text[self._given :], len(text)
        return piece

    def rest(self, whole: str) -> str:
        """The rest of the whole text."""
        return whole[self._given :]


def stream(model: Any, prompt: Sequence[int], config: GenerationConfig) -> Iterator[str]:
    """Generate one continuation of a prompt, in parts.

    A thread generates; when the caller stops iterating, it ends after the next token.
    """
    queue: Queue[str | BaseException | None] = Queue()
    stopped = Event()
    pieces = TextPieces(model.tokenizer)

    def write() -> None:
        try:
            ((one,),) = model.generate_ids(
                [prompt],
                config,
                on_token=lambda _prompt, _sample, token: queue.put(pieces.add(token)),
                given_up=lambda _: stopped.is_set(),
            )
            queue.put(pieces.rest(one.text))
            queue.put(None)
        except BaseException as error:
            queue.put(error)

    thread = Thread(target=write, daemon=True)
    thread.start()
    try:
        while (piece := queue.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            if piece:
                yield piece
    finally:
        stopped.set()
        thread.join()


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


def turns_of(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The number of each among equal prompts: 0 for the first, 1 for the second."""
    seen: Counter[tuple[int, ...]] = Counter()
    turns = []
    for prompt in prompts:
        turns.append(seen[tuple(prompt)])
        seen[tuple(prompt)] += 1
    return turns


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
