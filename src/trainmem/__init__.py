"""trainmem: does this LLM training step fit in GPU memory, and what would make it fit?"""

__version__ = "0.1.0"
