"""The cache that is bounded in bytes, and what is kept in one."""

from __future__ import annotations

from trainmem.transformer import ARCHITECTURES, Plan, peak
from trainmem.transformer.cache import ByteCache
from trainmem.transformer.program import PROGRAMS


def test_what_was_asked_last_is_kept_within_the_bytes():
    cache, made = ByteCache[str](10, len), []

    def get(key):
        return cache.get(key, lambda: made.append(key) or key)

    assert [get(key) for key in ("four", "five", "four", "six")] == ["four", "five", "four", "six"]
    assert made == ["four", "five", "six"]  # of which "five" had to go
    assert (len(cache), cache.held_bytes) == (2, 7)
    get("five")
    assert made == ["four", "five", "six", "five"]
    assert get("larger than all") == "larger than all"  # is kept alone
    assert (len(cache), cache.held_bytes) == (1, 15)
    cache.clear()
    assert (len(cache), cache.held_bytes) == (0, 0)


def test_programs_take_what_they_say_and_no_more_than_allowed():
    PROGRAMS.clear()
    for name in ("Llama-3-8B", "Qwen3-8B", "GPT-2"):
        for head in ("transformers", "chunked", "fused"):
            peak(ARCHITECTURES[name], Plan(loss_head=head, seq_length=1024))
    assert len(PROGRAMS) == 9
    assert 9 * 100_000 < PROGRAMS.held_bytes < 9 * 3_000_000
    assert PROGRAMS.held_bytes < PROGRAMS.most_bytes
