# SPDX-License-Identifier: Apache-2.0
"""The memory plan of a step."""
