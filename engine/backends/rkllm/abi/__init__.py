"""The library's binary interfaces: structs, signatures, and which of them a library has."""
