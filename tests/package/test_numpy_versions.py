# SPDX-License-Identifier: Apache-2.0
"""Tests that the package works with NumPy 1.26 (for MXNet) and with all versions of NumPy 2."""

import ast
from pathlib import Path

import ngd

PACKAGE = Path(ngd.__file__).parent

# Functions that are new in NumPy 2.0, 2.1 and 2.2, by their release notes.
SINCE_NUMPY_2 = {
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "astype", "bitwise_count"),
    *("bitwise_invert", "bitwise_left_shift", "bitwise_right_shift", "concat", "cross_product"),
    *("cumulative_prod", "cumulative_sum", "isdtype", "matrix_norm", "matrix_transpose", "matvec"),
    *("permute_dims", "pow", "svdvals", "trapezoid", "unique_all", "unique_counts"),
    *("unique_inverse", "unique_values", "unstack", "vecdot", "vecmat", "vector_norm"),
}


def names_of_numpy(source: str) -> set[str]:
    """Return the names that a program reads as `np.NAME` or `np.linalg.NAME`."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np", "np.linalg"):
            names.add(node.attr)
    return names


def test_names_of_numpy_are_found() -> None:
    assert names_of_numpy("x = np.add(np.linalg.norm(y), z.np)") == {"add", "linalg", "norm"}


def test_no_module_reads_a_name_that_numpy_1_26_does_not_have() -> None:
    new_names = {
        str(file.relative_to(PACKAGE)): names
        for file in PACKAGE.rglob("*.py")
        if (names := names_of_numpy(file.read_text()) & SINCE_NUMPY_2)
    }
    assert new_names == {}
