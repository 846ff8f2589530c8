# SPDX-License-Identifier: Apache-2.0
"""Transformations of functions and graphs: gradients, Jacobians, vmap, rematerialisation."""
