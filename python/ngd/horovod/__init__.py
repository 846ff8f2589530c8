# SPDX-License-Identifier: Apache-2.0
"""Horovod's API on ngd's collectives. To run a script for Horovod, change its import line.

    import ngd.horovod.torch as hvd   # was: import horovod.torch as hvd

`ngd.horovod.torch`, `tensorflow` and `keras` take the tensors of these frameworks, and
`ngd.horovod.numpy` takes arrays. docs/horovod.md lists the supported functions and the differences.
"""
