"""OpenTelemetry traces, from a request to its tokens. Imported only if tracing is on."""
