"""Settings of the property tests here."""

from hypothesis import settings

# The first lone surrogate loads jieba's dictionary, which takes a second.
settings.register_profile("tokenizers", deadline=None)
settings.load_profile("tokenizers")
