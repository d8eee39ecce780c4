"""Invalid validation settings, with the start of each error line."""

from __future__ import annotations

from pathlib import Path

FILES = {
    "wrong.yaml": b"intents: {general: {about: x}}\nsanitizer: {}\nchecks: {}\nthreshold: much\n",
    "unknown.yaml": b"intents: {general: {about: x}}\nchecks: {}\nsanitizer:\n"
    b"  odd: {about: x, examples: [{catches: x, leaves: x}]}\n",
    "no.yaml": b"intents: {\n",
    "no.json": b"{'type': 'object'}",
    "array.json": b"[1, 2]",
    "null.json": b"null",
    "thing.json": b'{"properties": {"city": {"type": "thing"}}}',
    "empty.json": b"",
}

# The variable, its value, the line's beginning. Files are named as in the variable.
BAD_SETTINGS = [
    (
        "VALIDATION_RULES",
        "none.yaml",
        "VALIDATION_RULES: none.yaml cannot be read: [Errno 2] No such file or directory",
    ),
    ("VALIDATION_RULES", "wrong.yaml", "VALIDATION_RULES: wrong.yaml:4: threshold: "),
    ("VALIDATION_RULES", "no.yaml", "VALIDATION_RULES: no.yaml:2: "),
    ("VALIDATION_RULES", "unknown.yaml", "VALIDATION_RULES: unknown.yaml:4: sanitizer.odd: "),
    (
        "VALIDATION_SCHEMA",
        "none.json",
        "VALIDATION_SCHEMA: none.json cannot be read: No such file or directory",
    ),
    ("VALIDATION_SCHEMA", ".", "VALIDATION_SCHEMA: . cannot be read: Is a directory"),
    ("VALIDATION_SCHEMA", "no.json", "VALIDATION_SCHEMA: no.json is not JSON: "),
    ("VALIDATION_SCHEMA", "empty.json", "VALIDATION_SCHEMA: empty.json is not JSON: "),
    (
        "VALIDATION_SCHEMA",
        "array.json",
        "VALIDATION_SCHEMA: array.json must be a JSON Schema, as an object, got [1,2]",
    ),
    (
        "VALIDATION_SCHEMA",
        "null.json",
        "VALIDATION_SCHEMA: null.json must be a JSON Schema, as an object, got null",
    ),
    (
        "VALIDATION_SCHEMA",
        "thing.json",
        "VALIDATION_SCHEMA: The JSON schema is invalid at properties.city.type: "
        '"thing" is not allowed there.',
    ),
    ("VALIDATION_LANGUAGE", "klingon", "VALIDATION_LANGUAGE: There is no language 'klingon' "),
    (
        "BLOCKED_INTENTS",
        "general,sports",
        'BLOCKED_INTENTS: there is no intent "sports", there are: weather, general',
    ),
    (
        "BLOCKED_TERMS",
        "bomb," + "x" * 201,
        "BLOCKED_TERMS must be an array of up to 1000 words or phrases of up to 200 characters, "
        f'got "{"x" * 56}...',
    ),
    (
        "BLOCKED_TERMS",
        "\u200b",
        "BLOCKED_TERMS: A blocked term must have something visible in it.",
    ),
    (
        "REDACT_PII",
        "card,dna",
        "REDACT_PII must be on, off or a list of card, iban, email, phone, key, ssn, got 'dna'",
    ),
]
BAD_IDS = [f"{name}={value[:20]}" for name, value, _ in BAD_SETTINGS]


def write_files(folder: Path) -> None:
    """Write the files that some of them name."""
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
