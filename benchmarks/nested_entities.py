"""Derive nested entities from flat ones by rule, and evaluate a model on each nesting level.

    python -m benchmarks.nested_entities make FOLDER OUTPUT
    python -m benchmarks.nested_entities score MODEL OUTPUT/test.jsonl

`make` reads train, valid and test.conll.gz of FOLDER, with LOC tags, and adds two labels:

AREA   several adjacent places: 河北省 + 石家庄市
ORG    a place or an AREA followed by a word for an organization: 北京 + 市委, 上海 + 电视台

So an ORG may contain an AREA, which contains places. One sentence in five is for the test set, one
in ten for the validation set.
"""

import gzip
import json
import re
import sys
from collections import Counter
from pathlib import Path

AFTER_PLACE = re.compile(
    r"[省市县区州镇]?(?:委(?![员托屈内派婉])|党委|政府|人大|政协|人民政府|人民法院|人民检察院|"
    r"公安局|军区|大使馆|总领事馆|外交部|国防部|财政部|议会|国会|央行|法院|当局|代表团)|"
    r"[一-龥]{0,4}?(?:大学|学院|科学院|公司|集团|银行|出版社|日报|晚报|电视台|研究所|医院|协会|委员会)"
)


def flat(lines):
    """Return the text and the entities [label, start, end] of a CoNLL sentence."""
    units, tags = zip(*(line.split() for line in lines), strict=True)
    entities = []
    for i, tag in enumerate(tags):
        mark, _, label = tag.partition("-")
        if mark == "B":
            entities.append([label, i, i + 1])
        elif mark == "I":
            entities[-1][2] = i + 1
    return "".join(units), entities


def nested(text, entities):
    """Return the entities and the outer entities that the rule adds."""
    outer = []
    places = [entity for entity in entities if entity[0] == "LOC"]
    covered = [range(start, end) for _, start, end in entities]
    while places:
        _, start, end = places.pop(0)
        several = False
        while places and places[0][1] == end:
            end, several = places.pop(0)[2], True
        if several:
            outer.append(["AREA", start, end])
        match = AFTER_PLACE.match(text, end)
        if match and not any(i in span for span in covered for i in range(end, match.end())):
            outer.append(["ORG", start, match.end()])
    return entities + outer


def make(folder, output):
    """Write train, valid and test.jsonl."""
    files = [Path(folder) / f"{name}.conll.gz" for name in ("train", "valid", "test")]
    contents = [gzip.decompress(file.read_bytes()).decode().strip() for file in files]
    sentences = [flat(x.splitlines()) for content in contents for x in content.split("\n\n")]
    sets: dict[str, list] = {"train": [], "valid": [], "test": []}
    for number, (text, entities) in enumerate(sentences):
        name = "test" if number % 5 == 0 else "valid" if number % 10 == 1 else "train"
        spans = [
            dict(zip(("label", "start", "end"), x, strict=True)) for x in nested(text, entities)
        ]
        sets[name].append({"text": text, "entities": spans})
    Path(output).mkdir(parents=True, exist_ok=True)
    for name, rows in sets.items():
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (Path(output) / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        spans = [levels(map(as_tuple, row["entities"])) for row in rows]
        counts = Counter(level for each in spans for level in each.values())
        print(f"{name}: {len(rows):,} sentences, entities by level {dict(sorted(counts.items()))}")


def as_tuple(entity):
    """Return label, start and end."""
    return entity["label"], entity["start"], entity["end"]


def levels(entities):
    """Map each entity to the number of entities that contain it (0: outermost)."""
    spans = set(entities)
    return {x: sum(y[1] <= x[1] and x[2] <= y[2] and y[1:] != x[1:] for y in spans) for x in spans}


def score(model, path):
    """Print counts and F1 by level; predicted entities get their levels from the prediction."""
    import roformer_tf

    rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    predictions = roformer_tf.load(model)([row["text"] for row in rows])
    right: Counter = Counter()
    gold: Counter = Counter()
    predicted: Counter = Counter()
    for row, prediction in zip(rows, predictions, strict=True):
        gold_levels = levels(map(as_tuple, row["entities"]))
        predicted_levels = levels(map(as_tuple, prediction["spans"]))
        nests = any(gold_levels.values())
        for counts, spans in ((gold, gold_levels), (predicted, predicted_levels)):
            for level in spans.values():
                counts[f"level {level}"] += 1
                counts["all"] += 1
                counts["all, of sentences with nested entities"] += nests
        for span, level in gold_levels.items():
            if span in predicted_levels:
                right[f"level {level}"] += 1
                right["all"] += 1
                right["all, of sentences with nested entities"] += nests
    for name in sorted(gold):
        f1 = 2 * right[name] / (gold[name] + predicted[name])
        print(
            f"{name}: {right[name]} of {gold[name]} found, {predicted[name]} predicted, F1 {f1:.4f}"
        )


if __name__ == "__main__":
    command = {"make": make, "score": score}.get(sys.argv[1]) if len(sys.argv) == 4 else None
    if command is None:
        sys.exit(__doc__)
    command(*sys.argv[2:])
