# SPDX-License-Identifier: Apache-2.0
"""The CPU device: kernels in C++, and memory that the ranks of a host may share."""
