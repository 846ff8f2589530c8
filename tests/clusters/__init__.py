# SPDX-License-Identifier: Apache-2.0
"""Tests on Slurm, Docker and Kubernetes."""
