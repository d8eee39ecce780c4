"""The bucket of launched workers: the part of S3 with which RunPod's SDK uploads results."""
