"""Tests of the service of a question answering model."""

from tests.support.service_app import create_task_app, served_task


def test_the_service_accepts_field_names_and_pairs(finetuned, running, send):
    served = served_task(finetuned("question-answering"))
    context = "今天天气很好我们去公园学习"
    with running(create_task_app(served)) as address:
        bodies = (
            {"question": "天气", "context": context},
            {"text": ["天气", context]},
            {"texts": [["天气", context]]},
        )
        results = [send(address, "/predict", body) for body in bodies]
        assert results[0] == results[1] == results[2]
        status, content = results[0]
        (prediction,) = content["predictions"]
        assert (status, set(prediction)) == (200, {"answer", "start", "score"})
        assert context[prediction["start"] :].startswith(prediction["answer"])
        invalid = ({"question": "好"}, {}, bodies[0] | bodies[1], {"question": " ", "context": "x"})
        assert {send(address, "/predict", body)[0] for body in invalid} == {422}
