# For amd64 and arm64: every package of requirements/run.txt has wheels for both. Any image with
# Python 3.11 or newer as `python` works too, for example one with CUDA's libraries
# (docs/container.md). The digest identifies the image for all platforms; the tag informs readers. To
# update, replace both with those of a newer release: docker buildx imagetools inspect python:3.11-slim
ARG BASE_IMAGE=python:3.11.16-slim-trixie@sha256:be1575ed968de893bd54f4c56315ff7c4736ce522c1bca08fd521731aafc0d76
FROM ${BASE_IMAGE} AS worker

# llama.cpp needs the system's OpenMP library, which slim images lack. Its version is not pinned: a
# pinned Debian build would disappear with the next security update.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*

# The server stores its jobs in /data and writes to no other folder.
RUN useradd --uid 1000 --create-home worker && install -d -o 1000 /data
WORKDIR /app

COPY requirements/run.txt requirements/
RUN pip install --no-cache-dir --only-binary :all: --require-hashes --no-deps -r requirements/run.txt

# VISION=yes adds what images need on boards (docs/rkllm.md); rknn-toolkit-lite2 has wheels for arm64 only.
ARG VISION=no
COPY requirements/vision.txt requirements/
RUN if [ "$VISION" = yes ]; then \
        pip install --no-cache-dir --only-binary :all: --require-hashes --no-deps -r requirements/vision.txt; \
    fi

# With an index of CUDA wheels, install the same version of xllamacpp from there.
ARG XLLAMACPP_INDEX=
RUN if [ -n "$XLLAMACPP_INDEX" ]; then \
        pip install --no-cache-dir --only-binary :all: --no-deps --force-reinstall \
            --index-url "$XLLAMACPP_INDEX" "$(grep -o '^xllamacpp==[0-9.]*' requirements/run.txt)"; \
    fi

# Before the code is copied, so that the model's layer stays cached when the code changes.
# BAKE_MODEL=no builds an image without a model: mount one and set MODEL_PATH to it.
ARG BAKE_MODEL=yes
COPY handler/models/default_model.py handler/models/
RUN if [ "$BAKE_MODEL" = yes ]; then python -m handler.models.default_model; fi

COPY common common
COPY engine engine
COPY handler handler
COPY validation validation
COPY emulator emulator
COPY jobs jobs
COPY batch batch
COPY test_input.json ./

ENV JOB_DB=/data/jobs.sqlite3
USER 1000
# Requests /health from a server. A worker has no port and always passes: it exits if its engine is dead.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["python", "-m", "emulator.status.healthcheck"]
CMD ["python", "-u", "-m", "handler"]

# For boards, built with --platform linux/arm64 --target rkllm. Rockchip's librkllmrt.so must be in the
# folder of this file (docs/rkllm.md).
FROM worker AS rkllm
COPY librkllmrt.so /usr/lib/
ENV ENGINE=rkllm

# The image without --target needs no files from outside this repository.
FROM worker
