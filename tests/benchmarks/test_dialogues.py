"""Acts and slots of dialogues as files for fine-tuning."""

import json
import zipfile

from benchmarks import dialogues

ACTS = [
    ["Inform", "酒店", "价格", "805元"],
    ["Inform", "酒店", "评分", "4.7分"],
    ["Inform", "酒店", "酒店设施", "wifi"],
    ["Request", "酒店", "地址", ""],
]


def test_rows_have_the_acts_and_the_values_of_an_utterance():
    text = "价格805元，评分4.7分，有wifi，地址呢？"
    assert dialogues.acts_row(text, ACTS) == f"{text}\tInform-酒店|Request-酒店"
    row = json.loads(dialogues.slots_row(text, ACTS))
    values = [(text[x["start"] : x["end"]], x["label"]) for x in row["entities"]]
    assert (row["text"], values) == (text, [("805元", "价格"), ("4.7分", "评分")])
    assert dialogues.slots_row("地址呢？", ACTS[3:]) == dialogues.acts_row("嗯。", []) == ""


def test_sets_share_no_text(tmp_path):
    folder = tmp_path / "data" / "crosswoz"
    folder.mkdir(parents=True)
    for name, start in (("val", 0), ("test", 600)):  # 400 utterances are in both
        messages = [
            {"content": f"第{i}家 评分4.7分", "dialog_act": ACTS[:2]}
            for i in range(start, start + 1000)
        ]
        with zipfile.ZipFile(folder / f"{name}.json.zip", "w") as archive:
            content = {"1": {"messages": messages}}
            archive.writestr(f"{name}.json", json.dumps(content, ensure_ascii=False))
    dialogues.main(tmp_path, tmp_path / "out")
    for pattern in ("acts-*.tsv", "slots-*.jsonl"):
        parts = [
            x.read_text(encoding="utf-8").splitlines() for x in (tmp_path / "out").glob(pattern)
        ]
        texts = [line for part in parts for line in part if line != "text\tlabels"]
        assert len(texts) == len(set(texts)) == 1600
