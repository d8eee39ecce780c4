"""Takes out of an answer what no person should see, and leaves everything else as it is."""

from validation.sanitizer.sanitizer import Sanitizer

__all__ = ["Sanitizer"]
