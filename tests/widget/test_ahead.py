"""Frames drawn ahead, of the steps beside the present one."""

from __future__ import annotations

import asyncio
from typing import Any

from trainmem.widget.ahead import REST_SECONDS
from trainmem.widget.shell import TrainingMemoryWidget

from .kit import VIEW, Browser


def steps_drawn(drawn: list[Any]) -> list[tuple[int, bool]]:
    return [(d["simulation"].config.num_gpus, d["draft"]) for d in drawn]


def test_one_step_of_a_slider_is_drawn_ahead_at_rest(drawn: list[Any]) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW)

    async def press() -> None:
        del drawn[:]
        browser.set(num_gpus=64)
        assert steps_drawn(drawn) == [(64, False)]
        await asyncio.sleep(3 * REST_SECONDS)

    asyncio.run(press())
    assert steps_drawn(drawn) == [(64, False), (72, True), (60, True)]
    assert browser.widget.num_gpus == 64  # and nothing of it is told
    browser.take()
    assert steps_drawn(drawn)[1:] == [(72, True), (60, True)]


def test_nothing_is_drawn_ahead_while_requests_come(drawn: list[Any]) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW)

    async def drag() -> None:
        del drawn[:]
        for n in range(10, 16):
            browser.set(draft=True, num_gpus=n)
            await asyncio.sleep(REST_SECONDS / 5)
        browser.set(num_gpus=16, seq_length=2048)  # no step of a slider
        await asyncio.sleep(3 * REST_SECONDS)
        browser.set(architecture="Llama-3-8B")
        browser.set(num_gpus=32)  # its steps would take longer than they save
        await asyncio.sleep(3 * REST_SECONDS)

    asyncio.run(drag())
    asked = [*((n, True) for n in range(10, 16)), (16, False), (16, False), (32, False)]
    assert steps_drawn(drawn) == asked


def test_a_closed_widget_draws_nothing_ahead(drawn: list[Any]) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW)

    async def leave() -> None:
        browser.set(num_gpus=64)
        browser.widget.close()
        del drawn[:]
        await asyncio.sleep(3 * REST_SECONDS)

    asyncio.run(leave())
    assert drawn == []
