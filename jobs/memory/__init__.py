"""The job store in this process's memory."""
