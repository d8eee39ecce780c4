FROM python:3.11-slim AS worker

# llama.cpp's threads come from the system's OpenMP library, which slim images lack. Not pinned: a
# pin to one Debian release's build would break with the next security update.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --uid 1000 --create-home worker
WORKDIR /app

COPY requirements/run.txt requirements/
RUN pip install --no-cache-dir --only-binary :all: --require-hashes -r requirements/run.txt

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

USER 1000
CMD ["python", "-u", "-m", "handler"]

# For boards, by --platform linux/arm64 --target rkllm: with the library of Rockchip's that whoever
# builds it has put beside this file (docs/rkllm.md).
FROM worker AS rkllm
COPY librkllmrt.so /usr/lib/
ENV ENGINE=rkllm

# Without --target: nothing that has to be brought along.
FROM worker
