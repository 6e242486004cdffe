"""The fine-tuned models of the tests of inference."""

from tests.inference.conftest import finetuned

__all__ = ["finetuned"]
