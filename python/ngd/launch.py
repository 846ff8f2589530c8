# SPDX-License-Identifier: Apache-2.0
"""The program of `python -m ngd.launch`. It does the same as the command `ngd run`."""

from .cli.run import main

if __name__ == "__main__":
    raise SystemExit(main())
