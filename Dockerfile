# The HTTP service on a CPU.
#
#     docker build --tag roformer-tf .
#     docker run --publish 8000:8000 --volume "$PWD/runs/reviews/model:/model:ro" roformer-tf
FROM python:3.12-slim

WORKDIR /app
COPY pyproject.toml setup.py README.md LICENSE ./
COPY roformer_tf roformer_tf
RUN pip install --no-cache-dir '.[onnx,fast,serve]' \
    && useradd --create-home server

USER server
EXPOSE 8000
HEALTHCHECK --interval=30s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["roformer-tf", "serve"]
CMD ["/model", "--host", "0.0.0.0"]
