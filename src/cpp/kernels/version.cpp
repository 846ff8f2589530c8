// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernel.hpp"

#ifdef NGD_HAVE_ONEDNN
#include <dnnl.h>
#endif

namespace ngd::kernels {

std::string onednn_version() {
#ifdef NGD_HAVE_ONEDNN
  const dnnl_version_t* version = dnnl_version();
  return std::to_string(version->major) + '.' + std::to_string(version->minor) + '.' +
         std::to_string(version->patch);
#else
  return {};
#endif
}

}  // namespace ngd::kernels
