# Builds engines of TensorRT-LLM and serves them: NVIDIA's image with trtkit beside it.
#   docker build -f docker/builder.Dockerfile -t trtkit-builder .
# An engine loads only in the release that built it: one tag for both, the newest of the catalog's newest line.
ARG TRITON_TAG=26.07
FROM nvcr.io/nvidia/tritonserver:${TRITON_TAG}-trtllm-python-py3

ARG TRITON_TAG
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="trtkit-builder" \
      org.opencontainers.image.description="trtkit beside TensorRT-LLM and Triton: builds engines and serves them" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="nvcr.io/nvidia/tritonserver:${TRITON_TAG}-trtllm-python-py3"

# An environment of its own: TensorRT-LLM pins what trtkit wants newer.
COPY . /src
RUN python3 -m pip install --no-cache-dir virtualenv==20.35.4 \
    && python3 -m virtualenv --download /opt/trtkit \
    && /opt/trtkit/bin/pip install --no-cache-dir "/src[repo,gguf,hub]" \
    && ln -s /opt/trtkit/bin/trtkit /usr/local/bin/trtkit \
    && rm -rf /src \
    && install -d -m 1777 /store

ENV HOME=/tmp \
    TRTKIT_HOME=/store \
    PYTHONUNBUFFERED=1
# Nothing in it wants privileges.
USER 10001:10001
WORKDIR /work
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 CMD ["trtkit", "health", "127.0.0.1:8001"]
CMD ["bash", "/model_repo/launch.sh"]
