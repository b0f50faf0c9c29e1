# The proxy: small, without CUDA, and without a user that may do anything.
#   docker build -f docker/proxy.Dockerfile -t trtkit-proxy .
FROM python:3.12-slim AS build
COPY . /src
RUN python -m venv /opt/trtkit \
    && /opt/trtkit/bin/pip install --no-cache-dir "/src[proxy,gguf,hub]"

FROM python:3.12-slim
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="trtkit-proxy" \
      org.opencontainers.image.description="Priorities and promises in front of Triton" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.12-slim"
COPY --from=build /opt/trtkit /opt/trtkit
RUN install -d -m 0755 -o 10001 -g 10001 /store
ENV PATH=/opt/trtkit/bin:$PATH \
    TRTKIT_HOME=/store \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /work
EXPOSE 9001 9002
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=4s --start-period=30s --retries=3 CMD ["trtkit", "health", "127.0.0.1:9001"]
ENTRYPOINT ["trtkit", "proxy"]
CMD ["--help"]
