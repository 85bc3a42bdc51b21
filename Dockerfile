# The service alone: a database is given by URL. Everything it needs at run time is in
# the image, the tokenizer's rank files included; nothing is downloaded then.

ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_NO_INPUT=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /src

# Dependencies come first: they change less often than the code. The service's
# environment has no pip, which would be one more thing to keep patched.
COPY requirements/build.lock requirements/runtime.lock requirements/
RUN python -m venv /opt/build \
    && /opt/build/bin/python -m pip install --require-hashes -r requirements/build.lock \
    && python -m venv --without-pip /opt/ctxsnap \
    && python -m pip --python /opt/ctxsnap/bin/python install --only-binary :all: \
        --require-hashes -r requirements/runtime.lock

COPY LICENSE README.md pyproject.toml ./
COPY app app
COPY migrations migrations
COPY openapi openapi
RUN /opt/build/bin/python -m pip wheel --no-index --no-deps --no-build-isolation \
        --wheel-dir /dist . \
    && python -m pip --python /opt/ctxsnap/bin/python install --no-index --no-deps /dist/*.whl


FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="context-snapshots" \
      org.opencontainers.image.description="Immutable, hashed snapshots of exactly the knowledge that one agent attempt may use" \
      org.opencontainers.image.licenses="Apache-2.0"

# A fixed number, so that a cluster can require a user that is not root.
RUN groupadd --gid 10001 ctxsnap \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin ctxsnap

COPY --from=build /opt/ctxsnap /opt/ctxsnap
ENV PATH=/opt/ctxsnap/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    CTXSNAP_HOST=0.0.0.0 \
    CTXSNAP_PORT=8080

USER 10001:10001
WORKDIR /
EXPOSE 8080
STOPSIGNAL SIGTERM

# http.client, because urllib would send the call through a proxy set in the environment.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; connection = http.client.HTTPConnection('127.0.0.1', int(os.environ['CTXSNAP_PORT']), timeout=2); connection.request('GET', '/healthz'); sys.exit(connection.getresponse().status != 200)"]

ENTRYPOINT ["ctxsnap"]
CMD ["serve"]
