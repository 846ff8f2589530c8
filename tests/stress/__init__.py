# SPDX-License-Identifier: Apache-2.0
"""Random tests of threads, interrupts and system failures."""
