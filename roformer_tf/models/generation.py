"""Models that write: greedy, sampled or by beams, many prompts at once."""

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

ROWS = 64
"""Texts that are written side by side."""
SMALLEST = 1e-12
"""Added by bert4keras to probabilities, whose logarithms it sums."""

OnToken: TypeAlias = Callable[[int, int, int], None]
"""Told of every token that is written: the prompt's number, the sample's, the token's id."""
OnDone: TypeAlias = "Callable[[int, list[Continuation]], None]"
"""Told of every prompt that is finished, at once: its number, and what was written behind it."""


@dataclass(frozen=True)
class Continuation:
    """What was written behind a prompt."""

    token_ids: tuple[int, ...]
    """Without the [SEP] that ended it, with the token of `stop` that did."""
    text: str
    score: float
    """Mean log-probability of a token, in nats, by the model itself: of all that were written, and
    of the [SEP]."""
    ended: bool
    """Whether the text ended of itself, before `max_tokens`."""


class GenerationMixin:
    """`generate`, for models whose logits at a position score the token behind it."""

    config: RoFormerConfig
    tokenizer: RoFormerTokenizer | None
    _generator: _Generator | None = None

    def generate(
        self, texts: Sequence[str], *, rows: int = ROWS, **settings: Any
    ) -> list[list[str]]:
        """Continue texts: for each a list of `samples` texts, without the prompt.

        A causal model continues the text; a UniLM one (sim) writes another that means the same.
        `settings` are those of `GenerationConfig`: max_tokens, min_tokens, samples, temperature,
        top_k, top_p, repetition_penalty, beams, length_penalty, stop, seed. Greedy unless one of
        them says otherwise. rows: texts that are written side by side.
        Raises InputError for settings out of their bounds, for what is no list of texts, a prompt
        that leaves no room, and a model without a tokenizer or that sees what is to be written.
        """
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise InputError(f"a list of texts is needed, not {str(texts)[:60]!r}. Give a list.")
        written = self.generate_ids(
            [self.encode_prompt(text) for text in texts], GenerationConfig(**settings), rows=rows
        )
        return [[one.text for one in each] for each in written]

    def encode_prompt(self, text: str) -> list[int]:
        """What the model reads before it writes: [CLS], the text and, of UniLM, [SEP]."""
        tokenizer = self._own_tokenizer()
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

        One config for all, by default `GenerationConfig()`, or one each. `turns`: which of equal
        prompts each is, by which they draw texts of their own; counted unless given. `on_token`
        hears of each token as it is written, but of none of beams; `on_done` of each prompt as
        soon as it is finished. `given_up`, asked of a prompt's number behind every token, ends
        what is written behind that one alone. Prompts of like length are written together.
        Raises InputError as `generate` does.
        """
        if config is None or isinstance(config, GenerationConfig):
            config = [config or GenerationConfig()] * len(prompts)
        for number, prompt in enumerate(prompts):
            self._check_fits(number, prompt)
        for each in dict.fromkeys(config):
            self.check_stops(each)
        # Before anything is written: what is refused is refused of all.
        if self._generator is None:
            self._generator = _Generator(self)
        asking = _Asking(on_token, on_done, given_up or (lambda _: False))
        return self._generator.write(prompts, config, rows, turns or turns_of(prompts), asking)

    def check_stops(self, config: GenerationConfig) -> None:
        """Raise InputError where beams are to stop at what is no token of the vocabulary."""
        if config.beams == 1 or not config.stop:
            return
        for stop in config.stop:
            if stop not in self._own_tokenizer().vocabulary:
                raise InputError(
                    f"stop is {stop!r}, but beams end at single tokens, and the vocabulary has no "
                    "such one. Leave beams out, or stop at another text."
                )

    def _own_tokenizer(self) -> RoFormerTokenizer:
        if self.tokenizer is None:
            raise InputError(
                "this model has no tokenizer: its checkpoint came without a vocab.txt. "
                "Put one beside it, or set `model.tokenizer`."
            )
        return self.tokenizer

    def _check_fits(self, number: int, prompt: Sequence[int]) -> None:
        most = self.config.max_position_embeddings
        if not len(prompt):
            raise InputError(f"prompt {number} has no tokens. Give at least [CLS].")
        if len(prompt) >= most:
            raise InputError(
                f"prompt {number} has {len(prompt):,} tokens, but the model was made for texts of "
                f"{most:,}, with what it writes. Give a shorter one, or a model with a larger "
                "max_position_embeddings."
            )


@dataclass
class _Row:
    """One text that is being written."""

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
class _Asking:
    """What a caller wants to hear, and whether it still wants a prompt's texts."""

    on_token: OnToken | None
    on_done: OnDone | None
    given_up: Callable[[int], bool]


class _Generator:
    """Writes with one model, for one caller at a time."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.decoder = IncrementalDecoder(model)
        self.lock = Lock()
        tokenizer, size = model.tokenizer, model.config.vocab_size
        tokens = [] if tokenizer is None else list(tokenizer.tokens[:size])
        known = np.array([x is not None for x in tokens] + [not tokens] * (size - len(tokens)))
        self.holes = np.flatnonzero(~known)
        """Ids of no token: checkpoints have more rows than their vocabulary, or gaps in it."""

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        configs: Sequence[GenerationConfig],
        rows: int,
        turns: Sequence[int],
        asking: _Asking,
    ) -> list[list[Continuation]]:
        """See `GenerationMixin.generate_ids`."""
        answers: list[list[Continuation]] = [[] for _ in prompts]

        def finish(number: int, written: list[Continuation]) -> None:
            answers[number] = written
            if asking.on_done is not None:
                asking.on_done(number, written)

        with self.lock:
            for chosen in _batches(prompts, configs, rows):
                if configs[chosen[0]].beams > 1:
                    self._search(prompts, configs, chosen, asking, finish)
                else:
                    self._sample(prompts, configs, chosen, turns, asking, finish)
            self.decoder.end()
        return answers

    def _sample(
        self,
        prompts: Sequence[Sequence[int]],
        configs: Sequence[GenerationConfig],
        chosen: Sequence[int],
        turns: Sequence[int],
        asking: _Asking,
        finish: OnDone,
    ) -> None:
        """Greedy, or drawn."""
        logits = self._begin([prompts[i] for i in chosen], [configs[i] for i in chosen])
        rows: list[_Row] = []
        for number in chosen:
            prompt, config = list(prompts[number]), configs[number]
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
        self.decoder.choose(order)
        running, logits = rows, logits[order]
        while True:
            tokens = self._next_tokens(running, logits)
            for row, token in zip(running, tokens.tolist(), strict=True):
                if row.done:
                    continue
                self._put(row, token)
                if asking.on_token is not None and not (row.ended and token == self._sep):
                    asking.on_token(row.prompt, row.sample, token)
                row.done = row.done or asking.given_up(row.prompt)
                if row.done and all(other.done for other in texts[row.prompt]):
                    own = texts[row.prompt]
                    finish(row.prompt, [self._continuation(x) for x in own])
            live = [place for place, row in enumerate(running) if not row.done]
            if not live:
                break
            if 2 * len(live) <= len(running):  # fewer rows are faster, to leave some takes time
                self.decoder.choose(live)
                running, tokens = [running[place] for place in live], tokens[live]
            logits = self._known(self.decoder.append(tokens))

    def _next_tokens(
        self, rows: Sequence[_Row], logits: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.int64]:
        """The next token of each row (B,); rows of one config are looked at together."""
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
                shares = distribution(scores, config.temperature or 1.0, config.top_k, config.top_p)
                tokens[places] = draw(shares, np.array([row.random.random() for row in own]))
            else:
                tokens[places] = scores.argmax(axis=1)
        for place, row in enumerate(rows):
            if not row.done:
                row.log_probability += _log_probability(logits[place], int(tokens[place]))
                row.count += 1
        return tokens

    def _put(self, row: _Row, token: int) -> None:
        """Write a token, and see whether that was the last one."""
        if token == self._sep:
            row.done = row.ended = True
            return
        row.ids.append(token)
        if row.config.stop and len(row.ids) >= row.config.min_tokens:
            row.ended = self._stops(row)
        row.done = row.ended or len(row.ids) >= row.room

    def _stops(self, row: _Row) -> bool:
        """Whether what was written ends in one of its texts to stop at: a token, or characters."""
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
        asking: _Asking,
        finish: OnDone,
    ) -> None:
        """By beams."""
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
                if search.answer is None and asking.given_up(number):
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
        """Log-probabilities (K, V) of the tokens after the running beams."""
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
        """Logits (B, V) with −∞ for what no token is. Raises InputError if they are not finite."""
        check_finite(logits)
        if len(self.holes):
            logits = logits.copy()
            logits[:, self.holes] = -np.inf
        return logits

    def _room(self, prompt: Sequence[int], config: GenerationConfig) -> int:
        """Tokens that may be written behind a prompt."""
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
        """The answer of beams."""
        ids, total, ended = best
        score = total / max(len(ids), 1)
        ids = ids[:-1] if ended and ids[-1] == self._sep else ids
        return Continuation(ids, self._text(ids), score, ended)

    def _text(self, ids: Sequence[int]) -> str:
        tokenizer = self.model.tokenizer
        return "" if tokenizer is None else str(tokenizer.decode(ids))


class TextPieces:
    """Tokens that come one by one → pieces of their text, none of which a later token changes."""

    def __init__(self, tokenizer: RoFormerTokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._told = 0

    def add(self, token: int) -> str:
        """What can be told now, which may be nothing."""
        # A token may still change how the last one is read, as ##s does a word: it waits.
        certain = len(self._tokenizer.decode(self._ids))
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)[: max(self._told, certain)]
        piece, self._told = text[self._told :], len(text)
        return piece

    def rest(self, whole: str) -> str:
        """What is left of the whole text."""
        return whole[self._told :]


def stream(model: Any, prompt: Sequence[int], config: GenerationConfig) -> Iterator[str]:
    """Write one text behind a prompt, piece by piece: together they are its text.

    A thread writes; whoever stops reading ends it with the next token.
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


TAIL = 32
"""Tokens at a text's end in which a text to stop at is looked for."""


def _batches(
    prompts: Sequence[Sequence[int]], configs: Sequence[GenerationConfig], rows: int
) -> Iterator[list[int]]:
    """Numbers of the prompts that are written together: of like length, the longest first."""
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
    """Which of equal prompts each is: 0 of the first, 1 of the second."""
    met: Counter[tuple[int, ...]] = Counter()
    turns = []
    for prompt in prompts:
        turns.append(met[tuple(prompt)])
        met[tuple(prompt)] += 1
    return turns


def _padded(rows: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    """Rows of ids, −1 behind the shorter ones."""
    seen = np.full((len(rows), max(map(len, rows))), -1, np.int64)
    for number, row in enumerate(rows):
        seen[number, : len(row)] = row
    return seen


def _log_probability(logits: npt.NDArray[np.float32], token: int) -> float:
    """Of one token of a row (V,), in nats."""
    highest = logits.max()
    return float(logits[token] - highest - np.log(np.exp(logits - highest).sum(dtype=np.float64)))
