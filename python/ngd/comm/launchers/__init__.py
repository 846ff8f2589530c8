# SPDX-License-Identifier: Apache-2.0
"""Detection of rank, size and job, from the environment variables of each launcher.

Each launcher has a module that defines a `Launcher`, and an entry in registry.py.
"""
