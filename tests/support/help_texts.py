"""The texts of the help pages, collected from a translator while all pages are rendered.

`make translations` prints them as a Python file for pybabel, which cannot extract docstrings of
settings.
"""

from typing import Any

from roformer_tf import cli
from roformer_tf.translation import Message, Translator
from roformer_tf.usage import help_page

PAGES = [(name, ()) for name in cli.COMMANDS] + [
    (name, (f"--{flag}",)) for name, command in cli.COMMANDS.items() for flag in command.variants
]
"""Commands, and the flags that select other settings."""


class Collector(Translator):
    """An English translator that records the texts to translate."""

    def __init__(self) -> None:
        super().__init__("en")
        self.texts: dict[str, None] = {}  # in order

    def __call__(self, text: str, **values: Any) -> str:
        self.texts[text.template if isinstance(text, Message) else text] = None
        return super().__call__(text, **values)


def help_texts() -> list[str]:
    """All texts of the list of commands, of --help and of --help-all."""
    collector = Collector()
    cli._usage("", collector)
    for name, flags in PAGES:
        for everything in (True, False):
            settings, usual = cli.load_settings(name, flags), cli.COMMANDS[name].usual
            help_page(name, settings, usual, everything, collector)
    return list(collector.texts)


if __name__ == "__main__":
    print("\n".join(f"_({text!r})" for text in help_texts() if text))
