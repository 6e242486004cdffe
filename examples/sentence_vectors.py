"""Which of some sentences is nearest to the first: python examples/sentence_vectors.py CHECKPOINT

CHECKPOINT is a sim-char model, such as chinese_roformer-sim-char-base.
"""

import sys

from roformer_tf import RoFormerForSentenceSimilarity

sentences = ["今天天气很好，适合出门。", "天气不错，可以去公园走走。", "这家公司发布了新的手机。"]
model = RoFormerForSentenceSimilarity.from_pretrained(sys.argv[1])
first, *rest = model.embed(sentences)  # of length 1, so that products are cosines
for sentence, vector in zip(sentences[1:], rest, strict=True):
    print(f"{first @ vector:.3f}  {sentence}")
