# SPDX-License-Identifier: Apache-2.0
"""The program of `python -m ngd`, which is the `ngd` command."""

from .cli import main

raise SystemExit(main())
