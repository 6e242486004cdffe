"""Matching halves of real articles, with the evidence beyond token 512 of a row.

A is the first half of an article, B its second half, and C the second half of another article
that is similar to A. Each is preceded by different random reviews, which carry no information.
Each text is encoded alone. Its first 256 tokens are only reviews; its first 512 or 768 tokens
contain more and more of the article. A row of two texts would have 512, 1,024 or 1,536 tokens.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.positions import seed_interval
from roformer_tf.files import temporary_file, write_text
from roformer_tf.tasks.metrics import bootstrap, mean
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

# Maximum tokens of each text, including [CLS] and [SEP].
TEXT_LENGTHS = (256, 512, 768)
# Tokens of reviews before the article: more than the 254 of a text cut to 256 tokens.
REVIEW_TOKENS = 280
# Maximum tokens of half an article, so that it fits into 768 tokens with the reviews.
MAX_HALF_TOKENS = 480
# Minimum characters of an article.
MIN_CHARACTERS = 300
# Articles of the validation and test sets, one triple each; the rest is for training.
SIZES = {"valid": 300, "test": 400}
# Pairs of each training article, each with another cut and other reviews.
VERSIONS = 4
# Range of the cut in training articles, as a fraction; test articles are cut in the middle.
CUTS = (0.35, 0.65)
# File with (N,) bool: test triples with a text that is truncated at 512 tokens.
LONG = "long.npy"


# News and reviews → files


def split_articles(news: Sequence[str]) -> dict[str, list[str]]:
    """Split the articles that are long enough into train, valid and test."""
    order = np.random.default_rng(0).permutation(len(news)).tolist()
    articles = [news[i] for i in order if len(_joined(news[i])) >= MIN_CHARACTERS]
    splits = {}
    for name, size in SIZES.items():
        splits[name], articles = articles[:size], articles[size:]
    return {"train": articles, **splits}


def write_start_corpus(corpus: Path, target: Path) -> None:
    """Write the corpus for pretraining, without the articles of valid and test."""
    texts = _texts(corpus)
    splits = split_articles([text for text in texts if _is_news(text)])
    excluded = {text for name in SIZES for text in splits[name]}
    _write_jsonl(target, ({"text": text} for text in texts if text not in excluded))


def write_examples(corpus: Path, folder: Path, vocabulary: Path) -> None:
    """Write training pairs A, B, and validation and test triples A, B, C.

    A split's triples are in NAME.jsonl. NAME.txt has their texts, one a line: all A, all B, all C.
    """
    texts, tokenizer = _texts(corpus), RoFormerTokenizer.from_pretrained(vocabulary)
    splits = split_articles([text for text in texts if _is_news(text)])
    reviews = [text for text in texts if not _is_news(text)]
    rng = np.random.default_rng(0)
    for name in SIZES:
        triples = list(_triples(splits[name], reviews, tokenizer, rng))
        _write_jsonl(folder / f"{name}.jsonl", triples)
        lines = "".join(f"{triple[column]}\n" for column in "ABC" for triple in triples)
        write_text(folder / f"{name}.txt", lines)
        if name == "test":
            counts = [[len(tokenizer.offsets(text)) for text in x.values()] for x in triples]
            with temporary_file(folder / LONG) as temporary, temporary.open("wb") as file:
                np.save(file, np.max(counts, axis=1) > TEXT_LENGTHS[1] - 2)
    _write_jsonl(folder / "train.jsonl", _pairs(splits["train"], reviews, tokenizer, rng))


def most_similar(firsts: Sequence[str], seconds: Sequence[str]) -> list[int]:
    """Return, for each first half, the index of the most similar second half of another article.

    The similarity is the cosine of TF-IDF over character unigrams and bigrams. So both articles
    have a similar subject, which makes the negative hard; a random article would be too easy.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    counting = TfidfVectorizer(analyzer="char", ngram_range=(1, 2), sublinear_tf=True)
    features = counting.fit_transform([*firsts, *seconds])
    cosines = (features[: len(firsts)] @ features[len(firsts) :].T).toarray()
    np.fill_diagonal(cosines, -1)
    return [int(number) for number in np.argmax(cosines, axis=1)]


def _triples(
    articles: Sequence[str],
    reviews: Sequence[str],
    tokenizer: RoFormerTokenizer,
    rng: np.random.Generator,
) -> Iterator[dict[str, str]]:
    """Yield one triple for each article."""
    firsts, seconds = zip(*(_halves(text, 0.5, tokenizer) for text in articles), strict=True)
    for first, second, other in zip(firsts, seconds, most_similar(firsts, seconds), strict=True):
        halves = first, second, seconds[other]
        yield {
            column: _random_reviews(reviews, tokenizer, rng) + half
            for column, half in zip("ABC", halves, strict=True)
        }


def _pairs(
    articles: Sequence[str],
    reviews: Sequence[str],
    tokenizer: RoFormerTokenizer,
    rng: np.random.Generator,
) -> Iterator[dict[str, str]]:
    """Yield `VERSIONS` pairs for each article."""
    for text in articles:
        for _ in range(VERSIONS):
            halves = _halves(text, rng.uniform(*CUTS), tokenizer)
            first, second = (_random_reviews(reviews, tokenizer, rng) + half for half in halves)
            yield {"A": first, "B": second}


def _halves(text: str, fraction: float, tokenizer: RoFormerTokenizer) -> tuple[str, str]:
    """Cut an article at this fraction; return the last `HALF` tokens before and first after it."""
    text = _joined(text)
    cut = int(fraction * len(text))
    before = tokenizer.offsets(text[:cut])[-MAX_HALF_TOKENS:]
    after = tokenizer.offsets(text[cut:])[:MAX_HALF_TOKENS]
    return text[before[0][0] : cut], text[cut : cut + after[-1][1]]


def _random_reviews(
    reviews: Sequence[str], tokenizer: RoFormerTokenizer, rng: np.random.Generator
) -> str:
    """Return random reviews of `REVIEW_TOKENS` tokens in total."""
    text = ""
    while len(offsets := tokenizer.offsets(text)) < REVIEW_TOKENS:
        text += reviews[int(rng.integers(len(reviews)))]
    return text[: offsets[REVIEW_TOKENS - 1][1]]


def _is_news(text: str) -> bool:
    """Return whether a text is an article: reviews have one line."""
    return "\n" in text


def _joined(text: str) -> str:
    return text.replace("\n", "")


def _texts(corpus: Path) -> list[str]:
    return [json.loads(line)["text"] for line in corpus.read_text(encoding="utf-8").splitlines()]


def _write_jsonl(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    with (
        temporary_file(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as file,
    ):
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


# Vectors → accuracy


def right_triples(vectors: np.ndarray) -> np.ndarray:
    """Return whether each A is nearer to B than to C, (N,) bool, for vectors (3 N, H)."""
    first, right, wrong = vectors.reshape(3, -1, vectors.shape[-1])
    actual: np.ndarray = (first * right).sum(axis=-1) > (first * wrong).sum(axis=-1)
    return actual


def match_percentiles(vectors: np.ndarray) -> np.ndarray:
    """Return, for each A, the fraction of other articles' second halves less similar than B."""
    first, right, _ = vectors.reshape(3, -1, vectors.shape[-1])
    cosines = first @ right.T  # (N, N), matching pairs on the diagonal
    return (cosines < np.diagonal(cosines)[:, None]).sum(axis=1) / (len(first) - 1)


def mean_with_interval(values: np.ndarray) -> str:
    """Return the mean of values (seeds, triples) in percent, with a 95 % bootstrap interval.

    The bootstrap resamples triples; each triple's value is its mean over the seeds.
    """
    each = values.mean(axis=0)
    ends = bootstrap(lambda weights: {"mean": mean(each, weights)}, len(each))["mean"]
    shown = "—" if ends is None else f"[{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]"
    return f"{100 * each.mean():.1f} {shown}"


def accuracy_table(
    right: Mapping[int, np.ndarray], percentiles: Mapping[int, np.ndarray]
) -> list[str]:
    """Return the lines of a table of accuracies in percent, one line for each length.

    Both arguments map a length to values (seeds, triples): those of `right_triples` and of
    `match_percentiles`.
    """
    lines = [
        "| rows of | seeds | mean [over triples] | any other article as C |",
        "| --- " * 4 + "|",
    ]
    for length, actual in right.items():
        seeds = ", ".join(f"{100 * item.mean():.1f}" for item in actual)
        cells = (
            f"{2 * length:,}",
            seeds,
            mean_with_interval(actual),
            mean_with_interval(percentiles[length]),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def gain_lines(right: Mapping[int, np.ndarray], chosen: np.ndarray) -> Iterator[str]:
    """Yield the gain of each length over the previous one in points, on the chosen triples (N,).

    It has two paired intervals: over triples (bootstrap) and over seeds (Student's t).
    """
    for short, long in pairwise(right):
        gains = (right[long].astype(float) - right[short])[:, chosen]  # (S, n)
        line = f"{2 * long:,} − {2 * short:,}: {mean_with_interval(gains)}"
        seeds = gains.mean(axis=1)
        if len(seeds) > 1:
            low, high = seed_interval(seeds)
            line += f"; over seeds [{100 * low:.1f}, {100 * high:.1f}]"
        yield line
