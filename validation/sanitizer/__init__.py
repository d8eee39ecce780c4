"""Sanitiser: removes template tokens, echoes and boilerplate from answers."""

from validation.sanitizer.sanitizer import Sanitizer

__all__ = ["Sanitizer"]
