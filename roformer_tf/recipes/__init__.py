"""Recipes: settings of `pretrain` and `finetune`, and architectures, usable by their names.

`--config base` reads base.yaml of this folder, `--architecture base` reads base.json.
"""

from pathlib import Path

from roformer_tf.errors import InputError
from roformer_tf.translation import Message

FOLDER = Path(__file__).parent


def find_recipe(name: str | Path, suffix: str = ".yaml") -> Path:
    """The file that `--config` or `--architecture` (suffix ".json") names: a path or a recipe.

    A word without a suffix or a folder is the name of a recipe, unless there is such a file.
    Raises InputError for a name that no recipe has.
    """
    path = Path(name)
    if path.suffix or path.name != str(name) or path.exists():
        return path
    recipe = FOLDER / f"{name}{suffix}"
    if not recipe.exists():
        known = ", ".join(sorted(file.stem for file in FOLDER.glob(f"*{suffix}")))
        raise InputError(
            Message(
                "there is no recipe {name!r}. Give a path to a {suffix} file, or one of the "
                "recipes {known}.",
                name=str(name),
                suffix=suffix,
                known=known,
            )
        )
    return recipe
