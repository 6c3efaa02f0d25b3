"""Names of families, frameworks, kernels and optimizers are tested in their own files alone."""

import ast
from pathlib import Path

import pytest

import trainmem
from trainmem.transformer import FAMILIES, FRAMEWORKS, KERNELS, OPTIMIZERS
from trainmem.transformer.engine.dims import DIMS
from trainmem.transformer.plan import Plan
from trainmem.transformer.presets import ARCHITECTURES
from trainmem.transformer.sizes import OF_TOKENS, Tokens, fixed_dimensions

PACKAGE = Path(trainmem.__file__).parent
OWN = ("transformer/families", "transformer/stacks", "transformer/optimizers.py")
FILES = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if not str(path.relative_to(PACKAGE)).startswith(OWN)
]
NAMES = {
    "family": set(FAMILIES),
    "framework": set(FRAMEWORKS),
    "kernels": set(KERNELS),
    "optimizer": set(OPTIMIZERS),
}


def asks_of(node: ast.Compare) -> set[str]:
    """Return the names of what is compared: attributes, variables, keys."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute):
            found.add(part.attr)
        elif isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            found.add(part.value)
    return found


def comparisons_in(source: str) -> list[str]:
    """Return the comparisons of a family, a framework, kernels or an optimizer with a name."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            said = asks_of(node)
            if any(asked in said and said & names for asked, names in NAMES.items()):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_name_is_tested_outside_its_own_file(path):
    assert comparisons_in(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "plan.framework == 'deepspeed'",
        "if s.kernels in ('torchtitan', 'litgpt'): pass",
        "options.get('framework', 'torch') == 'megatron'",
        "kernels != 'liger'",
        "'gpt2' == a.family",
    ],
)
def test_a_name_that_is_tested_is_found(source):
    assert comparisons_in(source)


def test_every_dimension_has_a_number_and_a_meaning():
    llama = ARCHITECTURES["Llama-3-8B"]
    tokens = Tokens(llama, Plan(), b=1.0, s=1024.0)
    found = {**fixed_dimensions(llama, 1, 1, 0), **{d: of(tokens) for d, of in OF_TOKENS.items()}}
    assert set(found) == set(DIMS)
    assert len({dim.symbol for dim in DIMS}) == len(DIMS)
    assert all(dim.meaning for dim in DIMS)
