"""What `pip` has to install for a missing package."""

from __future__ import annotations

# The packages of each extra, which are named themselves: no package index has this one.
_PACKAGES_OF_EXTRA = {
    "otel": "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
    "rkllm": "jinja2 tokenizers",
    "s3": "boto3",
    "validation": "json-repair jsonschema-rs py3langid",
    "vision": "pillow",
}
# Modules that an extra installs.
_EXTRA_OF_MODULE = {
    "PIL": "vision",
    "boto3": "s3",
    "botocore": "s3",
    "jinja2": "rkllm",
    "jsonschema_rs": "validation",
    "opentelemetry": "otel",
    "py3langid": "validation",
    "tokenizers": "rkllm",
}
# Modules of the packages that every installation has, unless one was removed or left out.
_REQUIRED_MODULES = frozenset(
    {
        "httpx2",
        "limits",
        "numpy",
        "prometheus_client",
        "python_multipart",
        "runpod",
        "starlette",
        "uvicorn",
        "uvloop",
    }
)


def missing_package_message(error: ModuleNotFoundError, command: str) -> str | None:
    """Return an error message that says how to install a missing package.

    Return None if the module is not one of ours to install: then the installation or the code is
    broken, and the traceback is needed.
    """
    module = (error.name or "").partition(".")[0]
    if module in _REQUIRED_MODULES:
        packages = module.replace("_", "-")
    elif module in _EXTRA_OF_MODULE:
        packages = _PACKAGES_OF_EXTRA[_EXTRA_OF_MODULE[module]]
    else:
        return None
    return (
        f"worker-rkllm {command} needs the package {module}, which is not installed: "
        f"`pip install {packages}` installs it."
    )
