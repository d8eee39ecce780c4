"""The extra of this distribution that installs a missing package."""

from __future__ import annotations

# Imported modules, and the extras that install them.
_EXTRA_OF_MODULE = {
    "aws_lambda_powertools": "lambda",
    "boto3": "s3",
    "botocore": "s3",
    "httpx2": "emulator",
    "jinja2": "rkllm",
    "jsonschema_rs": "validation",
    "limits": "emulator",
    "numpy": "validation",
    "opentelemetry": "otel",
    "prometheus_client": "emulator",
    "py3langid": "validation",
    "python_multipart": "emulator",
    "runpod": "worker",
    "starlette": "emulator",
    "tokenizers": "rkllm",
    "uvicorn": "emulator",
    "uvloop": "emulator",
}


def missing_extra(error: ModuleNotFoundError, command: str) -> str | None:
    """Return an error message that names the extra for a missing package.

    Return None if no extra has the module: then the installation or the code is broken, and the
    traceback is needed.
    """
    module = (error.name or "").partition(".")[0]
    extra = _EXTRA_OF_MODULE.get(module)
    if extra is None:
        return None
    return (
        f"worker-rkllm {command} needs the package {module}, which is not installed: "
        f"`pip install 'worker-rkllm[{extra}]'` installs it."
    )
