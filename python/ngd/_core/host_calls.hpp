// SPDX-License-Identifier: Apache-2.0
// Python functions that a step calls (ngd.call_host).
#pragma once

// `invoke(number, inputs, outputs)` calls a function on memoryviews. Called once, when the extension
// is imported.
void ngd_set_host_invoke(struct _object* invoke);
