"""Run RunPod's tests.json against a user's handler, and send a kept job again."""
