# SPDX-License-Identifier: Apache-2.0
"""Horovod's names over ngd's collectives: a script changes one line.

    import ngd.horovod.torch as hvd   # was: import horovod.torch as hvd

`ngd.horovod.numpy` has them for arrays. docs/horovod.md tells what they do and what they do not.
"""
