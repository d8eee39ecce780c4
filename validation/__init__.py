"""Text in, verdict out: what an answer is checked for. Knows nothing of engines or jobs."""

from validation.verdict import Validator, Verdict

__all__ = ["Validator", "Verdict"]
