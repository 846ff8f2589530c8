# SPDX-License-Identifier: Apache-2.0
"""The INTERPRETER device, which computes each op by its reference implementation in NumPy."""
