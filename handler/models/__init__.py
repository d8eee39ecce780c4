"""Find the model of a deployment and of a request: files, folders and repositories of the Hub."""
