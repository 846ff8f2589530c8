# SPDX-License-Identifier: Apache-2.0
"""The ops, one block each: what it means, its gradient, its slow reference, its samples."""
