#!/bin/bash
# A batch in shards, one task of an array for each: docs/batch.md, "Use several machines without a queue".
# The folder of the output must be shared by the nodes. A task that is queued again resumes its shard.
#SBATCH --job-name=worker-rkllm-batch
# From 0 to one less than SHARDS. To run single shards again: sbatch --array=3,5 batch.sh
#SBATCH --array=0-7
#SBATCH --cpus-per-task=4
#SBATCH --mem=4G
#SBATCH --requeue
#SBATCH --open-mode=append
# Lines in progress are finished after SIGTERM.
#SBATCH --signal=TERM@120
set -euo pipefail
SHARDS=${SHARDS:-8}
INPUT=${INPUT:-requests.jsonl}
OUTPUT=${OUTPUT:-answers.jsonl}
exec ${WORKER_RKLLM:-worker-rkllm} batch run --input "$INPUT" --output "$OUTPUT" --shards "$SHARDS"
