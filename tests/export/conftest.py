"""Share the fine-tuned models of tests/inference."""

from tests.inference.conftest import finetuned

__all__ = ["finetuned"]
