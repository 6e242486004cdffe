"""Print the lowest version of every dependency that pyproject.toml allows, as constraints for pip.

Run where roformer-tf is installed, with or without its dependencies. What only the tests need is
left to pip.
"""

import re
from importlib.metadata import requires

TESTING = ("dev", "hf")


def oldest(requirements: list[str]) -> list[str]:
    """`numpy>=1.26,<3` → `numpy==1.26`; requirements of `TESTING` are skipped."""
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
