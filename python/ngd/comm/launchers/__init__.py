# SPDX-License-Identifier: Apache-2.0
"""Rank, size and job of this process, from the environment variables of each launcher.

A launcher is a module with a `Launcher`, and an entry in registry.py.
"""
