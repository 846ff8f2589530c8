# SPDX-License-Identifier: Apache-2.0
"""The INTERPRETER device: the NumPy references of the ops."""
