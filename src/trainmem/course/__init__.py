"""For courses: answers checked with hints (`exercise`, `check`), and `numbers` of their own."""
