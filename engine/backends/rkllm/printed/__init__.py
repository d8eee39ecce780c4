"""What the library prints: its errors in loads and runs, and the facts about itself."""
