"""Print the lowest allowed version of every dependency in pyproject.toml as pip constraints.

Run it where roformer-tf is installed, with or without its dependencies. Packages that only tests
need are not constrained.
"""

import re
from importlib.metadata import requires

TESTING = ("dev", "hf")


def oldest(requirements: list[str]) -> list[str]:
    """`numpy>=1.26,<3` → `numpy==1.26`. Requirements of the extras in `TESTING` are skipped."""
    actual = set()
    for requirement in requirements:
        name, marker = (requirement + ";").split(";")[:2]
        if any(f'extra == "{extra}"' in marker for extra in TESTING):
            continue
        lowest = re.fullmatch(r"([\w.-]+)\s*[^>]*>=([\d.]+).*", name.strip())
        assert lowest, f"{requirement} has no lowest version"
        actual.add(f"{lowest[1]}=={lowest[2]}")
    return sorted(actual)


if __name__ == "__main__":
    print("\n".join(oldest(requires("roformer-tf") or [])))
