# SPDX-License-Identifier: Apache-2.0
"""The package is imported with every NumPy that it declares: 1.26 for MXNet, and all of NumPy 2."""

import ast
from pathlib import Path

import ngd

PACKAGE = Path(ngd.__file__).parent

# New functions in the notes of NumPy's releases 2.0, 2.1 and 2.2.
SINCE_NUMPY_2 = {
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "astype", "bitwise_count"),
    *("bitwise_invert", "bitwise_left_shift", "bitwise_right_shift", "concat", "cross_product"),
    *("cumulative_prod", "cumulative_sum", "isdtype", "matrix_norm", "matrix_transpose", "matvec"),
    *("permute_dims", "pow", "svdvals", "trapezoid", "unique_all", "unique_counts"),
    *("unique_inverse", "unique_values", "unstack", "vecdot", "vecmat", "vector_norm"),
}


def names_of_numpy(source: str) -> set[str]:
    """Return the names that a program reads as `np.NAME` or `np.linalg.NAME`."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np", "np.linalg"):
            found.add(node.attr)
    return found


def test_names_of_numpy_are_found() -> None:
    assert names_of_numpy("x = np.add(np.linalg.norm(y), z.np)") == {"add", "linalg", "norm"}


def test_no_module_reads_a_name_that_numpy_1_26_does_not_have() -> None:
    found = {
        str(file.relative_to(PACKAGE)): names
        for file in PACKAGE.rglob("*.py")
        if (names := names_of_numpy(file.read_text()) & SINCE_NUMPY_2)
    }
    assert found == {}
