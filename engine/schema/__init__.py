"""Hold answers to JSON Schemas and grammars, and bound their cost."""
