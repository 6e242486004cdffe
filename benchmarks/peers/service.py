"""A minimal service around transformers: FastAPI, one request at a time.

    python benchmarks/peers/service.py torch|onnx FOLDER PORT

torch: compiled, bfloat16. onnx: exported and quantized by optimum (int8, dynamic, per channel,
AVX512-VNNI), run by its ONNX Runtime model. Both warm up before they listen. This script does not
need the package.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastapi
import torch
import uvicorn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

LENGTHS = (5, 20, 60, 150, 200)


def by_torch(folder: str, tokenizer: Any) -> Callable[[str], list[float]]:
    """Return a function that predicts with a compiled model in bfloat16."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.bfloat16).eval()
    call = torch.compile(model, dynamic=True)

    def scores_of(text: str) -> list[float]:
        with torch.inference_mode():
            logits = call(**tokenizer(text, return_tensors="pt", truncation=True)).logits
        probabilities: list[float] = logits[0].float().softmax(-1).tolist()
        return probabilities

    return scores_of


def by_onnx(folder: str, tokenizer: Any) -> Callable[[str], list[float]]:
    """Return a function that predicts with an int8 ONNX export."""
    from optimum.onnxruntime import ORTModelForSequenceClassification, ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig

    with tempfile.TemporaryDirectory() as name:
        exported, quantized = Path(name) / "exported", Path(name) / "rounded"
        ORTModelForSequenceClassification.from_pretrained(folder, export=True).save_pretrained(
            exported
        )
        settings = AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=True)
        ORTQuantizer.from_pretrained(exported).quantize(
            save_dir=quantized, quantization_config=settings
        )
        model = ORTModelForSequenceClassification.from_pretrained(
            quantized, file_name="model_quantized.onnx"
        )

    def scores_of(text: str) -> list[float]:
        arguments = tokenizer(text, return_tensors="np", truncation=True)
        probabilities: list[float] = torch.tensor(model(**arguments).logits[0]).softmax(-1).tolist()
        return probabilities

    return scores_of


def main(kind: str, folder: str, port: str) -> None:
    """Serve until the process is ended."""
    tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=512)
    predict_scores = {"torch": by_torch, "onnx": by_onnx}[kind](folder, tokenizer)
    for length in LENGTHS:
        predict_scores("好" * length)
    app = fastapi.FastAPI()

    # async, so that requests do not run in threads, which would compete for the cores
    @app.post("/predict")
    async def predict(request: dict[str, str]) -> dict[str, Any]:
        scores = predict_scores(request["text"])
        label = max(range(len(scores)), key=scores.__getitem__)
        return {"predictions": [{"label": str(label), "scores": scores}]}

    print(f"serving at http://127.0.0.1:{port}", flush=True)
    uvicorn.run(app, port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
