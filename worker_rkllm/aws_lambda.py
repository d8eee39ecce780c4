"""The batch worker as a Lambda function, for an installation: `worker_rkllm.aws_lambda.handler`.

Lambda imports a function by its module's name, and an installation has one: worker_rkllm.
"""

from __future__ import annotations

from importlib import import_module

from worker_rkllm.import_path import put_own_packages_first

put_own_packages_first()
handler = import_module("batch.aws_lambda").handler
