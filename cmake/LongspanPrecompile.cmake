# Headers that most files include, parsed once for all of them: of the standard library, of libtorch for what
# links it, and GoogleTest on top for tests.
#
# nlohmann/json.hpp and CLI/CLI.hpp are not among them: GCC instantiates what a precompiled header left pending again in
# every file, which takes seconds of a file that does not use them.
#
# On in the presets for whole builds from nothing (release, core, sanitizers). A build without it (debug,
# cuda) still shows which file forgot an include of its own. Targets with compiler flags that change what
# headers mean cannot share these; they say so by DISABLE_PRECOMPILE_HEADERS, files by SKIP_PRECOMPILE_HEADERS.

# Whether `target` reaches libtorch through what it links to.
function(longspan_reaches_torch result target)
  set(${result} FALSE PARENT_SCOPE)
  if(target STREQUAL "torch::cpu")
    set(${result} TRUE PARENT_SCOPE)
    return()
  endif()
  if(NOT TARGET ${target})
    return()
  endif()
  get_target_property(links ${target} INTERFACE_LINK_LIBRARIES)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    get_target_property(links ${target} LINK_LIBRARIES)
  endif()
  foreach(link IN LISTS links)
    longspan_reaches_torch(reaches "${link}")
    if(reaches)
      set(${result} TRUE PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# longspan_precompile(TARGET [TEST|PROGRAM]): called behind the target's target_link_libraries. PROGRAM: what parses a
# command line and calls libraries.
function(longspan_precompile target)
  if(NOT LONGSPAN_PRECOMPILE)
    return()
  endif()
  cmake_parse_arguments(ARG "TEST;PROGRAM" "" "" ${ARGN})
  set(headers longspan)
  longspan_reaches_torch(torch ${target})
  if(torch)
    string(APPEND headers _torch)
  endif()
  if(ARG_TEST)
    string(APPEND headers _test)
  elseif(ARG_PROGRAM)
    string(APPEND headers _program)
  endif()
  if(ARG_TEST OR ARG_PROGRAM)
    # Quick but for the libraries they call: a compiler's work on them costs more than it gives.
    target_compile_options(${target} PRIVATE -O1)
  endif()
  if(TARGET ${headers}_headers)  # the few programs without libtorch have none
    target_precompile_headers(${target} REUSE_FROM ${headers}_headers)
  endif()
endfunction()

function(longspan_precompiled_headers name)
  cmake_parse_arguments(ARG "" "" "HEADERS;DEPS;OPTIONS" ${ARGN})
  add_library(${name} OBJECT ${PROJECT_BINARY_DIR}/precompiled.cpp)
  target_link_libraries(${name} PRIVATE longspan_flags ${ARG_DEPS})
  target_compile_options(${name} PRIVATE ${ARG_OPTIONS})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
endfunction()

if(LONGSPAN_PRECOMPILE)
  find_package(GTest REQUIRED)
  set(common_headers <algorithm> <array> <cmath> <cstdint> <filesystem> <functional> <map> <memory> <optional>
      <set> <span> <sstream> <string> <string_view> <utility> <variant> <vector>)
  set(torch_headers ${common_headers} <ATen/core/Tensor.h> <ATen/ops/empty.h> <ATen/ops/empty_like.h>
      <ATen/ops/full.h> <ATen/ops/zeros.h> <ATen/Parallel.h> <c10/core/GradMode.h>)
  file(WRITE ${PROJECT_BINARY_DIR}/precompiled.cpp "// The precompiled headers need a file of their own.\n")

  longspan_precompiled_headers(longspan_headers HEADERS ${common_headers})
  longspan_precompiled_headers(longspan_test_headers HEADERS ${common_headers} <gtest/gtest.h>
    DEPS GTest::gtest OPTIONS -O1)
  if(LONGSPAN_TORCH)
    # Libraries on libtorch have lines for stack traces (-g1); their headers must have them, too.
    longspan_precompiled_headers(longspan_torch_headers HEADERS ${torch_headers} DEPS torch::cpu OPTIONS -g1)
    longspan_precompiled_headers(longspan_torch_test_headers HEADERS ${torch_headers} <ATen/ATen.h> <gtest/gtest.h>
      DEPS torch::cpu GTest::gtest OPTIONS -O1)
    longspan_precompiled_headers(longspan_torch_program_headers HEADERS ${torch_headers} DEPS torch::cpu OPTIONS -g1 -O1)
  endif()
endif()
