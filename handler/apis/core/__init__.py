"""The parts that all APIs share: calls, their context, and the form of errors and streams."""
