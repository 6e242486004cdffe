"""Tests with official clients of other services, over a real socket (`make test-clients`)."""

import numpy as np
import pytest

from roformer_tf import load
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.serving.service import open_service
from roformer_tf.serving.settings import ApiConfig, ServeConfig
from tests.support.random_model import random_causal_lm

pytestmark = [pytest.mark.clients, pytest.mark.usefixtures("eager_steps")]

TEXTS = ["今天天气很好", "公园", "我们去公园学习", "天气"]
QUERY = "今天天气"
KEY = "secret"


@pytest.fixture(scope="module")
def served(running):
    """served(*models, **settings) → a context: the address of a service that needs a key."""

    def serve(*models, **settings):
        api, models = ApiConfig(api_key=KEY), tuple(map(str, models))
        app = open_service(ServeConfig(model=models, api=api, **settings))
        return running(app, api=api)

    return serve


def url(address):
    return "http://{}:{}".format(*address)


@pytest.fixture(scope="module")
def vectors(served, released, eagerly):
    with eagerly(), served(released("sim_char"), pooling="pooler") as at:
        yield url(at)


@pytest.fixture(scope="module")
def want(released, eagerly):
    with eagerly():
        yield VectorSettings().open(released("sim_char")).embed(TEXTS)


def test_openai_embeds(vectors, want):
    import openai

    client = openai.OpenAI(base_url=f"{vectors}/v1", api_key=KEY)
    response = client.embeddings.create(model="any", input=TEXTS)  # base64 by default
    actual = [item.embedding for item in response.data]
    np.testing.assert_allclose(actual, want, rtol=0, atol=1e-6)
    assert response.usage.total_tokens == sum(len(text) + 2 for text in TEXTS)
    truncated = (
        client.embeddings.create(model="any", input=TEXTS[0], dimensions=5).data[0].embedding
    )
    expected_truncated = want[0, :5] / np.linalg.norm(want[0, :5])
    np.testing.assert_allclose(truncated, expected_truncated, rtol=0, atol=1e-6)
    with pytest.raises(openai.BadRequestError, match="the text is empty"):
        client.embeddings.create(model="any", input="")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{vectors}/v1", api_key="x").models.list()
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id


def test_langchain_embeds(vectors, want):
    from langchain_openai import OpenAIEmbeddings

    settings = {"model": "any", "base_url": f"{vectors}/v1", "api_key": KEY}
    embeddings = OpenAIEmbeddings(**settings, check_embedding_ctx_length=False)
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS), want, rtol=0, atol=1e-6)
    np.testing.assert_allclose(embeddings.embed_query(TEXTS[0]), want[0], rtol=0, atol=1e-6)


def test_haystack_embeds(vectors, want, monkeypatch):
    from haystack import Document
    from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    settings = {"model": "any", "api_base_url": f"{vectors}/v1"}
    texts = OpenAIDocumentEmbedder(**settings, progress_bar=False)
    documents = texts.run([Document(content=text) for text in TEXTS])["documents"]
    np.testing.assert_allclose([x.embedding for x in documents], want, rtol=0, atol=1e-6)
    query = OpenAITextEmbedder(**settings).run(TEXTS[0])["embedding"]
    np.testing.assert_allclose(query, want[0], rtol=0, atol=1e-6)


def test_llama_index_embeds(vectors, want):
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    model = OpenAILikeEmbedding(model_name="any", api_base=f"{vectors}/v1", api_key=KEY)
    np.testing.assert_allclose(model.get_text_embedding_batch(TEXTS), want, rtol=0, atol=1e-6)
    np.testing.assert_allclose(model.get_query_embedding(TEXTS[0]), want[0], rtol=0, atol=1e-6)


def test_chroma_searches(vectors, want, monkeypatch):
    """Chroma's OpenAI function embeds documents and queries by our service."""
    chromadb = pytest.importorskip("chromadb")
    from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    function = OpenAIEmbeddingFunction(model_name="any", api_base=f"{vectors}/v1")
    np.testing.assert_allclose(function(TEXTS), want, rtol=0, atol=1e-6)
    client = chromadb.EphemeralClient()
    settings = {"embedding_function": function, "configuration": {"hnsw": {"space": "cosine"}}}
    texts = client.create_collection("texts", **settings)
    texts.add(ids=list("abcd"), documents=TEXTS)
    (ids,), (distances,) = map(
        texts.query(query_texts=[TEXTS[0]], n_results=4).get, ("ids", "distances")
    )
    cosines = want @ want[0]
    assert [*ids] == ["abcd"[i] for i in np.argsort(-cosines)]
    np.testing.assert_allclose(distances, 1 - np.sort(cosines)[::-1], atol=1e-5)


def test_clients_choose_one_of_several_models(served, released, finetuned, want):
    import cohere
    import openai

    models, names = (released("sim_char"), finetuned("pair")), ("vectors", "pairs")
    with served(*models, names=names, pooling=None) as at:
        client = openai.OpenAI(base_url=f"{url(at)}/v1", api_key=KEY)
        assert [x.id for x in client.models.list()] == [*names]
        assert client.models.retrieve("pairs").id == "pairs"
        response = client.embeddings.create(model="vectors", input=TEXTS)
        assert response.model == "vectors"
        actual = [x.embedding for x in response.data]
        np.testing.assert_allclose(actual, want, rtol=0, atol=1e-6)
        with pytest.raises(openai.NotFoundError, match=r"no model 'any'; .* vectors, pairs"):
            client.embeddings.create(model="any", input=TEXTS)
        model_client = openai.OpenAI(base_url=f"{url(at)}/models/vectors/v1", api_key=KEY)
        assert model_client.embeddings.create(model="any", input=TEXTS).data == response.data
        reranker = cohere.ClientV2(api_key=KEY, base_url=url(at))
        request = {"query": QUERY, "documents": TEXTS}
        assert len(reranker.rerank(model="pairs", **request).results) == len(TEXTS)
        with pytest.raises(cohere.NotFoundError, match="no model 'any'"):
            reranker.rerank(model="any", **request)


@pytest.fixture(scope="module")
def generator(served, tmp_path_factory):
    folder = tmp_path_factory.mktemp("writer") / "model"
    model = random_causal_lm(folder, max_position_embeddings=64)
    with served(folder) as at:
        yield model, url(at)


def test_openai_completes(generator):
    import openai

    model, address = generator
    client = openai.OpenAI(base_url=f"{address}/v1", api_key=KEY)
    settings = {"model": "any", "prompt": QUERY, "temperature": 0, "max_tokens": 8}
    (choice,) = client.completions.create(**settings).choices
    config = GenerationConfig(max_tokens=8)
    ((result,),) = model.generate_ids([model.encode_prompt(QUERY)], config)
    assert choice.text == result.text
    chunks = client.completions.create(**settings, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == result.text
    stop = result.text[3]
    (choice,) = client.completions.create(**settings, stop=stop).choices
    assert (choice.text, choice.finish_reason) == (result.text.partition(stop)[0], "stop")


def test_langchain_completes(generator):
    from langchain_openai import OpenAI

    model, address = generator
    settings = {"model": "any", "base_url": f"{address}/v1", "api_key": KEY, "max_tokens": 8}
    ((result,),) = model.generate_ids([model.encode_prompt(QUERY)], GenerationConfig(max_tokens=8))
    assert OpenAI(**settings, temperature=0).invoke(QUERY) == result.text


@pytest.mark.parametrize("version", [1, 2])
def test_cohere_reranks(version, served, finetuned):
    import cohere

    scores = [x["scores"]["1"] for x in load(finetuned("pair"))([(QUERY, x) for x in TEXTS])]
    order = sorted(range(4), key=lambda i: -scores[i])
    with served(finetuned("pair")) as at:
        kind = cohere.ClientV2 if version == 2 else cohere.Client
        client = kind(api_key=KEY, base_url=url(at))
        results = client.rerank(model="any", query=QUERY, documents=TEXTS, top_n=3).results
        assert [x.index for x in results] == order[:3]
        actual = [x.relevance_score for x in results]
        assert actual == pytest.approx([scores[i] for i in order[:3]], abs=1e-6)
        with pytest.raises(cohere.core.ApiError, match="documents"):
            client.rerank(model="any", query=QUERY, documents=[])
