"""When two texts are the same text, whatever file they stand in."""

import unicodedata
from collections.abc import Iterable
from hashlib import blake2b


def text_key(texts: Iterable[str]) -> bytes:
    """16 bytes that equal texts share: equal but for white space and the width of characters."""
    plain = ("".join(unicodedata.normalize("NFKC", text).split()) for text in texts)
    return blake2b("\0".join(plain).encode(errors="surrogatepass"), digest_size=16).digest()
