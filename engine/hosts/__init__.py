"""Where a backend lives: in this process on threads, or in a process of its own."""
