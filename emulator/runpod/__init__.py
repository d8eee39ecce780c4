"""RunPod's API: client routes, worker routes, dispatch and webhooks."""
