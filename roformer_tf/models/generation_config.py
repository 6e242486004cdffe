"""How a text is written. No Keras here: flags of a command are made of it."""

from dataclasses import dataclass

from roformer_tf.errors import MAX_SEED, InputError, check_numbers


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How a text is written: the likeliest token each time, unless one of these says otherwise."""

    max_tokens: int = 128
    """Most tokens to write."""
    min_tokens: int = 0
    """Fewest tokens to write: [SEP] is not written before, and no --stop heeded."""
    samples: int = 1
    """Texts to draw for each prompt; more than one means sampling."""
    temperature: float | None = None
    """Sample, from what the model expects divided by this before the softmax: below 1 surer, above
    1 bolder."""
    top_k: int | None = None
    """Sample, from so many likeliest tokens."""
    top_p: float | None = None
    """Sample, from as few of the likeliest tokens as have this share of the probability."""
    repetition_penalty: float = 1.0
    """Above 1, tokens that stand in the text already become less likely."""
    beams: int = 1
    """Beam search with so many beams: a likelier text than the likeliest tokens make."""
    length_penalty: float | None = None
    """Compare texts of beams by log-probability / length^penalty, as transformers does; unset, by
    log-probability, as bert4keras does."""
    stop: tuple[str, ...] = ()
    """End a text behind one of these, such as 。, as well as at [SEP]."""
    seed: int = 0
    """Of sampling: the same prompt, settings and seed give the same text."""

    def __post_init__(self) -> None:
        check_numbers(self, "max_tokens", "samples", "beams", "top_k", at_least=1)
        check_numbers(self, "min_tokens", at_least=0)
        if self.min_tokens > self.max_tokens:
            raise InputError(
                f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}."
            )
        check_numbers(self, "temperature", "repetition_penalty", above=0, hint="such as 1")
        hint = "such as 0.95: the fraction of the probability to sample from"
        check_numbers(self, "top_p", above=0, at_most=1, hint=hint)
        if self.beams > 1 and self.sampled:
            raise InputError(
                f"beams is {self.beams}, but samples, temperature, top_k and top_p draw at random, "
                "which beam search does not. Give the one or the others."
            )
        if self.length_penalty is not None and self.beams == 1:
            raise InputError("length_penalty compares the texts of beams: give beams as well.")
        check_numbers(self, "seed", at_least=0, at_most=MAX_SEED)
        if not all(self.stop):
            raise InputError("stop holds an empty text. Give what ends a text, such as 。.")

    @property
    def sampled(self) -> bool:
        """Whether tokens are drawn at random."""
        given = (self.temperature, self.top_k, self.top_p)
        return self.samples > 1 or any(x is not None for x in given)
