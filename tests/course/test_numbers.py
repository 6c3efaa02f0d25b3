"""Numbers per course: `python -m trainmem.course`, and the source notebook under many seeds."""

import copy
import itertools
import json
import math
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import trainmem
from course.kit import ASSIGNMENT, NAME, Notebook, text
from trainmem.cards import GPUS
from trainmem.course import numbers as course

SEEDS = [*range(24), "2027 spring", "α"]


def test_source_is_a_seedable_notebook_with_numbers_of_its_table(source: Notebook) -> None:
    code = "\n".join(text(cell) for cell in source["cells"] if cell["cell_type"] == "code")
    for alternatives in source["metadata"]["trainmem_course"].values():
        assert len(alternatives) > 2
        first = {f"{name} = {value!r}" for name, value in alternatives[0].items()}
        lines = {line.split("  #")[0] for line in code.replace("_000", "000").splitlines()}
        assert first <= {line.replace('"', "'") for line in lines}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_solution_is_right_for_every_seed(source: Notebook, run_cells, seed, capsys) -> None:
    notebook = course.seeded(source, seed)
    run_cells(notebook)
    assert "✓ really_fits" in capsys.readouterr().out  # the last check; a failed one raises
    assert notebook == course.seeded(source, seed)


def test_seeds_differ(source: Notebook) -> None:
    table = source["metadata"]["trainmem_course"]
    chosen = [json.dumps(course.choose(table, seed)) for seed in range(50)]
    assert len(set(chosen)) > 45
    for alternatives in table.values():  # and every alternative comes up
        for alternative in alternatives:
            value = json.dumps(alternative)[1:-1]
            assert any(value in json.dumps(course.choose(table, seed)) for seed in range(50))


def test_a_seed_means_the_same_everywhere() -> None:
    table = {"a": [{"A": 1}, {"A": 2}, {"A": 3}], "b": [{"B": 1}, {"B": 2}, {"B": 3}]}
    chosen = [course.choose(table, seed) for seed in (0, 1, 2, "spring")]
    assert chosen == [{"A": 3, "B": 3}, {"A": 2, "B": 1}, {"A": 3, "B": 3}, {"A": 3, "B": 3}]
    assert course.choose(table, 7) == course.choose(table, "7")


def test_wrong_turns_differ_from_the_right_answer_for_all_numbers(source: Notebook) -> None:
    table = source["metadata"]["trainmem_course"]
    for hand in table["by_hand"]:
        for optimizer in table["optimizer"]:
            params, card = hand["HAND_PARAMS_B"], hand["HAND_CARD_GB"]
            floor = hand["HAND_ACTIVATIONS_GB"]
            kept = optimizer["MOMENTS"] * optimizer["MOMENT_BYTES"]

            def fewest(whole: int, shared: int, card: int = card) -> int:
                return -(-shared // (card - whole))

            counts = [
                fewest(2 * params + floor, (6 + kept) * params),  # right
                fewest(2 * params + floor, (2 + kept) * params),  # no master weights
                fewest(2 * params, (6 + kept) * params + floor),  # activations shared
                fewest(floor, (8 + kept) * params),  # weights shared
                fewest(2 * params + floor, 14 * params),  # Adam
            ]
            assert len(set(counts)) == len(counts)
            assert min(abs(counts[0] - count) for count in counts[1:]) > 1


def test_memos_have_one_flaw_each_and_no_two_the_same(source: Notebook) -> None:
    flaws = []
    for memo in source["metadata"]["trainmem_course"]["memo"]:
        gpus, stage, params = memo["MEMO_GPUS"], memo["MEMO_STAGE"], memo["MEMO_PARAMS_B"]
        values = memo["MEMO_SEQ"] * memo["MEMO_BATCH"] * memo["MEMO_HIDDEN"]
        right = [
            2 * params / (gpus if stage == 3 else 1),
            2 * params / (gpus if stage >= 2 else 1),
            8 * params / (gpus if stage >= 1 else 1),
            (2 * memo["MEMO_LAYERS"] + 68) * values / 1e9,
            memo["MEMO_CARD_GB"],
        ]
        off = [i for i, gb in enumerate(memo["MEMO_GB"]) if abs(gb - right[i]) > 0.01]
        assert len(off) == 1
        flaws.append(off[0])
        claims = sum(memo["MEMO_GB"][:4]) <= memo["MEMO_GB"][4]
        # The flaw changes the conclusion, whether a card of that name is counted as it is sold, in
        # 2³⁰ bytes, or as CUDA reports it.
        sold = memo["MEMO_CARD_GB"]
        cards = [card for card in GPUS if card.nominal_gb == sold]
        assert cards
        for capacity in (sold, sold * 1.024**3, *(card.usable_gib * 1.024**3 for card in cards)):
            assert (sum(right[:4]) <= capacity) != claims
        assert memo["MEMO_GB"][4] == sold or memo["MEMO_GB"][4] > 1.1 * sold * 1.024**3
    assert sorted(flaws) == [0, 1, 2, 3, 4]


def test_the_simulator_of_exercise_3_is_said_to_be_adams(source: Notebook) -> None:
    for optimizer in source["metadata"]["trainmem_course"]["optimizer"]:
        assert 4 + optimizer["MOMENTS"] * optimizer["MOMENT_BYTES"] < 12  # never Adam, always less
    said = {cell["id"]: text(cell) for cell in source["cells"]}
    assert "Adam's states" in said["text-25"]
    assert "With yours\nthe curve would lie lower" in said["text-25"]
    assert "the optimizer here is Adam" in said["ex3-widget"]


STEP = {"architecture": "Llama-3-70B", "seq_length": 8192, "gpu": "MI325X · 256 GB"}


def accepted(plan: dict[str, float]) -> dict[tuple[int, int, int, int], tuple[float, float]]:
    """Return hours and cost of each plan within the five rules."""
    found = {}
    gpus = [n for n in range(8, plan["CLUSTER_GPUS"] + 1, 8) if plan["GLOBAL_BATCH"] % n == 0]
    for n, stage, batch, layers in itertools.product(gpus, (1, 2, 3), (1, 2, 4), range(81)):
        states = 70 * (12 / n + 2 / (n if stage > 1 else 1) + 2 / (n if stage > 2 else 1))
        kept = 2 * layers + 34 * (80 - layers + 1 + (layers > 0))
        need = states + kept * 8192**2 * batch / 1e9 + plan["RESERVE_GB"]
        slowdown = (1 + layers / 240) * (1 + plan["NODE_SHARE"] * n / 8)
        hours = plan["SEQUENCES"] * plan["GPU_SECONDS"] * slowdown / 3600 / n
        if (
            plan["GLOBAL_BATCH"] % (n * batch) == 0
            and need <= plan["PLAN_CARD_GB"]
            and hours <= plan["DEADLINE_HOURS"]
            and hours * n * plan["PRICE"] <= plan["BUDGET"]
        ):
            found[n, stage, batch, layers] = hours, hours * n * plan["PRICE"]
    return found


def test_several_plans_are_right_and_most_are_wrong(source: Notebook) -> None:
    for plan in source["metadata"]["trainmem_course"]["plan"]:
        right = accepted(plan)
        assert len(right) >= 5
        assert len({gpus for gpus, *_ in right}) >= 2
        assert not {layers for *_, layers in right} & {0, 80}  # neither end that the widget knows


def test_memory_time_and_money_pull_apart(source: Notebook) -> None:
    for plan in source["metadata"]["trainmem_course"]["plan"]:
        right = accepted(plan)
        counts = {gpus for gpus, *_ in right}
        fastest = min(right, key=lambda key: right[key][0])
        cheapest = min(right, key=lambda key: right[key][1])
        assert fastest[0] > cheapest[0]
        assert fastest[3] < cheapest[3]  # more GPUs leave more room
        # More GPUs than in any right plan would be in time but cost too much, fewer the reverse.
        more = accepted(plan | {"BUDGET": math.inf})
        assert {gpus for gpus, *_ in more} == counts | {plan["CLUSTER_GPUS"]} > counts
        fewer = {gpus for gpus, *_ in accepted(plan | {"DEADLINE_HOURS": math.inf})}
        assert min(fewer) < min(counts)


@cache
def whole_and_half_gb(
    kernels: str, gpus: int, stage: int, batch: int, loss_head: str
) -> list[float]:
    """Return what the replayed step allocates with every layer checkpointed, and every second."""
    plan = {
        "kernels": kernels,
        "loss_head": loss_head,
        "accumulation": 2,
        "sharding": f"zero{stage}",
    }
    return [
        trainmem.simulate(
            num_gpus=gpus, micro_batch=batch, plan=plan | {"checkpointing": mode}, **STEP
        ).per_gpu_total_gb
        for mode in ("full", "every_2nd")
    ]


def llama_gb(
    kernels: str, gpus: int, stage: int, batch: int, layers: int, loss_head: str = "chunked"
) -> float:
    """Return what the replayed step allocates, between its two ways to checkpoint."""
    all_, half = whole_and_half_gb(kernels, gpus, stage, batch, loss_head)
    return all_ + (half - all_) * (80 - layers) / 40


def test_the_bytes_of_a_llama_layer_are_as_said(source: Notebook) -> None:
    said = next(text(cell) for cell in source["cells"] if cell["id"] == "text-67")
    for kernels, words in (
        ("liger", "(33.5\nwith Liger's)"),
        ("transformers", "48.5 in plain transformers"),
    ):
        # With whole logits the loss is the peak, where all that the layers keep is alive.
        half, all_ = (
            llama_gb(kernels, 96, 3, 1, layers, loss_head="transformers") for layers in (40, 80)
        )
        assert f"{2 + (half - all_) * 1e9 / 40 / 8192**2:.1f}" in words
        assert words in said


def test_right_plans_fit_in_reality_with_fused_kernels_alone(source: Notebook) -> None:
    for plan in source["metadata"]["trainmem_course"]["plan"]:
        right = accepted(plan)
        cards = [card for card in GPUS if card.nominal_gb == plan["PLAN_CARD_GB"]]
        surely = 0.8 * min(card.usable_gib for card in cards) * 1.024**3  # the grade "fits"
        for gpus in {gpus for gpus, *_ in right}:
            here = [key for key in right if key[0] == gpus]
            for key in {min(here, key=lambda key: key[3]), max(here, key=lambda key: key[2])}:
                assert llama_gb("liger", *key) <= surely, key
            fewest = min(here, key=lambda key: (key[2], key[3]))
            assert llama_gb("transformers", *fewest) > surely


def test_command_line(tmp_path: Path, capsys) -> None:
    path, output = ASSIGNMENT / f"{NAME}.ipynb", tmp_path / "deep" / "seven.ipynb"
    assert course.main(["--seed", "7", str(path), "-o", str(output)]) == 0
    notebook = json.loads(output.read_text(encoding="utf-8"))
    assert notebook == course.seeded(json.loads(path.read_text(encoding="utf-8")), 7)
    assert course.main(["--seed", "8", str(path), "-o", str(output)]) == 2
    assert "--force" in capsys.readouterr().err
    assert course.main(["--seed", "8", str(path), "-o", str(output), "--force"]) == 0
    assert json.loads(output.read_text(encoding="utf-8")) != notebook
    assert course.main(["--seed", "7", str(output)]) == 2
    assert "seed the original source" in capsys.readouterr().err


def test_command_line_names_the_output_after_the_seed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainmem.course", "--seed", "a/b c"]
    path = str(ASSIGNMENT / f"{NAME}.ipynb")
    done = subprocess.run(
        [*command, path], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{NAME}.seed-a_b_c.ipynb\n"
    assert [file.name for file in tmp_path.iterdir()] == [f"{NAME}.seed-a_b_c.ipynb"]


def notebook(source: object, table: object) -> Notebook:
    cell = {"cell_type": "code", "metadata": {}, "source": source, "outputs": [1]}
    words = {"cell_type": "markdown", "metadata": {}, "source": source}
    metadata = {"trainmem_course": table}
    return {"cells": [cell, words], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def test_only_assignments_in_code_change() -> None:
    source = "A = 1  # one\n  A = 2\nAB = A = 1\nif A == 1: pass\nB = 'x#y'\nprint(A, B)"
    given = notebook(source, {"g": [{"A": [5, None, True], "B": "z"}]})
    given["cells"][0]["execution_count"] = 7
    before = copy.deepcopy(given)
    code, words = course.seeded(given, 1)["cells"]
    new = "[5, None, True]"
    assert text(code) == (
        f"A = {new}  # one\n  A = {new}\nAB = A = 1\nif A == 1: pass\nB = 'z'\nprint(A, B)"
    )
    assert (code["outputs"], code["execution_count"]) == ([], None)  # those of other numbers
    assert words == before["cells"][1]
    assert given == before


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({}, "format 4"),
        ({"nbformat": 4, "cells": {}}, "format 4"),
        ({"nbformat": 4, "cells": [1], "metadata": {}}, "format 4"),
        ({"nbformat": 4, "cells": [], "metadata": []}, "format 4"),
        ({"nbformat": 4, "cells": [{"cell_type": "code"}], "metadata": {}}, "format 4"),
        (notebook("A = 1", None), "no 'trainmem_course' table"),
        (notebook("A = 1", {"g": []}), "at least one"),
        (notebook("A = 1", {"g": [{"a": 1}]}), "UPPER_CASE"),
        (notebook("A = 1", {"g": [{"A": 1}, {"B": 1}]}), "same names"),
        (notebook("A = 1", {"g": [{"A": 1}], "h": [{"A": 1}]}), "another group too"),
        (notebook("A = 1", {"g": [{"B": 1}]}), "no code cell assigns B"),
        (notebook("A = [", {"g": [{"A": 1}]}), "literal on one line"),
        (notebook("A = 2 * B", {"g": [{"A": 1}]}), "literal on one line"),
        (notebook(["A = 1", 2], {"g": [{"A": 1}]}), "format 4"),
    ],
)
def test_bad_notebooks_get_one_clear_error(bad: Notebook, said: str) -> None:
    with pytest.raises(course.CourseError, match=said):
        course.seeded(bad, 1)


@pytest.mark.parametrize("content", [b"", b"[", b"[]", b"\xff", b"[" * 100_000])
def test_bad_files_get_one_line(tmp_path: Path, capsys, content: bytes) -> None:
    path = tmp_path / "bad.ipynb"
    path.write_bytes(content)
    assert course.main(["--seed", "1", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"{path}: not ")
    assert course.main(["--seed", "1", str(tmp_path / "none.ipynb")]) == 2


def test_sizes_are_bounded(tmp_path: Path, capsys, monkeypatch) -> None:
    path, output = tmp_path / "source.ipynb", tmp_path / "out.ipynb"
    path.write_text(json.dumps(notebook("A = 1", {"g": [{"A": 2}]})))
    size = path.stat().st_size
    for most, status in ((size - 1, 2), (size, 0)):
        monkeypatch.setattr(course, "MAX_BYTES", most)
        assert course.main(["--seed", "1", str(path), "-o", str(output)]) == status
        assert output.exists() == (status == 0)
    assert "source.ipynb: larger than" in capsys.readouterr().err
    assert course.main(["--seed", "x" * 200, str(path), "-o", str(output), "--force"]) == 0
    for seed in ("", "x" * 201):
        with pytest.raises(SystemExit) as stopped:
            course.main(["--seed", seed, str(path), "-o", str(output), "--force"])
        assert stopped.value.code == 2
        assert f"must be 1 to 200 characters, not {len(seed)}" in capsys.readouterr().err
