# SPDX-License-Identifier: Apache-2.0
# Compiler flags, and the three functions that every folder uses.

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)

add_library(ngd_flags INTERFACE)
target_include_directories(ngd_flags INTERFACE ${PROJECT_SOURCE_DIR}/src/cpp)
# No contraction: a*b+c rounds the same on every SIMD level, device and rank.
target_compile_options(ngd_flags INTERFACE
  -Wall -Wextra -Wno-psabi -ffp-contract=off -fno-math-errno -fno-trapping-math
  $<$<BOOL:${NGD_WERROR}>:-Werror>)
if(NGD_SANITIZE)
  # -g1: names and lines, which is all that a report shows, in a third less time. Another quarter
  # goes with what AddressSanitizer sees anyway: null pointers, and objects that are too small.
  target_compile_options(ngd_flags INTERFACE
    -fsanitize=${NGD_SANITIZE} -fno-sanitize=null,object-size,vptr -fno-sanitize-recover=all
    -fno-omit-frame-pointer -g1 -O1)
  target_link_options(ngd_flags INTERFACE -fsanitize=${NGD_SANITIZE})
endif()
if(NGD_TEST_STEPS)
  target_compile_definitions(ngd_flags INTERFACE NGD_TEST_STEPS)
endif()
target_link_libraries(ngd_flags INTERFACE Threads::Threads)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_definitions(ngd_flags INTERFACE NGD_HAVE_X86_LEVELS)
endif()

# ngd_add_library(NAME sources...): one static library a folder.
function(ngd_add_library name)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC ngd_flags)
endfunction()

# ngd_add_simd_sources(TARGET files...): each file is compiled once a SIMD level (base/simd.hpp).
function(ngd_add_simd_sources target)
  set(levels baseline)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND levels avx2 avx512)
  endif()
  set(flags_baseline "")
  foreach(level IN ITEMS avx2 avx512)
    file(STRINGS ${PROJECT_SOURCE_DIR}/src/cpp/base/simd_features.inc flags_${level}
      REGEX "^NGD_SIMD_FEATURE\\(${level},")
    list(TRANSFORM flags_${level} REPLACE ".*, ([a-z0-9]+)\\)$" "-m\\1")
  endforeach()
  list(PREPEND flags_avx512 ${flags_avx2})
  list(APPEND flags_avx512 -mprefer-vector-width=512)
  foreach(level IN LISTS levels)
    add_library(${target}_${level} OBJECT ${ARGN})
    target_link_libraries(${target}_${level} PUBLIC ngd_flags OpenMP::OpenMP_CXX)
    target_compile_definitions(${target}_${level} PRIVATE NGD_SIMD_LEVEL=${level})
    target_compile_options(${target}_${level} PRIVATE ${flags_${level}})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${level}>)
  endforeach()
endfunction()

# ngd_add_test(NAME sources... LINK libraries...): a GoogleTest program, run by ctest. Programs with
# ranks and deadlines (LINK ngd_comm) run alone. The others may run beside other work, at low priority.
function(ngd_add_test name)
  cmake_parse_arguments(arg "" "" "LINK" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ${arg_LINK} GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 1500)
  if("ngd_comm" IN_LIST arg_LINK)
    set_tests_properties(${name} PROPERTIES TIMEOUT 300 RUN_SERIAL TRUE)
  endif()
endfunction()
