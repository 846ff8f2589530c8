# SPDX-License-Identifier: Apache-2.0
"""What each launcher says about the ranks that it started, by environment variables."""
