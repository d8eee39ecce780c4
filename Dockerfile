# For amd64 and arm64: every package of requirements/run.txt has wheels for both. Any image with
# Python 3.11 or newer as `python` works too, for example one with CUDA's libraries
# (docs/container.md). The digest identifies the image for all platforms; the tag informs readers. To
# update, replace both with those of a newer release: docker buildx imagetools inspect python:3.11-slim
ARG BASE_IMAGE=python:3.11.16-slim-trixie@sha256:be1575ed968de893bd54f4c56315ff7c4736ce522c1bca08fd521731aafc0d76
FROM ${BASE_IMAGE} AS base
# The main process of a container adopts the processes that a killed engine or worker has started: tini
# waits for their end, and without it they would stay as zombies. Versions are not pinned: a pinned
# Debian build would disappear with the next security update.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
# The server stores its jobs in /data and writes to no other folder.
RUN useradd --uid 1000 --create-home worker && install -d -o 1000 /data
# The packages have an environment of their own, without pip: a Debian's pip refuses to install beside
# Debian's packages, and the image does not need one.
ENV PATH=/opt/packages/bin:$PATH
WORKDIR /app

FROM base AS code
COPY common common
COPY engine engine
COPY handler handler
COPY validation validation
COPY emulator emulator
COPY jobs jobs
COPY batch batch
COPY pyproject.toml test_input.json ./
# The image's user may not write here, so each start would compile the modules once more.
RUN python -m compileall -q .

FROM base AS model
# BAKE_MODEL=no builds an image without a model: mount one and set MODEL_PATH to it.
ARG BAKE_MODEL=yes
COPY requirements/run.txt requirements/
COPY handler/models/default_model.py handler/models/
RUN install -d models && if [ "$BAKE_MODEL" = yes ]; then python -m handler.models.default_model; fi

FROM base AS emulator-packages
COPY requirements/emulator.txt requirements/
RUN python -m venv --without-pip /opt/packages \
    && pip --python /opt/packages install --no-cache-dir --only-binary :all: --require-hashes --no-deps \
        -r requirements/emulator.txt
# RunPod's SDK uploads to buckets: of Amazon's services, S3 and the ways to log in are enough.
RUN find /opt/packages/lib/python3*/site-packages/botocore/data -mindepth 1 -maxdepth 1 -type d \
        ! -name s3 ! -name sts ! -name 'sso*' ! -name signin -exec rm -r {} +

FROM base AS worker-packages
COPY requirements/run.txt requirements/
RUN python -m venv --without-pip /opt/packages \
    && pip --python /opt/packages install --no-cache-dir --only-binary :all: --require-hashes --no-deps \
        -r requirements/run.txt

# VISION=yes adds what images need on boards (docs/rkllm.md); rknn-toolkit-lite2 has wheels for arm64 only.
ARG VISION=no
COPY requirements/vision.txt requirements/
RUN if [ "$VISION" = yes ]; then \
        pip --python /opt/packages install --no-cache-dir --only-binary :all: --require-hashes --no-deps \
            -r requirements/vision.txt; \
    fi

# With an index of CUDA wheels, install the same version of xllamacpp from there.
ARG XLLAMACPP_INDEX=
RUN if [ -n "$XLLAMACPP_INDEX" ]; then \
        pip --python /opt/packages install --no-cache-dir --only-binary :all: --no-deps --force-reinstall \
            --index-url "$XLLAMACPP_INDEX" "$(grep -o '^xllamacpp==[0-9.]*' requirements/run.txt)"; \
    fi

# Of Amazon's services, the worker calls S3 and SQS, with several ways to log in.
RUN find /opt/packages/lib/python3*/site-packages/botocore/data -mindepth 1 -maxdepth 1 -type d \
        ! -name s3 ! -name sqs ! -name sts ! -name 'sso*' ! -name signin -exec rm -r {} + \
    && find /opt/packages/lib/python3*/site-packages/numpy -type d -name tests -prune -exec rm -r {} +

# For tests of handlers, without an engine and a model: --target emulator.
FROM base AS emulator
COPY --from=emulator-packages /opt/packages /opt/packages
COPY --from=code /app /app
# Python's own modules are not compiled in the base image, so they are here, as far as they are imported.
RUN python -c "import emulator.app, emulator.startup.programs, emulator.server.server, runpod"
ENV ENGINE=none JOB_DB=/data/jobs.sqlite3
USER 1000
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["python", "-m", "emulator.status.healthcheck"]
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="worker-rkllm emulator" \
    org.opencontainers.image.description="A local RunPod for handlers of your own" \
    org.opencontainers.image.version=$VERSION \
    org.opencontainers.image.licenses=Apache-2.0
ENTRYPOINT ["tini", "--"]
CMD ["python", "-u", "-m", "emulator"]

FROM base AS worker
# llama.cpp needs the system's OpenMP library, which slim images lack.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
COPY --from=worker-packages /opt/packages /opt/packages
# Before the code, so that the model's layer stays cached when the code changes.
COPY --from=model /app/models models
COPY --from=code /app /app
RUN python -c "import handler.worker.runpod_worker, emulator.app, emulator.startup.engine_components, emulator.server.server"
ENV JOB_DB=/data/jobs.sqlite3
USER 1000
# Requests /health from a server. A worker has no port and always passes: it exits if its engine is dead.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["python", "-m", "emulator.status.healthcheck"]
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title=worker-rkllm \
    org.opencontainers.image.description="Serverless LLM workers for RKLLM and llama.cpp, and a local RunPod" \
    org.opencontainers.image.version=$VERSION \
    org.opencontainers.image.licenses=Apache-2.0
ENTRYPOINT ["tini", "--"]
CMD ["python", "-u", "-m", "handler"]

# For boards, built with --platform linux/arm64 --target rkllm. Rockchip's librkllmrt.so must be in the
# folder of this file (docs/rkllm.md).
FROM worker AS rkllm
COPY librkllmrt.so /usr/lib/
ENV ENGINE=rkllm

# The image without --target needs no files from outside this repository.
FROM worker
