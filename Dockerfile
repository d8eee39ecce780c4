# For amd64 and arm64: all that requirements/run.txt pins has wheels for both. Another image with
# Python 3.11 or newer as `python` will do as well, as one with CUDA's libraries (docs/container.md).
# The digest is that of the image for all platforms; the tag before it is for the reader. To update,
# replace both with those of a newer release: docker buildx imagetools inspect python:3.11-slim
ARG BASE_IMAGE=python:3.11.16-slim-trixie@sha256:be1575ed968de893bd54f4c56315ff7c4736ce522c1bca08fd521731aafc0d76
FROM ${BASE_IMAGE} AS worker

# llama.cpp's threads come from the system's OpenMP library, which slim images lack. Not pinned: a
# pin to one Debian release's build would break with the next security update.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*

# /data is the one folder that a server writes to: its jobs.
RUN useradd --uid 1000 --create-home worker && install -d -o 1000 /data
WORKDIR /app

COPY requirements/run.txt requirements/
RUN pip install --no-cache-dir --only-binary :all: --require-hashes --no-deps -r requirements/run.txt

# With an index of xllamacpp's CUDA wheels, the same version from there in place of the CPU's.
ARG XLLAMACPP_INDEX=
RUN if [ -n "$XLLAMACPP_INDEX" ]; then \
        pip install --no-cache-dir --only-binary :all: --no-deps --force-reinstall \
            --index-url "$XLLAMACPP_INDEX" "$(grep -o '^xllamacpp==[0-9.]*' requirements/run.txt)"; \
    fi

# Before the code, for the model's layer to survive every change but one of the model.
# BAKE_MODEL=no leaves it out: mount one and name it in MODEL_PATH.
ARG BAKE_MODEL=yes
COPY engine/default_model.py engine/
RUN if [ "$BAKE_MODEL" = yes ]; then python -m engine.default_model; fi

COPY engine engine
COPY handler handler
COPY validation validation
COPY emulator emulator
COPY jobs jobs
COPY batch batch
COPY test_input.json ./

ENV JOB_DB=/data/jobs.sqlite3
USER 1000
# A server is asked; a worker has no port, and ends by itself where it can do nothing any more.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["python", "-m", "emulator.healthcheck"]
CMD ["python", "-u", "-m", "handler"]

# For boards, by --platform linux/arm64 --target rkllm: with the library of Rockchip's that whoever
# builds it has put beside this file (docs/rkllm.md).
FROM worker AS rkllm
COPY librkllmrt.so /usr/lib/
ENV ENGINE=rkllm

# Without --target: nothing that has to be brought along.
FROM worker
