# One image for queue endpoints, load-balancing endpoints and pods.
#
#   docker build -t specworker .
#
# Models that it is to bring along are build arguments, further down.

ARG BASE_IMAGE=vllm/vllm-openai:v0.32.0

# Runpod's machines are of this platform; vLLM's image is there for others too.
# hadolint ignore=DL3029
FROM --platform=linux/amd64 ${BASE_IMAGE} AS suffix
ARG DEBIAN_FRONTEND=noninteractive
ARG PIP_BREAK_SYSTEM_PACKAGES=1
# Suffix decoding is compiled here, and the compiler stays here. vLLM's image has Python's
# headers, and apt's may be those of another Python.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && { ls "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" \
    || apt-get install --yes --no-install-recommends python3-dev; } \
    && rm -rf /var/lib/apt/lists/*
COPY builder/requirements-suffix.txt /tmp/
RUN python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels \
    -r /tmp/requirements-suffix.txt

# hadolint ignore=DL3029
FROM --platform=linux/amd64 ${BASE_IMAGE}
ARG DEBIAN_FRONTEND=noninteractive
ARG PIP_BREAK_SYSTEM_PACKAGES=1
ARG PIP_ROOT_USER_ACTION=ignore

# For pods. Each container makes host keys of its own.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openssh-server \
    && rm -rf /etc/ssh/ssh_host_* /var/cache/apt/* /var/lib/apt/lists/*

WORKDIR /app
COPY builder/requirements.txt builder/requirements-nodeps.txt builder/
COPY --from=suffix /wheels builder/wheels
RUN python3 -m pip install --no-cache-dir -r builder/requirements.txt \
    && python3 -m pip install --no-cache-dir --no-deps \
    -r builder/requirements-nodeps.txt builder/wheels/*.whl

COPY LICENSE README.md handler.py pyproject.toml test_input.json ./
COPY src src
RUN python3 -m pip install --no-cache-dir --no-deps --editable . \
    && python3 -m compileall -q src

# The SDK's check of GPUs opens CUDA beside the engine; below INFO it logs what users write.
ENV BAKED_MODELS=/models \
    PYTHONUNBUFFERED=1 \
    RUNPOD_LOG_LEVEL=INFO \
    RUNPOD_SKIP_GPU_CHECK=true

# Models to bring along: hub ids, and branches, tags or commits. Without them none is.
# A gated one needs a token: --secret id=HF_TOKEN,env=HF_TOKEN
ARG MODEL_NAME=""
ARG MODEL_REVISION=""
ARG SPECULATIVE_MODEL=""
ARG SPECULATIVE_MODEL_REVISION=""
# Another hub.
ARG HF_ENDPOINT
COPY builder/download_model.py builder/
RUN --mount=type=secret,id=HF_TOKEN python3 builder/download_model.py ${BAKED_MODELS}

LABEL org.opencontainers.image.title="specworker" \
    org.opencontainers.image.description="A Runpod Serverless vLLM worker whose heart is speculative decoding" \
    org.opencontainers.image.licenses="MIT" \
    org.opencontainers.image.version="0.1.0"

EXPOSE 8000
# Until the model is loaded, which may take that long, the container counts as starting.
HEALTHCHECK --start-period=30m --timeout=10s CMD ["python3", "-m", "specworker", "health"]
ENTRYPOINT ["python3", "-u", "/app/handler.py"]
CMD []
