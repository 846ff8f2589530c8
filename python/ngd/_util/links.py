# SPDX-License-Identifier: Apache-2.0
"""Addresses of the documentation, for help texts and messages."""

from __future__ import annotations

from typing import Final

SITE: Final = "https://ngd-runtime.readthedocs.io/en/latest/"
"""The address of the documentation site. It ends in a slash."""


def page_url(page: str) -> str:
    """Return the address of a page of the site: `page_url("cli")` for docs/cli.md."""
    return f"{SITE}{page}/"
