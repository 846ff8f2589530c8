// SPDX-License-Identifier: Apache-2.0
// Calls from a step to Python functions (ngd.call_host).
#pragma once

// Sets the Python function `invoke(number, inputs, outputs)`, which calls the function with this
// number on memoryviews. Called once, when ngd is imported.
void ngd_set_host_invoke(struct _object* invoke);
