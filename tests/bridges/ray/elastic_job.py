# SPDX-License-Identifier: Apache-2.0
"""Run the driver of test_ray_elastic.py: elastic_job.py CLUSTER OPTIONS COMMAND...

OPTIONS is a JSON object.
"""

from __future__ import annotations

import json
import logging
import sys

import ray

import ngd
import ngd.ray

logging.basicConfig(level=logging.INFO, format="%(message)s")
ray.init(address=sys.argv[1])
try:
    ngd.ray.run_elastic(sys.argv[3:], **json.loads(sys.argv[2]))
except ngd.errors.WorkerError as error:
    print(f"WorkerError: {error}", flush=True)
