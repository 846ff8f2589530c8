# SPDX-License-Identifier: Apache-2.0
"""`python -m ngd` is the `ngd` command."""

from .cli import main

raise SystemExit(main())
