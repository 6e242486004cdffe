"""Settings of `make poems`, which are its flags."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrain.poems.forms import BY_TOKEN, forms_from
from roformer_tf.errors import InputError


@dataclass(frozen=True)
class Poems:
    """Train a small model on Tang and Song verse, generate poems, and measure them."""

    corpus: Path | None = None
    """Folder with the poems of chinese-poetry (poet.tang.0.json, …). Default: downloaded with
    npm."""
    output: Path = Path("runs/poems")
    """Folder of the run: corpus, rows, `model/`, curves, `poems.html`, `poems.json`."""
    minutes: float = 9.0
    """Training time. Reading, counting, generating and measuring take three to four more."""
    steps: int | None = None
    """Steps of training, which give the same model on every machine. Default: estimated from
    --minutes with a short run."""
    first_lines: tuple[str, ...] = ()
    """First lines, of five or seven characters, to continue. Default: those of held-out poems."""
    form: str | None = None
    """Show poems of this form only: wujue, qijue, wulv or qilv. Default: all four."""
    rhyme: str | None = None
    """Show poems with this rhyme only, a final as pypinyin spells it: ang, ou, van (üan), …"""
    samples: int = 1000
    """Poems to generate and measure."""
    temperature: float = 0.8
    """Sampling temperature; below 1, likely characters are preferred."""
    top_p: float = 0.95
    """Sample from the likeliest characters that together have this probability."""
    seed: int = 0
    """Seed of training and sampling."""
    config: Path = Path(__file__).parent / "training.yaml"
    """Flags of `pretrain`."""
    length: int = 104
    """Tokens of a sequence; two 五律, or a 七律 and a 七絕, fill it."""
    pilot_steps: int = 30
    """Steps of the short run that measures the speed of this machine."""

    def __post_init__(self) -> None:
        if self.minutes <= 0:
            raise InputError(f"--minutes is {self.minutes}, but must be above 0.")
        if self.samples < 1:
            raise InputError(f"--samples is {self.samples}, but must be at least 1.")
        if self.form not in (None, *BY_TOKEN):
            raise InputError(f"--form is {self.form!r}, but must be one of {', '.join(BY_TOKEN)}.")
        for line in self.first_lines:
            if not forms_from(line):
                raise InputError(
                    f"--first-lines: {line!r} is not a line of five or seven Chinese characters."
                )

    @property
    def text(self) -> Path:
        """The poems, one a line."""
        return self.output / "corpus.jsonl"

    @property
    def vocab(self) -> Path:
        """Their characters."""
        return self.output / "characters.txt"

    @property
    def rows(self) -> Path:
        """The prepared sequences."""
        return self.output / "rows"

    @property
    def sampling(self) -> dict[str, Any]:
        """Settings of sampling."""
        return {"temperature": self.temperature, "top_p": self.top_p}
