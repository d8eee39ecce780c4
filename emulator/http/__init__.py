"""HTTP building blocks: request bodies, responses, server-sent events, routing."""
