# SPDX-License-Identifier: Apache-2.0
"""`python -m ngd.launch` is `ngd run`."""

from .cli.run import main

if __name__ == "__main__":
    raise SystemExit(main())
