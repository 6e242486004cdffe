"""Acts and slots of CrossWOZ's dialogues: sets that no default of `finetune` was chosen on.

    git clone https://github.com/thu-coai/CrossWOZ
    python -m benchmarks.dialogues CrossWOZ runs/dialogues
    cd runs/dialogues
    roformer-tf finetune --train acts-train.tsv --valid acts-valid.tsv --test acts-test.tsv \
        --label-separator '|' --output acts
    roformer-tf finetune --train slots-train.jsonl --valid slots-valid.jsonl \
        --test slots-test.jsonl --output slots

acts    what an utterance does, such as Inform-酒店|Request-酒店: several labels
slots   values in the text, such as an address or a price: spans

Each has 3,000 utterances of the validation and test dialogues: one in five is for the test set, one
in ten for the validation set. Dialogues of training are not needed.
"""

import json
import random
import sys
import zipfile
from pathlib import Path

SLOTS = {"名称", "地址", "电话", "评分", "价格", "人均消费", "推荐菜", "门票", "游玩时间"}
UTTERANCES = 3000


def utterances(clone):
    """Yield text and acts [act, domain, slot, value] of each utterance."""
    for name in ("val", "test"):
        with zipfile.ZipFile(clone / "data" / "crosswoz" / f"{name}.json.zip") as archive:
            dialogues = json.loads(archive.read(archive.namelist()[0]))
        for dialogue in dialogues.values():
            for message in dialogue["messages"]:
                yield " ".join(message["content"].split()), message["dialog_act"]


def acts_row(text, acts):
    """Return a row with the acts and their domains, in alphabetical order; "" without acts."""
    labels = sorted({f"{act}-{domain}" for act, domain, _, _ in acts})
    return f"{text}\t{'|'.join(labels)}" if labels else ""


def slots_row(text, acts):
    """Return a JSON line with the first occurrence of each value; "" without any in the text."""
    spans = set()
    for act, _, slot, value in acts:
        if act in ("Inform", "Recommend") and slot in SLOTS and value and value in text:
            start = text.index(value)
            spans.add((start, start + len(value), slot))
    entities = [{"start": x, "end": y, "label": label} for x, y, label in sorted(spans)]
    return json.dumps({"text": text, "entities": entities}, ensure_ascii=False) if spans else ""


def main(clone, output):
    """Write train, valid and test of both."""
    Path(output).mkdir(parents=True, exist_ok=True)
    pairs = list(utterances(Path(clone)))
    for name, ending, header, row in (
        ("acts", "tsv", ["text\tlabels"], acts_row),
        ("slots", "jsonl", [], slots_row),
    ):
        # Of equal utterances one, so that no text of the test set is in another.
        rows = list(filter(None, {text: row(text, acts) for text, acts in pairs}.values()))
        random.Random(0).shuffle(rows)
        parts = {"test": rows[:600], "valid": rows[600:900], "train": rows[900:UTTERANCES]}
        for part, lines in parts.items():
            path = Path(output, f"{name}-{part}.{ending}")
            path.write_text("\n".join([*header, *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
