# SPDX-License-Identifier: Apache-2.0
# Compiler flags, and three functions for all folders.

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)

add_library(ngd_flags INTERFACE)
target_include_directories(ngd_flags INTERFACE ${PROJECT_SOURCE_DIR}/src/cpp)
# No contraction: a*b+c rounds the same on every SIMD level, device and rank.
target_compile_options(ngd_flags INTERFACE
  -Wall -Wextra -Wno-psabi -ffp-contract=off -fno-math-errno -fno-trapping-math
  $<$<BOOL:${NGD_WERROR}>:-Werror>)
if(NGD_SANITIZE)
  # -g1 gives names and lines, which is all that a report shows, and builds in two thirds of the
  # time. Without checks that AddressSanitizer makes anyway (null pointers, too small objects), the
  # time is another quarter shorter.
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

# ngd_add_library(NAME sources...): the static library of a folder.
function(ngd_add_library name)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC ngd_flags)
endfunction()

# NGD_SIMD_LEVELS: the names of the levels, lowest first. NGD_SIMD_FLAGS_<name>: their flags.
set(NGD_SIMD_LEVELS baseline)
set(simd_levels_inc ${PROJECT_SOURCE_DIR}/src/cpp/base/simd_levels.inc)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${simd_levels_inc})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  file(READ ${simd_levels_inc} rows)
  string(REGEX MATCHALL "\n  ROW\\([^\n]*\\)" rows "${rows}")
  foreach(row IN LISTS rows)
    string(REGEX MATCH "ROW\\([A-Za-z0-9]+, ([a-z0-9]+), .*\"([^\"]*)\"" row "${row}")
    set(level ${CMAKE_MATCH_1})
    set(flags ${CMAKE_MATCH_2})
    string(REGEX MATCHALL "FEATURE\\([a-z0-9_.]+\\)" features "${row}")
    list(TRANSFORM features REPLACE "FEATURE\\((.*)\\)" "-m\\1")
    list(APPEND feature_flags ${features})
    list(APPEND NGD_SIMD_LEVELS ${level})
    set(NGD_SIMD_FLAGS_${level} ${feature_flags} ${flags})
  endforeach()
endif()

# ngd_add_simd_sources(TARGET files...): compiles each file once per SIMD level (base/simd.hpp).
function(ngd_add_simd_sources target)
  foreach(level IN LISTS NGD_SIMD_LEVELS)
    add_library(${target}_${level} OBJECT ${ARGN})
    target_link_libraries(${target}_${level} PUBLIC ngd_flags OpenMP::OpenMP_CXX)
    target_compile_definitions(${target}_${level} PRIVATE NGD_SIMD_LEVEL=${level})
    target_compile_options(${target}_${level} PRIVATE ${NGD_SIMD_FLAGS_${level}})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${level}>)
  endforeach()
endfunction()

# ngd_add_test(NAME sources... LINK libraries...): a GoogleTest program, run by ctest. Programs with
# ranks and deadlines (LINK ngd_comm) run one at a time. The others may run in parallel, at low
# priority.
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
