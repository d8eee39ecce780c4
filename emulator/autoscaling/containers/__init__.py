"""Workers that are containers of a user's image, started with the command line of Docker or Podman.

`container_engine` calls the engine, `worker_image` is what is run, `container_process` one worker,
`image_build` builds the image again, and `abandoned` removes what a killed server has left.
"""
