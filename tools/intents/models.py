"""The two transformers: MiniLM as the teacher, and a small student distilled from it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The order of the classifier's scores; `general`, the baseline of the comparison, is last.
LABELS = (
    "career_guidance",
    "interview_skills",
    "market_intelligence",
    "salary_intelligence",
    "general",
)
# The maximum length of a text, in pieces.
TEACHER_PIECES, STUDENT_PIECES = 96, 64


class Layer(nn.Module):
    """One BERT layer: attention and two linear maps, each with a layer norm after it."""

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
    """Embeddings, layers, mean pooling, and a linear head with a score for each label."""

    layers: nn.ModuleList

    def __init__(self, width: int, positions: int) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(positions, width) * 0.02)
        self.embedding = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(LABELS))
        self.drop = nn.Dropout(0.1)

    def embed(self, ids: Tensor) -> Tensor:
        raise NotImplementedError

    def hidden(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the last layer's output for each piece."""
        x = self.drop(self.embedding(self.embed(ids) + self.position[: ids.shape[1]]))
        for layer in self.layers:
            x = layer(x, mask[:, None, None, :])
        return x

    def score(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return a score for each label."""
        return self.head(self.drop(mean(hidden, mask)))


def mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the pieces that the mask selects."""
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
        # Every text has token type 0, so its embedding is added to the position's.
        types = weights["embeddings.token_type_embeddings.weight"][0]
        self.position.data = weights["embeddings.position_embeddings.weight"] + types
        _copy(self.embedding, weights, "embeddings.LayerNorm")
        for number, layer in enumerate(self.layers):
            prefix = f"encoder.layer.{number}"
            for part in ("weight", "bias"):
                names = (
                    f"{prefix}.attention.self.{name}.{part}" for name in ("query", "key", "value")
                )
                getattr(layer.qkv, part).data = torch.cat([weights[name] for name in names])
            _copy(layer.out, weights, f"{prefix}.attention.output.dense")
            _copy(layer.attention, weights, f"{prefix}.attention.output.LayerNorm")
            _copy(layer.up, weights, f"{prefix}.intermediate.dense")
            _copy(layer.down, weights, f"{prefix}.output.dense")
            _copy(layer.feedforward, weights, f"{prefix}.output.LayerNorm")

    def embed(self, ids: Tensor) -> Tensor:
        return self.words(ids)


class Student(Encoder):
    """Two narrow layers over the teacher's word embeddings, projected to fewer dimensions."""

    def __init__(self, words: Tensor, width: int = 192, heads: int = 4, hidden: int = 512) -> None:
        super().__init__(width, STUDENT_PIECES)
        self.heads = heads
        self.register_buffer("words", words)
        self.map = nn.Linear(words.shape[1], width, bias=False)
        # Initialised with the principal components, which keep similar words close to each other.
        _, _, components = torch.linalg.svd(words - words.mean(0), full_matrices=False)
        self.map.weight.data = components[:width] * 3
        self.layers = nn.ModuleList(Layer(width, heads, hidden, F.relu) for _ in range(2))
        # Only for training: projects the student's hidden states to the teacher's width.
        self.widened = nn.Linear(width, words.shape[1])

    def embed(self, ids: Tensor) -> Tensor:
        return self.map(self.words[ids])


def _copy(module: nn.Module, weights: dict[str, Tensor], name: str) -> None:
    module.load_state_dict({part: weights[f"{name}.{part}"] for part in ("weight", "bias")})
