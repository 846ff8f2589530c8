# SPDX-License-Identifier: Apache-2.0
"""Tests of the rules of the code, the documents, the packaging and the scripts."""
