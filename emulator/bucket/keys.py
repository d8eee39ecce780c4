"""The keys of the bucket, and the variables by which a worker finds it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

# The path of the bucket's routes. A name such as `s3.` in a host would make the SDK guess a region.
BUCKET_PATH = "/s3"
# The variables from which RunPod's SDK takes its bucket. An empty one is a user's choice too: then
# the SDK uses no bucket.
BUCKET_VARIABLES = ("BUCKET_ENDPOINT_URL", "BUCKET_ACCESS_KEY_ID", "BUCKET_SECRET_ACCESS_KEY")
_ID_BYTES, _SECRET_BYTES = 10, 30


@dataclass(frozen=True, slots=True)
class BucketKeys:
    """The access key id and the secret with which requests to the bucket are signed."""

    access_key_id: str
    secret: str

    @classmethod
    def generate(cls) -> BucketKeys:
        """Return new keys."""
        return cls(secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES))

    def worker_variables(self, url: str, others: Mapping[str, str]) -> Mapping[str, str]:
        """Return the variables for a worker of the server at `url`.

        The mapping is empty if the user has set one of them, in this process's environment or in
        the handler's .env, whose variables are `others`: one bucket with the keys of another would
        only fail.
        """
        if any(name in os.environ or name in others for name in BUCKET_VARIABLES):
            return {}
        values = (f"{url}{BUCKET_PATH}", self.access_key_id, self.secret)
        return dict(zip(BUCKET_VARIABLES, values, strict=True))
