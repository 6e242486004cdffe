"""Settings of text generation, which are flags of commands. This module does not import Keras."""

from dataclasses import dataclass
from typing import Any

from roformer_tf.errors import MAX_SEED, InputError, check_numbers

# Texts that are generated at the same time by default.
ROWS = 64


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Settings of text generation. Default: greedy, the most probable token at each step."""

    max_tokens: int = 128
    """Maximum number of new tokens."""
    min_tokens: int = 0
    """Minimum number of new tokens: before them neither [SEP] nor --stop ends the text."""
    samples: int = 1
    """Texts to generate for each prompt; more than one means sampling."""
    temperature: float | None = None
    """Sample from logits divided by this: below 1 closer to greedy, above 1 more diverse."""
    top_k: int | None = None
    """Sample from this number of most probable tokens."""
    top_p: float | None = None
    """Sample from the smallest set of most probable tokens with this total probability."""
    repetition_penalty: float = 1.0
    """Above 1, tokens that are already in the text become less likely."""
    beams: int = 1
    """Number of beams of a beam search. Default: no beam search."""
    length_penalty: float | None = None
    """Compare beams by log-probability / length^penalty, as transformers does. Default: by
    log-probability, as bert4keras does."""
    stop: tuple[str, ...] = ()
    """Texts after which generation ends, such as 。, as well as at [SEP]."""
    seed: int = 0
    """Seed of sampling: the same prompt, settings and seed give the same text."""

    def __post_init__(self) -> None:
        check_numbers(self, "max_tokens", "samples", "beams", "top_k", at_least=1)
        check_numbers(self, "min_tokens", at_least=0, at_most=self.max_tokens, hint="max_tokens")
        check_numbers(self, "temperature", "repetition_penalty", above=0, example="1")
        hint = "such as 0.95: the fraction of the probability to sample from"
        check_numbers(self, "top_p", above=0, at_most=1, hint=hint)
        if self.beams > 1 and self.sampled:
            raise InputError(
                f"beams is {self.beams}, but several samples, a temperature, top_k and top_p are "
                "about sampling. A beam search does not sample: remove one of the two."
            )
        if self.length_penalty is not None and self.beams == 1:
            raise InputError("length_penalty is about beam search, of two beams or more.")
        check_numbers(self, "seed", at_least=0, at_most=MAX_SEED)
        # A single text would be taken for a text of each of its characters.
        stop: Any = self.stop
        object.__setattr__(self, "stop", (stop,) if isinstance(stop, str) else tuple(stop))
        if not all(self.stop):
            raise InputError("stop contains an empty text. Give a text such as 。.")

    @property
    def width(self) -> int:
        """How many texts are generated from a prompt at the same time."""
        return max(self.samples, self.beams)

    @property
    def sampled(self) -> bool:
        """Whether tokens are sampled."""
        settings = (self.temperature, self.top_k, self.top_p)
        return self.samples > 1 or any(x is not None for x in settings)
